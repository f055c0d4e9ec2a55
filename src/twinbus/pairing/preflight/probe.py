"""Goes and looks at both namespaces; what it saw is model.py, what that means is checks.py.

Rule 1: every question has a time limit of its own; one that is not answered is an answer.
Rule 2: what is made is deleted again, also when the looking is cut short.
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
# Without names given, so many of the primary's entities are looked at: enough to see a pattern.
ENTITIES_MAX: Final = 100
# A ping in a queue with more messages than that is not looked for.
PEEKED_MAX: Final = 1_000
PROBE_PREFIX: Final = "twinbus-preflight-"
# The shortest that the service takes; the probe queue is gone long before.
PROBE_LIFE: Final = timedelta(minutes=5)

# What says that nobody is there for messages; everything else is an answer of somebody who is.
_UNREACHED: Final = (
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServiceInternalError,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NamespaceAccess:
    """The two doors of a namespace."""

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
    """Look at everything; raises nothing but what a programmer's mistake raises."""
    ours, theirs = await asyncio.gather(
        _Probe.at(primary, timeout_s), _Probe.at(secondary, timeout_s)
    )
    name = _primary_name(ours, primary_name)
    paths = backlog_paths(name, expectation.backlog_queue_count) if isinstance(name, str) else ()
    seen, backlog = await asyncio.gather(
        _entities(ours, entities),
        bounded_gather(paths, partial(_backlog_queue, theirs), concurrency_max=AT_ONCE_MAX),
    )
    facts_of_primary, facts_of_secondary = await asyncio.gather(
        _namespace(ours, "primary", [each.send for each in seen]),
        _namespace(theirs, "secondary", [each.send for each in backlog]),
    )
    can_ping = may_ping and facts_of_primary.amqp is None
    return Observations(
        expectation=expectation,
        primary=facts_of_primary,
        secondary=facts_of_secondary,
        primary_name=name,
        entities=tuple(seen),
        backlog=tuple(backlog),
        pings=tuple(await _pings(ours, entities) if can_ping else ()),
        pings_left_out=not may_ping,
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    """A namespace while it is looked at: its doors, and what the management said first."""

    driver: Driver
    management: AdministrationClient
    timeout_s: float
    knock: ReachabilityProbe | TwinbusError
    info: NamespaceInfo | TwinbusError

    @classmethod
    async def at(cls, ends: NamespaceAccess, timeout_s: float) -> _Probe:
        knock = await _answer(ends.management.check_reachable(), timeout_s)
        info: NamespaceInfo | TwinbusError
        if isinstance(knock, TwinbusError):
            info = knock
        else:
            info = await _answer(ends.management.namespace_info(), timeout_s)
        return cls(ends.driver, ends.management, timeout_s, knock, info)

    @property
    def can_manage(self) -> bool:
        return not isinstance(self.info, TwinbusError)

    async def ask(self, question: Awaitable[T]) -> T | TwinbusError:
        return await _answer(question, self.timeout_s)


# -- namespaces ---------------------------------------------------------------------------


async def _namespace(
    look: _Probe, role: Role, attached: Sequence[TwinbusError | None]
) -> NamespaceFacts:
    return NamespaceFacts(
        role=role,
        address=look.driver.address,
        ip_addresses=await _ip_addresses(look.driver.address.host, look.timeout_s),
        amqp=await _amqp(look, attached),
        management=look.info if isinstance(look.info, TwinbusError) else None,
        clock_ahead_s=None if isinstance(look.knock, TwinbusError) else look.knock.clock_ahead_s,
    )


async def _amqp(look: _Probe, attached: Sequence[TwinbusError | None]) -> TwinbusError | None:
    """Whether anybody answers: what was learnt by attaching, or by asking for what is not there."""
    tried = list(attached)
    if not tried:
        error, _limit = await _attached(look, PROBE_PREFIX + secrets.token_hex(4))
        tried = [error]
    unreached = [error for error in tried if isinstance(error, _UNREACHED)]
    return unreached[0] if len(unreached) == len(tried) else None


async def _ip_addresses(host: str, timeout_s: float) -> frozenset[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # A TimeoutError is one, too.
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


def _primary_name(look: _Probe, given: str | None) -> str | TwinbusError:
    told = None if isinstance(look.info, TwinbusError) else look.info.name
    try:
        return primary_name_of(look.driver.address, given=given, told=told)
    except TwinbusError as error:
        return error


# -- entities -----------------------------------------------------------------------------


async def _entities(look: _Probe, named: Sequence[str]) -> list[EntityFacts]:
    if named:
        return await bounded_gather(named, partial(_entity, look), concurrency_max=AT_ONCE_MAX)
    found = await look.ask(_listed(look.management)) if look.can_manage else []
    if isinstance(found, TwinbusError):
        return []  # With nobody there none are known; the management's check says why.

    async def seen(properties: QueueProperties | TopicProperties) -> EntityFacts:
        return await _seen(look, properties.path, properties)

    return await bounded_gather(found, seen, concurrency_max=AT_ONCE_MAX)


async def _listed(management: AdministrationClient) -> list[QueueProperties | TopicProperties]:
    """The first of the entities that applications use."""
    found: list[QueueProperties | TopicProperties] = []
    found += [each async for each in management.list_queues()]
    found += [each async for each in management.list_topics()]
    return [each for each in found if BACKLOG_MARKER not in each.path][:ENTITIES_MAX]


async def _entity(look: _Probe, path: str) -> EntityFacts:
    found: QueueProperties | TopicProperties | TwinbusError | None = None
    if look.can_manage:
        found = await look.ask(look.management.get_queue(path))
        if found is None:
            found = await look.ask(look.management.get_topic(path))
    return await _seen(look, path, None if isinstance(found, TwinbusError) else found)


async def _seen(
    look: _Probe, path: str, properties: QueueProperties | TopicProperties | None
) -> EntityFacts:
    error, limit = await _attached(look, path)
    return EntityFacts(path=path, properties=properties, send=error, message_bytes_max=limit)


async def _backlog_queue(look: _Probe, path: str) -> BacklogFacts:
    found: QueueProperties | TwinbusError | None = None
    if look.can_manage:
        found = await look.ask(look.management.get_queue(path))
    send, limit = await _attached(look, path)
    listen = None
    # Whoever may not send may still listen; all other trouble would only be told twice.
    if send is None or isinstance(send, AccessRefused):
        listen = await _listen_error(look, path)
    return BacklogFacts(
        path=path,
        properties=None if isinstance(found, TwinbusError) else found,
        send=send,
        listen=listen,
        message_bytes_max=limit,
    )


async def _attached(look: _Probe, path: str) -> tuple[TwinbusError | None, int | None]:
    sender = look.driver.sender(path)
    try:
        facts = await sender.attach(timeout_s=look.timeout_s)
        return None, facts.message_bytes_max
    except TwinbusError as error:
        return error, None
    finally:
        await sender.close()


async def _listen_error(look: _Probe, path: str) -> TwinbusError | None:
    """Peeking needs Listen and takes nothing away."""
    receiver = look.driver.receiver(path)
    try:
        await receiver.peek(1, timeout_s=look.timeout_s)
    except TwinbusError as error:
        return error
    finally:
        await receiver.close()
    return None


# -- pings --------------------------------------------------------------------------------


async def _pings(look: _Probe, named: Sequence[str]) -> list[PingFacts]:
    """A queue of our own tells it for the whole namespace; without Manage, the named ones do."""
    probe = QueueProperties(
        path=PROBE_PREFIX + secrets.token_hex(4), auto_delete_on_idle=PROBE_LIFE
    )
    made = await look.ask(look.management.create_queue(probe)) if look.can_manage else look.info
    if isinstance(made, TwinbusError):
        return [await _pinged(look, path) for path in named]
    try:
        return [await _pinged(look, probe.path)]
    finally:
        await look.ask(look.management.delete_queue(probe.path))


async def _pinged(look: _Probe, path: str) -> PingFacts:
    mark = f"twinbus-{secrets.token_hex(16)}"
    sender = look.driver.sender(path)
    try:
        await sender.send([OutgoingMessage(ping(mark))], timeout_s=look.timeout_s)
    except TwinbusError as error:
        return PingFacts(path=path, error=error)
    finally:
        await sender.close()
    return PingFacts(path=path, was_seen=await _was_seen(look, path, mark))


async def _was_seen(look: _Probe, path: str, mark: str) -> bool | None:
    """Whether the ping stands among the messages; None when that cannot be seen."""
    receiver = look.driver.receiver(path)
    sequence, looked_at = 1, 0
    try:
        while looked_at < PEEKED_MAX:
            page = await receiver.peek(100, from_sequence=sequence, timeout_s=look.timeout_s)
            if not page:
                return False
            if any(_mark_of(each.encoded) == mark for each in page):
                return True
            looked_at += len(page)
            sequence = page[-1].sequence_number + 1
    except TwinbusError:
        return None  # A topic, or the claim Listen is missing.
    finally:
        await receiver.close()
    return None


def _mark_of(encoded: bytes) -> object:
    try:
        properties = Message.decode(encoded).properties
    except AmqpError:
        return None  # Somebody else's message, whatever it is.
    return None if properties is None else properties.message_id


async def _answer(question: Awaitable[T], timeout_s: float) -> T | TwinbusError:
    try:
        async with asyncio.timeout(timeout_s):
            return await question
    except TwinbusError as error:
        return error
    except TimeoutError:
        return OperationTimeout(
            f"the management gave no answer within {timeout_s:g} s",
            hint="Check its port for HTTP, and the firewall",
        )
