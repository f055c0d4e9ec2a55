"""MessagingFactory: senders, receivers and clients of one namespace, paired or not.

    async with MessagingFactory.from_connection_string(primary_text) as primary:
        await primary.pair_namespace(options)
        orders = primary.create_queue_client("orders")
        await orders.send(BrokeredMessage(b"..."))

Rule 1: creating a client uses no network; the first call that needs a link opens it.
Rule 2: pairing covers every client of the factory, created before or after (P1); it never changes
        receiving (P15).
Rule 3: after close() or a fault every call ends with FactoryClosed or FactoryFaulted.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from twinbus.common.argument_types import type_shown
from twinbus.common.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.common.entity_path import parse_entity_path
from twinbus.drivers.administration import AdministrationClient, AdministrationEndpoint
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    credential_in,
    credential_of,
)
from twinbus.drivers.interface import Driver, NamespaceAddress, NextSession, ReceiveMode, Sender
from twinbus.drivers.metered import MeteredDriver, metered_sender
from twinbus.errors import ConfigurationError, ConnectionStringError
from twinbus.failover.pair_lifecycle import Side
from twinbus.failover.send_decision import SEND_TIMEOUT_S
from twinbus.failover.state_machine import EntityFailover
from twinbus.metering.client_meter import ClientMeter
from twinbus.metering.log_retention import check_keep_days
from twinbus.pairing.backlog_monitor import QueueBacklog
from twinbus.pairing.backlog_queues import primary_name_of
from twinbus.pairing.client.call_tracker import CallTracker
from twinbus.pairing.client.clients import (
    MessageReceiver,
    MessageSender,
    QueueClient,
    SubscriptionClient,
    TopicClient,
    receiver_path,
)
from twinbus.pairing.client.driver_name import DriverName
from twinbus.pairing.client.environment import Role, read_namespace, variables_of
from twinbus.pairing.client.factory_options import (
    FactoryOptions,
    ca_file_in,
    check_options,
    credential_history_for,
    driver_for,
    driver_for_identity,
    retry_policy_in,
)
from twinbus.pairing.client.namespace_connection import checked_directory, create_client_meter
from twinbus.pairing.events import EventHub, EventStream, Listener
from twinbus.pairing.options import (
    Interval,
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.pair import Pair
from twinbus.pairing.pair_setup import assemble_pair, discover, share_metering, validate_pairing
from twinbus.pairing.paired_sender import PairedSender, SenderRegistry, checked_timeout_s
from twinbus.pairing.routing import Command, EntityHealth, SendRouter, health_of
from twinbus.pairing.send_execution import BROKERED_MESSAGE, ENCODED_BYTES, MessageAdapter

__all__ = ["MessagingFactory"]

R = TypeVar("R", bound=MessageReceiver)

# Sends in progress get this time when their factory is closed; their own deadlines may be longer,
# but close() must return soon.
CLOSE_WAIT_S: Final = 10.0
# An unreachable primary must not delay the start of an application.
NAME_TIMEOUT_S: Final = 10.0
# Where the path of an entity ends and the path of its subscription or subqueue begins.
_OF_AN_ENTITY: Final = re.compile(r"/(?=\$|subscriptions/)")


class MessagingFactory:
    """One namespace, by its host name and a credential of azure-identity.

    FactoryOptions lists the options.
    """

    _entity_path: str | None = None
    _administration: AdministrationClient | None
    """Returns the name of the namespace."""
    configured_name: str | None
    """The name of the namespace as set in the options."""
    _make: Callable[[DriverName], Driver] | None = None
    """Creates another driver for the same namespace."""
    _mover_driver: Driver | None = None
    _pair: Pair | None = None
    _options: SendAvailabilityPairedNamespaceOptions | None = None
    """The options of the pair."""
    _side: Side | None = None
    _ending: asyncio.Task[None] | None = None

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential | IdentityCredential,
        **options: Unpack[FactoryOptions],
    ) -> None:
        driver = driver_for_identity(fully_qualified_namespace, credential, options)
        parsed = namespace_at(fully_qualified_namespace)
        administration = _administration_client(parsed, credential_of(credential), options)
        self._bind(driver, options, administration)
        self._make = lambda name: driver_for_identity(
            fully_qualified_namespace, credential, {**options, "driver": name}
        )

    @classmethod
    def from_connection_string(
        cls, connection_string: str, **options: Unpack[FactoryOptions]
    ) -> Self:
        """A factory with the key or the signature of a connection string."""
        parsed = parse_connection_string(connection_string)
        factory = cls.__new__(cls)
        administration = _administration_client(parsed, credential_in(parsed), options)
        factory._bind(driver_for(parsed, options), options, administration)
        factory._make = lambda name: driver_for(parsed, {**options, "driver": name})
        factory._entity_path = parsed.entity_path
        return factory

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        role: Role = "primary",
        credential: Credential | IdentityCredential | None = None,
        **options: Unpack[FactoryOptions],
    ) -> Self:
        """A factory for the namespace that is set in the environment: with
        SERVICEBUS_CONNECTION_STRING, or SERVICEBUS_FULLY_QUALIFIED_NAMESPACE and a credential;
        for the role ``secondary`` with SERVICEBUS_SECONDARY_CONNECTION_STRING and so on."""
        found = read_namespace(os.environ if environment is None else environment, role)
        if found is not None and found.connection_string is not None:
            return cls.from_connection_string(found.connection_string, **options)
        if found is not None and credential is not None:
            return cls(found.fully_qualified_namespace or "", credential, **options)
        raise ConfigurationError(
            f"The {role} namespace is not set in the environment"
            if found is None
            else f"{found.source} requires a credential",
            hint=f"Set {variables_of(role)[0]}, or pass a credential of azure-identity",
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
        """A factory for an existing driver, for example that of an embedded namespace; the driver
        is closed with the factory. ``management`` returns the name of the namespace, and
        ``lean`` creates an ``amqp`` driver for it."""
        if not isinstance(getattr(port, "address", None), NamespaceAddress):
            raise ConfigurationError(
                f"Invalid value for port: it must be a driver, got {type_shown(port)}",
                hint="Use from_connection_string(), or a driver of twinbus.drivers",
            )
        factory = cls.__new__(cls)
        factory._bind(port, options, management)
        if lean is not None:
            factory._make = lambda name: lean() if name == "amqp" else port
        return factory

    def _bind(
        self, driver: Driver, options: FactoryOptions, administration: AdministrationClient | None
    ) -> None:
        check_options(options)
        self._driver = self._plain_driver = driver
        self._administration = administration
        name = options.get("namespace_name")
        self.configured_name = (
            None if name is None else primary_name_of(driver.address, configured=name)
        )
        metering = options.get("metering")
        meter = self.new_meter(
            None if metering is None else checked_directory(metering),
            options.get("audit", False),
            check_keep_days(options.get("keep_days")),
        )
        history = credential_history_for(
            driver.address, None if administration is None else administration.credential
        )
        self._hub = EventHub(str(driver.address))
        self._calls = CallTracker(str(driver.address))
        self._registry = SenderRegistry(
            self._driver,
            self._calls,
            SendRouter.unpaired(self._hub, retry_policy_in(options), history),
            checked_timeout_s(options.get("operation_timeout", SEND_TIMEOUT_S)),
        )
        self._receivers: set[MessageReceiver] = set()
        self.set_meter(meter)

    def new_meter(
        self, directory: Path | None, audit: bool, keep_days: int | None = None
    ) -> ClientMeter | None:
        """Counts what this client does, in log files of a directory; None without a directory."""
        return create_client_meter(
            self.address,
            directory,
            fetch_name=self.namespace_name,
            name=self.configured_name,
            audit=audit,
            keep_days=keep_days,
        )

    def set_meter(self, meter: ClientMeter | None) -> None:
        """Count with this meter from now on, for existing senders too; it is closed with the
        factory."""
        plain = self._plain_driver
        self.meter = meter
        self._driver = plain if meter is None else MeteredDriver(plain, meter)
        self._registry.set_meter(self._driver, meter)

    @property
    def address(self) -> NamespaceAddress:
        return self._driver.address

    @property
    def driver(self) -> Driver:
        """The driver of the namespace, for code that extends twinbus."""
        return self._driver

    def mover_driver(self, name: DriverName = "amqp") -> Driver:
        """A driver for moving many messages, of the library ``name``; the factory's own driver
        if the factory cannot create another one. It is closed with the factory."""
        if self._mover_driver is None:
            driver = self._plain_driver if self._make is None else self._make(name)
            # These messages were sent before: they are counted again, because they are charged
            # again, but are audited once.
            if self.meter is not None:
                driver = MeteredDriver(driver, self.meter, is_own=False)
            self._mover_driver = driver
        return self._mover_driver

    @property
    def routing(self) -> SendRouter:
        """Where sends go now."""
        return self._registry.routing

    @property
    def known_path(self) -> str | None:
        """One entity that this factory is used for; None if none is known yet."""
        return next(iter(self.known_paths), None)

    @property
    def known_paths(self) -> list[str]:
        """All such entities: those of its senders, and the one in its connection string."""
        own = [] if self._entity_path is None else [parse_entity_path(self._entity_path)]
        return [*self._registry.paths, *own]

    async def namespace_name(self) -> str | None:
        """The name that the namespace reports; None without an administration client."""
        if self._administration is None:
            return None
        return (await self._administration.namespace_info()).name

    # -- clients ------------------------------------------------------------------------------

    def create_queue_client(
        self, path: str, *, receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK, prefetch: int = 0
    ) -> QueueClient:
        """Send to a queue and receive from it."""
        return QueueClient(
            self.create_message_sender(path),
            self.create_message_receiver(path, receive_mode=receive_mode, prefetch=prefetch),
        )

    def create_topic_client(self, path: str) -> TopicClient:
        """Send to a topic."""
        return TopicClient(self.create_paired_sender(path, BROKERED_MESSAGE))

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
        path = f"{parse_entity_path(topic_path)}/Subscriptions/{parse_entity_path(name)}"
        return self._receiver(
            SubscriptionClient, path, receive_mode=receive_mode, prefetch=prefetch, session=session
        )

    def create_message_sender(self, path: str) -> MessageSender:
        """Send to a queue or a topic."""
        return MessageSender(self.create_paired_sender(path, BROKERED_MESSAGE))

    def create_paired_sender(
        self, path: str, kind: MessageAdapter = ENCODED_BYTES, link: Sender | None = None
    ) -> PairedSender:
        """Send encoded messages, or those of another library that ``kind`` adapts; ``link`` is a
        link to the entity that was created with other options."""
        self._calls.check()
        canonical = parse_entity_path(path)
        self._check_scope(canonical, canonical)
        if self.meter is not None:
            link = metered_sender(
                link or self._plain_driver.sender(canonical), self.meter, kind.unpack
            )
        return self._registry.sender(canonical, kind, link)

    def create_message_receiver(
        self,
        path: str,
        *,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> MessageReceiver:
        """Receive from a queue, a subscription or a dead-letter queue (``.../$DeadLetterQueue``).

        ``session`` is the id of a session, or NEXT_SESSION.
        """
        return self._receiver(
            MessageReceiver, path, receive_mode=receive_mode, prefetch=prefetch, session=session
        )

    def _receiver(
        self,
        kind: type[R],
        path: str,
        *,
        receive_mode: ReceiveMode,
        prefetch: int,
        session: str | NextSession | None,
    ) -> R:
        self._calls.check()
        canonical = receiver_path(path)
        self._check_scope(canonical, _OF_AN_ENTITY.split(canonical)[0])
        receiver = kind(
            lambda: self._driver.receiver(
                canonical, mode=receive_mode, prefetch=prefetch, session=session
            ),
            canonical,
            self._calls,
            timeout_s=self._registry.operation_timeout_s,
            forget=self._receivers.discard,
        )
        self._receivers.add(receiver)
        return receiver

    def _check_scope(self, path: str, entity: str) -> None:
        """Refuse another entity than that of the connection string."""
        if self._entity_path is not None and parse_entity_path(self._entity_path) != entity:
            raise ConnectionStringError(
                f"The connection string is for another entity than {path!r}",
                key="EntityPath",
                hint="Use the connection string of the namespace, or one for that entity",
            )

    # -- pairing ------------------------------------------------------------------------------

    @property
    def is_paired(self) -> bool:
        """Whether this factory is the primary of a pair, or pairing is in progress."""
        return self._side is Side.PRIMARY

    @property
    def is_secondary(self) -> bool:
        return self._side is Side.SECONDARY

    async def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """Pair this namespace, as the primary, with the secondary of the options.

        When it returns, every client of this factory is covered. Sends that are called while it
        runs wait for it. An error leaves both factories unchanged.

        Without ``require_secondary`` it returns even if the secondary is unreachable: sends go to
        the primary only, and the pair completes itself when the secondary responds (P19).
        """
        checked = validate_pairing(self, options)
        secondary = checked.messaging_factory
        self._calls.check()
        secondary._calls.check()
        self._side, secondary._side = Side.PRIMARY, Side.SECONDARY
        self._registry.suspend_sends()
        try:
            with share_metering(self, secondary):
                found = await self._calls.track(discover(self, checked))
                secondary._calls.check()  # It may have ended in the meantime.
                pair = assemble_pair(self, checked, found)
        except BaseException:
            self._side = secondary._side = None
            raise
        else:
            self._pair = secondary._pair = pair
            self._options = checked
            self._registry.routing = pair.routing
            pair.start()
        finally:
            self._registry.resume_sends()

    @property
    def paired_namespace_options(self) -> SendAvailabilityPairedNamespaceOptions | None:
        """The current options of the pair; None for a factory that is not a primary."""
        return self._options

    def set_ping_interval(self, interval: Interval) -> None:
        """Change how often diverted entities are pinged: 1 s to 30 minutes, as a timedelta or in
        seconds."""
        self._calls.check()
        if self._options is None:
            raise self._not_paired()
        self._options.set_ping_interval(interval)
        self.routing.set_ping_interval(self._options.ping_primary_interval.total_seconds())

    # -- state and control (P16) --------------------------------------------------------------

    def health(self, path: str) -> EntityHealth:
        """The health of one queue or topic."""
        canonical = parse_entity_path(path)
        return health_of(canonical, self.routing)

    def failovers(self) -> list[EntityHealth]:
        """The health of all entities that this factory has used, the diverted ones first."""
        known = [health_of(path, self.routing) for path in self.routing.entities]
        return sorted(known, key=lambda one: (not one.is_diverted, one.path))

    async def backlog(self) -> list[QueueBacklog]:
        """The content of every backlog queue. Counts require the Manage claim on the secondary,
        the age of the oldest message requires Listen; without the claim a value is None, with the
        reason."""
        return await self._calls.track(self._complete_pair().reader.read())

    def force_failover(self, path: str) -> None:
        """Divert a path, or all of them (``"*"``), without a failure. The first ping is sent
        after one ping interval; use hold() to keep the path diverted for longer."""
        self._command(path, EntityFailover.force)

    def mark_path_healthy(self, path: str) -> None:
        """Send a path (or ``"*"``) to the primary again, whatever its state."""
        self._command(path, EntityFailover.mark_healthy)

    def hold(self, path: str) -> None:
        """Keep a path (or ``"*"``) in its current state, until it is marked healthy or diverted by
        force."""
        self._command(path, EntityFailover.hold)

    def _command(self, path: str, command: Command) -> None:
        self._calls.check()
        self._complete_pair().routing.command(path, command)

    def _complete_pair(self) -> Pair:
        if self._pair is None or self._side is not Side.PRIMARY:
            raise self._not_paired()
        self._pair.check_complete()
        return self._pair

    def _not_paired(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.address} is not the primary of a pair",
            hint="Call pair_namespace() first; a drop-in client pairs in its `with` statement",
        )

    def events(self) -> EventStream:
        """All events from now on, for ``async for``; bounded, see ``dropped``."""
        return self._hub.stream()

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event, on the event loop; returns a function that
        unsubscribes it."""
        return self._hub.subscribe(listener)

    # -- end ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._calls.is_open

    @property
    def is_inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from, and cannot be used."""
        return self._calls.is_inherited

    @property
    def fault_reason(self) -> str | None:
        """Why this factory has faulted; None if it has not (L1)."""
        return self._calls.fault_reason

    async def close(self) -> None:
        """Wait up to 10 s for sends in progress, then close all links and connections.

        A primary that hosts the syphon stops it and closes its secondary as well (L2).
        """
        self._calls.close()
        await self._end()

    async def fault(self, reason: str) -> None:
        """Fault: end every call at once, and close all links and connections. In a pair that
        hosts the syphon the partner faults as well (L1)."""
        self._calls.fault(reason)
        await self._end()

    async def _end(self) -> None:
        """End once for all callers; a cancelled caller does not interrupt it."""
        if self._calls.is_inherited:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._release(), name="twinbus-ending")
        await asyncio.shield(self._ending)

    async def _release(self) -> None:
        async with (
            AsyncExitStack() as stack
        ):  # In reverse order, and all of them even if one fails.
            stack.push_async_callback(self._hub.close)
            if self.meter is not None:
                stack.push_async_callback(asyncio.to_thread, self.meter.close)
            if self._mover_driver is not None:
                stack.push_async_callback(self._mover_driver.close)
            stack.push_async_callback(self._driver.close)
            stack.push_async_callback(self._registry.close_senders)
            for receiver in tuple(self._receivers):
                stack.push_async_callback(receiver.close)
            if self._calls.fault_reason is None:
                await self._calls.drain(wait_s=CLOSE_WAIT_S)
            if self._pair is not None and self._side is not None:
                await self._pair.end_side(self._side, self._calls.fault_reason)

    async def __aenter__(self) -> Self:
        self._calls.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<MessagingFactory {self.address}>"


def _administration_client(
    parsed: ConnectionString, credential: Credential, options: FactoryOptions
) -> AdministrationClient:
    """Returns the name of the namespace if its host name does not contain it (P4)."""
    endpoint = AdministrationEndpoint.of(
        parsed, administration_port=options.get("administration_port")
    )
    return AdministrationClient(
        endpoint, credential, ca_file=ca_file_in(options), timeout_s=NAME_TIMEOUT_S
    )
