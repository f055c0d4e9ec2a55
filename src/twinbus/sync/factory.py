"""MessagingFactory that blocks: the async one, through the portal; and the options of a pair.

Rule 1: what a method does is said in ``twinbus.aio``.
Rule 2: callbacks (``on_event``) run on the loop's thread: they are quick, and call nothing here.
Rule 3: a forked child makes the factory anew with its first call, and pairs it again. It begins as
        a process that is started then: what is diverted or held is its own business. It hosts no
        syphon, which stays with the parent, and does not insist on the secondary (P27).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Self, Unpack
from weakref import WeakSet

from twinbus import aio
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

# A detour makes a message at most 463 bytes longer; the loop looks closer where this is too much.
DETOUR_BYTES_MAX: Final = 512


class MessagingFactory:
    """Everything an application uses of one namespace, alone or paired."""

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
        self._twin = Twin(self._made)

    @property
    def twin(self) -> aio.MessagingFactory:
        """The factory on the loop."""
        return self._twin()

    def _made(self) -> aio.MessagingFactory:
        """The first one, and one for each forked child that uses it."""
        twin = self._make()
        if twin.is_inherited:  # It was made elsewhere: every call of it says so.
            return twin
        self._direct: WeakSet[DirectSender[OutgoingMessage]] = WeakSet()
        try:
            for key, (listener, _) in tuple(self._listeners.items()):
                self._listeners[key] = listener, PORTAL.run(partial(twin.on_event, listener))
            if self._is_closed:
                PORTAL.call(twin.close())
            elif self._options is not None:
                # A secondary that is away stops nobody who has paired before.
                options = self._options.twins(require_secondary=False, enable_syphon=False)
                PORTAL.call(twin.pair_namespace(options))
        except BaseException:
            PORTAL.call(twin.close())
            raise
        return twin

    @classmethod
    def made_by(cls, make: Callable[[], aio.MessagingFactory]) -> Self:
        """The sync face of a factory on the same loop, such as a paired client's; ``make`` is
        asked again in a forked child."""
        made = cls.__new__(cls)
        made._bind(make)
        return made

    @classmethod
    def from_connection_string(
        cls, connection_string: str, **options: Unpack[FactoryOptions]
    ) -> Self:
        """A factory with the key or the signature of a connection string."""
        return cls.made_by(
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
        """A factory for what the environment names."""
        # A forked child finds what its parent has found, whatever became of the variables.
        found = dict(os.environ if environment is None else environment)
        return cls.made_by(
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
        """A factory over a driver that was made elsewhere. A forked child cannot use it."""
        twin = aio.MessagingFactory.from_driver(port, management, lean, **options)
        return cls.made_by(lambda: twin)

    @property
    def address(self) -> NamespaceAddress:
        return self._twin.last.address

    def namespace_name(self) -> str | None:
        """What the namespace calls itself, if it can be asked."""
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
        # Neither the lean client nor a driver that meters its sends has such a thing.
        opener = getattr(driver, "blocking_opener", None)
        open_link = None if opener is None else opener(sender.path)
        if open_link is None:
            return None

        def fits(outgoing_message: OutgoingMessage, limit_bytes: int) -> bool:
            # Metering can begin later, with the pair; then the loop counts each send.
            if self.twin.driver is not driver:
                return False
            if outgoing_message.native.properties:
                check_reserved_names(outgoing_message.native.properties)
            size = len(outgoing_message.encoded) + DETOUR_BYTES_MAX
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
                f"a {type(options).__name__} does not say how to pair",
                hint="Give twinbus.SendAvailabilityPairedNamespaceOptions; twinbus.aio has its own",
            )
        PORTAL.call(self.twin.pair_namespace(options.twins()))
        self._options = options

    @property
    def paired_namespace_options(self) -> SendAvailabilityPairedNamespaceOptions | None:
        """The options of the pair as they hold now; None for a factory that is not a primary."""
        options = self.twin.paired_namespace_options
        if options is None or isinstance(options, _TwinOptions):
            return None if options is None else options.shown
        return SendAvailabilityPairedNamespaceOptions.of(options)

    def set_ping_interval(self, interval: Interval) -> None:
        """Ask diverted entities at another pace whether they are back, from now on."""
        PORTAL.run(partial(self.twin.set_ping_interval, interval))

    def health(self, path: str) -> EntityHealth:
        """What is known about one queue or topic."""
        return PORTAL.run(partial(self.twin.health, path))

    def failovers(self) -> list[EntityHealth]:
        """All entities that this factory has used, the diverted ones first."""
        return PORTAL.run(self.twin.failovers)

    def backlog(self) -> list[QueueBacklog]:
        """What every backlog queue holds."""
        return PORTAL.call(self.twin.backlog())

    def force_failover(self, path: str) -> None:
        """Divert a path, or all of them (``"*"``), although nothing failed."""
        PORTAL.run(partial(self.twin.force_failover, path))

    def mark_path_healthy(self, path: str) -> None:
        """Send to the primary again, whatever was known about a path (or ``"*"``)."""
        PORTAL.run(partial(self.twin.mark_path_healthy, path))

    def hold(self, path: str) -> None:
        """Keep a path (or ``"*"``) where it is, until it is marked healthy or forced over."""
        PORTAL.run(partial(self.twin.hold, path))

    def events(self) -> Iterator[EventRecord]:
        """All events from now on; the iteration waits for the next one."""
        return PORTAL.iterate(PORTAL.run(self.twin.events))

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event, on the loop's thread; returns how to stop that."""
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
        """Why this factory was given up, if it was."""
        return None if self._twin.is_inherited else self.twin.fault_reason

    def close(self) -> None:
        """Wait for the sends under way, then let go of everything."""
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
    def of(cls, twin: aio.SendAvailabilityPairedNamespaceOptions) -> Self:
        """The options of a pair that was made on the loop, such as a paired client's."""
        manager = twin.secondary_namespace_manager
        values = {each.name: getattr(twin, each.name) for each in fields(twin)}
        values["secondary_namespace_manager"] = manager and NamespaceManager.of(manager)
        values["messaging_factory"] = MessagingFactory.made_by(lambda: twin.messaging_factory)
        values["backlog_queue_count"] = twin.wanted_queue_count
        made = cls(**values)
        made.found_queues(twin.backlog_queue_count)
        return made

    def twins(self, **changed: Any) -> aio.SendAvailabilityPairedNamespaceOptions:
        """The same for the loop, with other values for some."""
        manager, factory = self.secondary_namespace_manager, self.messaging_factory
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["secondary_namespace_manager"] = None if manager is None else manager.twin
        values["messaging_factory"] = factory.twin
        values["backlog_queue_count"] = self.wanted_queue_count
        return _TwinOptions(self, values | changed)


class _TwinOptions(aio.SendAvailabilityPairedNamespaceOptions):
    """The options on the loop, which pass on what changes: how many queues were found, now or
    later (P19), and the ping interval."""

    def __init__(
        self, shown: SendAvailabilityPairedNamespaceOptions, values: dict[str, Any]
    ) -> None:
        super().__init__(**values)
        self._set("_shown", shown)

    @property
    def shown(self) -> SendAvailabilityPairedNamespaceOptions:
        """Those that the application has."""
        shown: SendAvailabilityPairedNamespaceOptions = self.__dict__["_shown"]
        return shown

    def found_queues(self, count: int) -> None:
        super().found_queues(count)
        self.shown.found_queues(count)

    def set_ping_interval(self, interval: Interval) -> None:
        super().set_ping_interval(interval)
        self.shown.set_ping_interval(interval)
