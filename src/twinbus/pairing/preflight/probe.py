"""Goes and looks at both namespaces; what it saw is facts.py, what that means is rules.py.

Rule 1: every question has a time limit of its own; one that is not answered is an answer.
Rule 2: what is made is deleted again, also when the looking is cut short.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from twinbus.amqp.message import Message
from twinbus.core.envelope_ping import ping
from twinbus.core.parcel import Parcel
from twinbus.drivers.management import ManagementClient, QueueProperties, TopicProperties
from twinbus.drivers.port import Driver
from twinbus.entity_path import BACKLOG_MARKER
from twinbus.errors import TwinbusError
from twinbus.pairing.backlog_queues import backlog_paths, has_no_name, primary_name_of
from twinbus.pairing.environment import Role
from twinbus.pairing.few_at_once import few_at_once
from twinbus.pairing.preflight.facts import (
    BacklogFacts,
    EntityFacts,
    Expectation,
    Facts,
    NamespaceFacts,
    PingFacts,
)
from twinbus.service_errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServiceInternalError,
)

__all__ = ["Ends", "observe"]

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
class Ends:
    """The two doors of a namespace."""

    driver: Driver
    management: ManagementClient


async def observe(
    primary: Ends,
    secondary: Ends,
    *,
    expectation: Expectation,
    primary_name: str | None = None,
    entities: Sequence[str] = (),
    may_ping: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Facts:
    """Look at everything; raises nothing but what a programmer's mistake raises."""
    name = await _primary_name(primary, primary_name)
    seen = await _entities(primary, entities, timeout_s)
    paths = backlog_paths(name, expectation.backlog_queue_count) if isinstance(name, str) else ()
    backlog = await few_at_once(
        paths, lambda path: _backlog_queue(secondary, path, timeout_s), at_once_max=AT_ONCE_MAX
    )
    facts_of_primary, facts_of_secondary = await asyncio.gather(
        _namespace(primary, "primary", [each.send for each in seen], timeout_s),
        _namespace(secondary, "secondary", [each.send for each in backlog], timeout_s),
    )
    pings = []
    if may_ping and facts_of_primary.amqp is None:
        can_make = facts_of_primary.management is None
        pings = await _pings(primary, entities, can_make=can_make, timeout_s=timeout_s)
    return Facts(
        expectation=expectation,
        primary=facts_of_primary,
        secondary=facts_of_secondary,
        primary_name=name,
        entities=tuple(seen),
        backlog=tuple(backlog),
        pings=tuple(pings),
    )


# -- namespaces ---------------------------------------------------------------------------


async def _namespace(
    ends: Ends, role: Role, attached: Sequence[TwinbusError | None], timeout_s: float
) -> NamespaceFacts:
    knock = await _answer(ends.management.knock())
    info = await _answer(ends.management.namespace_info())
    return NamespaceFacts(
        role=role,
        address=ends.driver.address,
        ip_addresses=await _ip_addresses(ends.driver.address.host),
        amqp=await _amqp(ends.driver, attached, timeout_s),
        management=info if isinstance(info, TwinbusError) else None,
        clock_ahead_s=None if isinstance(knock, TwinbusError) else knock.clock_ahead_s,
    )


async def _amqp(
    driver: Driver, attached: Sequence[TwinbusError | None], timeout_s: float
) -> TwinbusError | None:
    """Whether anybody answers: what was learnt by attaching, or by asking for what is not there."""
    tried = list(attached)
    if not tried:
        error, _limit = await _attached(driver, PROBE_PREFIX + secrets.token_hex(4), timeout_s)
        tried = [error]
    unreached = [error for error in tried if isinstance(error, _UNREACHED)]
    return unreached[0] if len(unreached) == len(tried) else None


