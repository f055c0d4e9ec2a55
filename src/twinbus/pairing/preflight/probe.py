"""Collects observations of both namespaces (model.py); checks.py evaluates them.

Rule 1: every request has its own time limit; a timeout is a result.
Rule 2: the probe queue is deleted again, also after a cancellation.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from twinbus.amqp.errors import AmqpError
from twinbus.amqp.message.message import Message
from twinbus.common.entity_path import BACKLOG_MARKER
from twinbus.common.event_loop import bounded_gather
from twinbus.drivers.administration import (
    AdministrationClient,
    NamespaceInfo,
    QueueProperties,
    ReachabilityProbe,
    TopicProperties,
)
from twinbus.drivers.interface import Driver
from twinbus.encoding.ping import ping
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServiceInternalError,
    TwinbusError,
)
from twinbus.pairing.backlog_queues import backlog_paths, primary_name_of
from twinbus.pairing.client.environment import Role
from twinbus.pairing.preflight.model import (
    BacklogFacts,
    EntityFacts,
    ExpectedLoad,
    NamespaceFacts,
    Observations,
    PingFacts,
)

__all__ = ["NamespaceAccess", "collect_observations"]

DEFAULT_TIMEOUT_S: Final = 15.0
AT_ONCE_MAX: Final = 8
# Maximum number of checked entities of the primary, if the caller names none.
ENTITIES_MAX: Final = 100
# At most this many messages are searched for a ping.
PEEKED_MAX: Final = 1_000
PROBE_PREFIX: Final = "twinbus-preflight-"
# The minimum that the service accepts; the probe queue is deleted long before.
PROBE_LIFE: Final = timedelta(minutes=5)

# Errors that mean unreachable over AMQP; all others are answers of the namespace.
_UNREACHABLE: Final = (
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServiceInternalError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """The driver and the administration client of one namespace."""

    driver: Driver
    management: AdministrationClient


async def collect_observations(
    primary: NamespaceAccess,
    secondary: NamespaceAccess,
    *,
    expectation: ExpectedLoad,
    primary_name: str | None = None,
    entities: Sequence[str] = (),
    may_ping: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Observations:
    """Collect all observations; errors of the namespaces are observations, too."""
    primary_probe, secondary_probe = await asyncio.gather(
        _Probe.start(primary, timeout_s), _Probe.start(secondary, timeout_s)
    )
    name = _primary_name(primary_probe, primary_name)
    paths = backlog_paths(name, expectation.backlog_queue_count) if isinstance(name, str) else ()
    seen, backlog = await asyncio.gather(
        _entities(primary_probe, entities),
        bounded_gather(
            paths, partial(_backlog_queue, secondary_probe), concurrency_max=AT_ONCE_MAX
        ),
    )
    facts_of_primary, facts_of_secondary = await asyncio.gather(
        _namespace(primary_probe, "primary", [each.send for each in seen]),
        _namespace(secondary_probe, "secondary", [each.send for each in backlog]),
    )
    can_ping = may_ping and facts_of_primary.amqp is None
    return Observations(
        expectation=expectation,
        primary=facts_of_primary,
        secondary=facts_of_secondary,
        primary_name=name,
        entities=tuple(seen),
        backlog=tuple(backlog),
        pings=tuple(await _pings(primary_probe, entities) if can_ping else ()),
        pings_disabled=not may_ping,
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    """A namespace that is being checked, with the first answers of its administration."""

    driver: Driver
    management: AdministrationClient
    timeout_s: float
    reachability: ReachabilityProbe | TwinbusError
    info: NamespaceInfo | TwinbusError

    @classmethod
    async def start(cls, access: NamespaceAccess, timeout_s: float) -> _Probe:
        reachability = await _answer(access.management.check_reachable(), timeout_s)
        info: NamespaceInfo | TwinbusError
        if isinstance(reachability, TwinbusError):
            info = reachability
        else:
            info = await _answer(access.management.namespace_info(), timeout_s)
        return cls(access.driver, access.management, timeout_s, reachability, info)

    @property
    def can_manage(self) -> bool:
        return not isinstance(self.info, TwinbusError)

    async def run(self, request: Awaitable[T]) -> T | TwinbusError:
        return await _answer(request, self.timeout_s)


# -- namespaces ---------------------------------------------------------------------------


async def _namespace(
    probe: _Probe, role: Role, attached: Sequence[TwinbusError | None]
) -> NamespaceFacts:
    return NamespaceFacts(
        role=role,
        address=probe.driver.address,
        ip_addresses=await _ip_addresses(probe.driver.address.host, probe.timeout_s),
        amqp=await _amqp(probe, attached),
        management=probe.info if isinstance(probe.info, TwinbusError) else None,
        clock_ahead_s=None
        if isinstance(probe.reachability, TwinbusError)
        else probe.reachability.clock_ahead_s,
    )


async def _amqp(probe: _Probe, attached: Sequence[TwinbusError | None]) -> TwinbusError | None:
    """The error if the namespace is unreachable: from earlier attaches, or an attach to a path that
    does not exist."""
    results = list(attached)
    if not results:
        error, _limit = await _attach(probe, PROBE_PREFIX + secrets.token_hex(4))
        results = [error]
    unreachable = [error for error in results if isinstance(error, _UNREACHABLE)]
    return unreachable[0] if len(unreachable) == len(results) else None


async def _ip_addresses(host: str, timeout_s: float) -> frozenset[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # Includes TimeoutError.
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


def _primary_name(probe: _Probe, configured: str | None) -> str | TwinbusError:
    reported = None if isinstance(probe.info, TwinbusError) else probe.info.name
    try:
        return primary_name_of(probe.driver.address, configured=configured, reported=reported)
    except TwinbusError as error:
        return error


# -- entities -----------------------------------------------------------------------------


async def _entities(probe: _Probe, named: Sequence[str]) -> list[EntityFacts]:
    if named:
        return await bounded_gather(named, partial(_entity, probe), concurrency_max=AT_ONCE_MAX)
    found = await probe.run(_list_entities(probe.management)) if probe.can_manage else []
    if isinstance(found, TwinbusError):
        return []  # None are known; the check of the administration reports why.

    async def observe(properties: QueueProperties | TopicProperties) -> EntityFacts:
        return await _observe(probe, properties.path, properties)

    return await bounded_gather(found, observe, concurrency_max=AT_ONCE_MAX)


async def _list_entities(
    management: AdministrationClient,
) -> list[QueueProperties | TopicProperties]:
    """The first of the entities that applications use."""
    found: list[QueueProperties | TopicProperties] = []
    found += [each async for each in management.list_queues()]
    found += [each async for each in management.list_topics()]
    return [each for each in found if BACKLOG_MARKER not in each.path][:ENTITIES_MAX]


async def _entity(probe: _Probe, path: str) -> EntityFacts:
    found: QueueProperties | TopicProperties | TwinbusError | None = None
    if probe.can_manage:
        found = await probe.run(probe.management.get_queue(path))
        if found is None:
            found = await probe.run(probe.management.get_topic(path))
    return await _observe(probe, path, None if isinstance(found, TwinbusError) else found)


async def _observe(
    probe: _Probe, path: str, properties: QueueProperties | TopicProperties | None
) -> EntityFacts:
    error, limit = await _attach(probe, path)
    return EntityFacts(path=path, properties=properties, send=error, message_bytes_max=limit)


async def _backlog_queue(probe: _Probe, path: str) -> BacklogFacts:
    found: QueueProperties | TwinbusError | None = None
    if probe.can_manage:
        found = await probe.run(probe.management.get_queue(path))
    send, limit = await _attach(probe, path)
    listen = None
    # Listen may be granted without Send; any other error would be reported twice.
    if send is None or isinstance(send, AccessRefused):
        listen = await _listen_error(probe, path)
    return BacklogFacts(
        path=path,
        properties=None if isinstance(found, TwinbusError) else found,
        send=send,
        listen=listen,
        message_bytes_max=limit,
    )


async def _attach(probe: _Probe, path: str) -> tuple[TwinbusError | None, int | None]:
    sender = probe.driver.sender(path)
    try:
        facts = await sender.attach(timeout_s=probe.timeout_s)
        return None, facts.message_bytes_max
    except TwinbusError as error:
        return error, None
    finally:
        await sender.close()


async def _listen_error(probe: _Probe, path: str) -> TwinbusError | None:
    """A peek requires Listen and removes nothing."""
    receiver = probe.driver.receiver(path)
    try:
        await receiver.peek(1, timeout_s=probe.timeout_s)
    except TwinbusError as error:
        return error
    finally:
        await receiver.close()
    return None


# -- pings --------------------------------------------------------------------------------


async def _pings(probe: _Probe, named: Sequence[str]) -> list[PingFacts]:
    """Ping a probe queue for the whole namespace; without Manage, the named entities."""
    queue = QueueProperties(
        path=PROBE_PREFIX + secrets.token_hex(4), auto_delete_on_idle=PROBE_LIFE
    )
    created = (
        await probe.run(probe.management.create_queue(queue)) if probe.can_manage else probe.info
    )
    if isinstance(created, TwinbusError):
        return [await _ping(probe, path) for path in named]
    try:
        return [await _ping(probe, queue.path)]
    finally:
        await probe.run(probe.management.delete_queue(queue.path))


async def _ping(probe: _Probe, path: str) -> PingFacts:
    mark = f"twinbus-{secrets.token_hex(16)}"
    sender = probe.driver.sender(path)
    try:
        await sender.send([OutgoingMessage(ping(mark))], timeout_s=probe.timeout_s)
    except TwinbusError as error:
        return PingFacts(path=path, error=error)
    finally:
        await sender.close()
    return PingFacts(path=path, was_seen=await _is_visible(probe, path, mark))


async def _is_visible(probe: _Probe, path: str, mark: str) -> bool | None:
    """Whether the ping is among the messages; None if that cannot be checked."""
    receiver = probe.driver.receiver(path)
    sequence, peeked_count = 1, 0
    try:
        while peeked_count < PEEKED_MAX:
            page = await receiver.peek(100, from_sequence=sequence, timeout_s=probe.timeout_s)
            if not page:
                return False
            if any(_mark_of(each.encoded) == mark for each in page):
                return True
            peeked_count += len(page)
            sequence = page[-1].sequence_number + 1
    except TwinbusError:
        return None  # A topic, or the Listen claim is missing.
    finally:
        await receiver.close()
    return None


def _mark_of(encoded: bytes) -> object:
    try:
        properties = Message.decode(encoded).properties
    except AmqpError:
        return None  # A message of another application.
    return None if properties is None else properties.message_id


async def _answer(request: Awaitable[T], timeout_s: float) -> T | TwinbusError:
    try:
        async with asyncio.timeout(timeout_s):
            return await request
    except TwinbusError as error:
        return error
    except TimeoutError:
        return OperationTimeout(
            f"The administration did not respond within {timeout_s:g} s",
            hint="Check the HTTP port and the firewall",
        )
