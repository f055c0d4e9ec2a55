"""The blocking MessagingFactory, which calls the async one through the portal, and pair options.

Rule 1: the documentation of ``twinbus.aio`` holds for every method.
Rule 2: callbacks (``on_event``) run on the loop's thread: they must be quick and must not call a
        blocking method.
Rule 3: a forked child creates the factory again with its first call, and pairs it again. It begins
        like a new process: it inherits neither diversions nor holds. The hosted syphon stays with
        the parent, and the secondary need not be reachable (P27).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Self, Unpack
from weakref import WeakSet

from twinbus import aio
from twinbus.common.argument_types import type_shown
from twinbus.drivers.administration import AdministrationClient
from twinbus.drivers.credentials import Credential, IdentityCredential
from twinbus.drivers.interface import Driver, NamespaceAddress, NextSession, ReceiveMode
from twinbus.encoding.envelope import check_reserved_names
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import ConfigurationError
from twinbus.pairing.backlog_monitor import QueueBacklog
from twinbus.pairing.client.environment import Role
from twinbus.pairing.client.factory_options import FactoryOptions
from twinbus.pairing.direct_sender import ONE_WRITE_BYTES_MAX, DirectSender
from twinbus.pairing.events import EventRecord, Listener
from twinbus.pairing.options import Interval
from twinbus.pairing.routing import EntityHealth
from twinbus.sync.blocking_portal import PORTAL, Twin
from twinbus.sync.clients import (
    MessageReceiver,
    MessageSender,
    NamespaceManager,
    QueueClient,
    SenderEnds,
    SubscriptionClient,
    TopicClient,
)

__all__ = ["MessagingFactory", "SendAvailabilityPairedNamespaceOptions"]

# The envelope makes a message at most 463 bytes longer; the loop computes it where this is too
# much.
ENVELOPE_BYTES_MAX: Final = 512


class MessagingFactory:
    """Creates the clients of one namespace, which may be paired with a secondary."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential | IdentityCredential,
        **options: Unpack[FactoryOptions],
    ) -> None:
        self._bind(lambda: aio.MessagingFactory(fully_qualified_namespace, credential, **options))

    def _bind(self, make: Callable[[], aio.MessagingFactory]) -> None:
        self._make = make
        self._options: SendAvailabilityPairedNamespaceOptions | None = None
        self._listeners: dict[object, tuple[Listener, Callable[[], None]]] = {}
        self._is_closed = False
        self._twin = Twin(self._create_twin)

    @property
    def twin(self) -> aio.MessagingFactory:
        """The factory on the loop."""
        return self._twin()

    def _create_twin(self) -> aio.MessagingFactory:
        """The first one, and one for each forked child that uses it."""
        twin = self._make()
        if twin.is_inherited:  # It belongs to another process: every call of it raises an error.
            return twin
        self._direct: WeakSet[DirectSender[OutgoingMessage]] = WeakSet()
        try:
            for key, (listener, _) in tuple(self._listeners.items()):
                self._listeners[key] = listener, PORTAL.run(partial(twin.on_event, listener))
            if self._is_closed:
                PORTAL.call(twin.close())
            elif self._options is not None:
                # The parent has paired already: an unreachable secondary is not an error here.
                options = self._options.to_async(require_secondary=False, enable_syphon=False)
                PORTAL.call(twin.pair_namespace(options))
        except BaseException:
            PORTAL.call(twin.close())
            raise
        return twin

    @classmethod
    def wrap(cls, make: Callable[[], aio.MessagingFactory]) -> Self:
        """The blocking factory around an async one on the same loop, for example that of a paired
        client; ``make`` is called again in a forked child."""
        factory = cls.__new__(cls)
        factory._bind(make)
        return factory

    @classmethod
    def from_connection_string(
        cls, connection_string: str, **options: Unpack[FactoryOptions]
    ) -> Self:
        """A factory with the key or the signature of a connection string."""
        return cls.wrap(
            lambda: aio.MessagingFactory.from_connection_string(connection_string, **options)
        )

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        role: Role = "primary",
        credential: Credential | IdentityCredential | None = None,
        **options: Unpack[FactoryOptions],
    ) -> Self:
        """A factory for the namespace that the environment variables name."""
        # A forked child uses the same values, also if the variables have changed.
        found = dict(os.environ if environment is None else environment)
        return cls.wrap(
            lambda: aio.MessagingFactory.from_environment(
                found, role=role, credential=credential, **options
            )
        )

    @classmethod
    def from_driver(
        cls,
        port: Driver,
        /,
        management: AdministrationClient | None = None,
        lean: Callable[[], Driver] | None = None,
        **options: Unpack[FactoryOptions],
    ) -> Self:
        """A factory that uses an existing driver. A forked child cannot use it."""
        twin = aio.MessagingFactory.from_driver(port, management, lean, **options)
        return cls.wrap(lambda: twin)

    @property
    def address(self) -> NamespaceAddress:
        return self._twin.last.address

    def namespace_name(self) -> str | None:
        """The name of the namespace, if the service returns it."""
        return PORTAL.call(self.twin.namespace_name())

    # -- clients ------------------------------------------------------------------------------

    def create_queue_client(
        self, path: str, *, receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK, prefetch: int = 0
    ) -> QueueClient:
        """Send to a queue and receive from it."""
        return QueueClient(
            lambda: self._ends(self.twin.create_message_sender(path)),
            lambda: self.twin.create_message_receiver(
                path, receive_mode=receive_mode, prefetch=prefetch
            ),
        )

    def create_topic_client(self, path: str) -> TopicClient:
        """Send to a topic."""
        return TopicClient(lambda: self._ends(self.twin.create_topic_client(path)))

    def create_subscription_client(
        self,
        topic_path: str,
        name: str,
        *,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> SubscriptionClient:
        """Receive from a subscription of a topic."""
        return SubscriptionClient(
            lambda: self.twin.create_subscription_client(
                topic_path, name, receive_mode=receive_mode, prefetch=prefetch, session=session
            )
        )

    def create_message_sender(self, path: str) -> MessageSender:
        """Send to a queue or a topic."""
        return MessageSender(lambda: self._ends(self.twin.create_message_sender(path)))

    def _ends(self, sender: aio.MessageSender) -> SenderEnds:
        return SenderEnds(sender, self._direct_sender(sender))

    def _direct_sender(self, sender: aio.MessageSender) -> DirectSender[OutgoingMessage] | None:
        """For sends on the caller's thread; None where all of them go through the loop."""
        driver = self.twin.driver
        # Neither the lean client nor a metered driver has it.
        opener = getattr(driver, "blocking_opener", None)
        open_link = None if opener is None else opener(sender.path)
        if open_link is None:
            return None

        def fits(outgoing_message: OutgoingMessage, limit_bytes: int) -> bool:
            # Metering can start later, with the pair; then the loop counts each send.
            if self.twin.driver is not driver:
                return False
            if outgoing_message.native.properties:
                check_reserved_names(outgoing_message.native.properties)
            size = len(outgoing_message.encoded) + ENVELOPE_BYTES_MAX
            return size <= min(limit_bytes, ONE_WRITE_BYTES_MAX)

        direct = DirectSender(
            sender.paired_sender,
            open_link=open_link,
            fits=fits,
            to_outgoing_messages=lambda outgoing_message: [outgoing_message],
            run=PORTAL.call,
        )
        self._direct.add(direct)
        return direct

    def create_message_receiver(
        self,
        path: str,
        *,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> MessageReceiver:
        """Receive from a queue, a subscription or a dead-letter queue."""
        return MessageReceiver(
            lambda: self.twin.create_message_receiver(
                path, receive_mode=receive_mode, prefetch=prefetch, session=session
            )
        )

    # -- pairing ------------------------------------------------------------------------------

    @property
    def is_paired(self) -> bool:
        return self._twin.last.is_paired

    @property
    def is_secondary(self) -> bool:
        return self._twin.last.is_secondary

    def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> None:
        """Pair this namespace, as the primary, with the secondary of the options."""
        if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
            raise ConfigurationError(
                "options must be twinbus.SendAvailabilityPairedNamespaceOptions, "
                f"got {type_shown(options)}",
                hint="Use the classes of twinbus, not those of twinbus.aio",
            )
        PORTAL.call(self.twin.pair_namespace(options.to_async()))
        self._options = options

    @property
    def paired_namespace_options(self) -> SendAvailabilityPairedNamespaceOptions | None:
        """The current options of the pair; None for a factory that is not a primary."""
        options = self.twin.paired_namespace_options
        if options is None or isinstance(options, _TwinOptions):
            return None if options is None else options.shown
        return SendAvailabilityPairedNamespaceOptions.wrap(options)

    def set_ping_interval(self, interval: Interval) -> None:
        """Change the interval between pings of diverted entities."""
        PORTAL.run(partial(self.twin.set_ping_interval, interval))

    def health(self, path: str) -> EntityHealth:
        """The health of one queue or topic."""
        return PORTAL.run(partial(self.twin.health, path))

    def failovers(self) -> list[EntityHealth]:
        """All entities that this factory has used, the diverted ones first."""
        return PORTAL.run(self.twin.failovers)

    def backlog(self) -> list[QueueBacklog]:
        """The number of messages in each backlog queue."""
        return PORTAL.call(self.twin.backlog())

    def force_failover(self, path: str) -> None:
        """Divert a path, or all paths (``"*"``), although no send has failed."""
        PORTAL.run(partial(self.twin.force_failover, path))

    def mark_path_healthy(self, path: str) -> None:
        """End the diversion or hold of a path (or ``"*"``): send to the primary again."""
        PORTAL.run(partial(self.twin.mark_path_healthy, path))

    def hold(self, path: str) -> None:
        """Keep a path (or ``"*"``) on the namespace it uses now, until it is marked healthy or
        failed over."""
        PORTAL.run(partial(self.twin.hold, path))

    def events(self) -> Iterator[EventRecord]:
        """All events from now on; the iteration waits for the next one."""
        return PORTAL.iterate(PORTAL.run(self.twin.events))

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event, on the loop's thread; returns a function that ends
        this."""
        key = object()
        stop = PORTAL.run(partial(self.twin.on_event, listener))
        self._listeners[key] = listener, stop

        def end() -> None:
            _, stop = self._listeners.pop(key, (None, None))
            if stop is not None:
                PORTAL.run(stop)

        return end

    # -- end ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._is_closed if self._twin.is_inherited else self.twin.is_open

    @property
    def fault_reason(self) -> str | None:
        """Why this factory has faulted; None if it has not."""
        return None if self._twin.is_inherited else self.twin.fault_reason

    def close(self) -> None:
        """Wait for pending sends, then close all clients and connections."""
        self._is_closed = True
        if self._twin.is_inherited:
            return
        try:
            PORTAL.call(self.twin.close())
        finally:
            for direct in tuple(self._direct):
                direct.close()

    def __enter__(self) -> Self:
        PORTAL.call(self.twin.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._twin.last)


@dataclass(frozen=True, eq=False)
class SendAvailabilityPairedNamespaceOptions(aio.SendAvailabilityPairedNamespaceOptions):
    """The options of ``twinbus.aio``, with a manager and a factory of this module."""

    secondary_namespace_manager: NamespaceManager | None  # type: ignore[assignment]
    messaging_factory: MessagingFactory  # type: ignore[assignment]

    @staticmethod
    def _partner_types() -> tuple[type, type]:
        return NamespaceManager, MessagingFactory

    @classmethod
    def wrap(cls, twin: aio.SendAvailabilityPairedNamespaceOptions) -> Self:
        """The options of a pair of async factories, for example that of a paired client."""
        manager = twin.secondary_namespace_manager
        values = {each.name: getattr(twin, each.name) for each in fields(twin)}
        values["secondary_namespace_manager"] = manager and NamespaceManager.wrap(manager)
        values["messaging_factory"] = MessagingFactory.wrap(lambda: twin.messaging_factory)
        values["backlog_queue_count"] = twin.wanted_queue_count
        options = cls(**values)
        options.found_queues(twin.backlog_queue_count)
        return options

    def to_async(self, **changed: Any) -> aio.SendAvailabilityPairedNamespaceOptions:
        """The same options for the async factory, some of them with other values."""
        manager, factory = self.secondary_namespace_manager, self.messaging_factory
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["secondary_namespace_manager"] = None if manager is None else manager.twin
        values["messaging_factory"] = factory.twin
        values["backlog_queue_count"] = self.wanted_queue_count
        return _TwinOptions(self, values | changed)


class _TwinOptions(aio.SendAvailabilityPairedNamespaceOptions):
    """The options of the async factory, which pass on what changes: the number of backlog queues
    that were found, now or later (P19), and the ping interval."""

    def __init__(
        self, shown: SendAvailabilityPairedNamespaceOptions, values: dict[str, Any]
    ) -> None:
        super().__init__(**values)
        self._set("_shown", shown)

    @property
    def shown(self) -> SendAvailabilityPairedNamespaceOptions:
        """The options object of the application."""
        shown: SendAvailabilityPairedNamespaceOptions = self.__dict__["_shown"]
        return shown

    def found_queues(self, count: int) -> None:
        super().found_queues(count)
        self.shown.found_queues(count)

    def set_ping_interval(self, interval: Interval) -> None:
        super().set_ping_interval(interval)
        self.shown.set_ping_interval(interval)