async def _ip_addresses(host: str) -> frozenset[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


async def _primary_name(primary: Ends, given: str | None) -> str | TwinbusError:
    told = None
    if given is None and has_no_name(primary.driver.address):
        info = await _answer(primary.management.namespace_info())
        told = None if isinstance(info, TwinbusError) else info.name
    try:
        return primary_name_of(primary.driver.address, given=given, told=told)
    except TwinbusError as error:
        return error


# -- entities -----------------------------------------------------------------------------


async def _entities(primary: Ends, named: Sequence[str], timeout_s: float) -> list[EntityFacts]:
    if named:
        return await few_at_once(
            named, lambda path: _entity(primary, path, timeout_s), at_once_max=AT_ONCE_MAX
        )
    found: list[QueueProperties | TopicProperties] = []
    # With fewer claims, or with nobody there, none are known; the management's check says why.
    with suppress(TwinbusError):
        found += [each async for each in primary.management.list_queues()]
        found += [each async for each in primary.management.list_topics()]
    by_path = {each.path: each for each in found if BACKLOG_MARKER not in each.path}
    chosen = list(by_path)[:ENTITIES_MAX]
    return await few_at_once(
        chosen,
        lambda path: _seen(primary.driver, path, by_path[path], timeout_s),
        at_once_max=AT_ONCE_MAX,
    )


async def _entity(primary: Ends, path: str, timeout_s: float) -> EntityFacts:
    queue = await _answer(primary.management.get_queue(path))
    found: QueueProperties | TopicProperties | TwinbusError | None = queue
    if queue is None:
        found = await _answer(primary.management.get_topic(path))
    properties = None if isinstance(found, TwinbusError) else found
    return await _seen(primary.driver, path, properties, timeout_s)


async def _seen(
    driver: Driver,
    path: str,
    properties: QueueProperties | TopicProperties | None,
    timeout_s: float,
) -> EntityFacts:
    error, limit = await _attached(driver, path, timeout_s)
    return EntityFacts(path=path, properties=properties, send=error, message_bytes_max=limit)


async def _backlog_queue(secondary: Ends, path: str, timeout_s: float) -> BacklogFacts:
    found = await _answer(secondary.management.get_queue(path))
    error, limit = await _attached(secondary.driver, path, timeout_s)
    return BacklogFacts(
        path=path,
        properties=None if isinstance(found, TwinbusError) else found,
        send=error,
        # Who may not even send was told already why, unless it is this one claim.
        listen=None
        if error is not None and not isinstance(error, AccessRefused)
        else await _listen_error(secondary.driver, path, timeout_s),
        message_bytes_max=limit,
    )


async def _attached(
    driver: Driver, path: str, timeout_s: float
) -> tuple[TwinbusError | None, int | None]:
    sender = driver.sender(path)
    try:
        facts = await sender.attach(timeout_s=timeout_s)
        return None, facts.message_bytes_max
    except TwinbusError as error:
        return error, None
    finally:
        await sender.close()


async def _listen_error(driver: Driver, path: str, timeout_s: float) -> TwinbusError | None:
    """Peeking needs Listen and takes nothing away."""
    receiver = driver.receiver(path)
    try:
        await receiver.peek(1, timeout_s=timeout_s)
    except TwinbusError as error:
        return error
    finally:
        await receiver.close()
    return None


# -- pings --------------------------------------------------------------------------------


async def _pings(
    primary: Ends, named: Sequence[str], *, can_make: bool, timeout_s: float
) -> list[PingFacts]:
    if not can_make:
        return [await _pinged(primary.driver, path, timeout_s) for path in named]
    probe = QueueProperties(
        path=PROBE_PREFIX + secrets.token_hex(4), auto_delete_on_idle=PROBE_LIFE
    )
    made = await _answer(primary.management.create_queue(probe))
    if isinstance(made, TwinbusError):
        return [await _pinged(primary.driver, path, timeout_s) for path in named]
    try:
        return [await _pinged(primary.driver, probe.path, timeout_s)]
    finally:
        with suppress(TwinbusError):
            await primary.management.delete_queue(probe.path)


async def _pinged(driver: Driver, path: str, timeout_s: float) -> PingFacts:
    mark = f"twinbus-{secrets.token_hex(16)}"
    sender = driver.sender(path)
    try:
        await sender.send([Parcel(ping(mark))], timeout_s=timeout_s)
    except TwinbusError as error:
        return PingFacts(path=path, error=error)
    finally:
        await sender.close()
    return PingFacts(path=path, was_seen=await _was_seen(driver, path, mark, timeout_s))


async def _was_seen(driver: Driver, path: str, mark: str, timeout_s: float) -> bool | None:
    """Whether the ping stands among the messages; None when that cannot be seen."""
    receiver = driver.receiver(path)
    sequence, looked_at = 1, 0
    try:
        while looked_at < PEEKED_MAX:
            page = await receiver.peek(100, from_sequence=sequence, timeout_s=timeout_s)
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
    properties = Message.decode(encoded).properties
    return None if properties is None else properties.message_id


async def _answer(question: Awaitable[T]) -> T | TwinbusError:
    try:
        return await question
    except TwinbusError as error:
        return error
