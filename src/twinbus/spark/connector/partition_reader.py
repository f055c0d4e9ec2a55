"""Reads one order in a task: first the messages that earlier runs of it have received, then more.

    begin --> known messages, peeked by their numbers --> receive, report, yield ... --> seal

Messages of earlier runs are locked, so no other receiver gets them and they do not change: a peek
returns them as they were received. lock_ledger.py gives the reasons for the order of the steps.

Rule 1: known messages come in the order in which they were received.
Rule 2: a known message that is not found (its lock ended, and another receiver has taken it) is
        reported as missing, so that it is not settled with the others.
Rule 3: messages are reported before they are yielded; those that could not be reported are
        abandoned.
Rule 4: a queue that cannot be received from ends the order early and is not a failure: the messages
        stay in the queue, and the coordinator's long poll continues. Permanent errors are raised.
Rule 5: a link receives LINK_MESSAGES_MAX messages. The service delivers no more on one link while
        these are unsettled; locks outlive the link, so the next link continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from uuid import uuid4

from twinbus.common.clock import Clock, SystemClock
from twinbus.drivers.interface import Driver, ReceiveMode, Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    ConfigurationError,
    EntityNotFound,
    MessageRefused,
    ServiceError,
    TwinbusError,
)
from twinbus.spark.connector.lock_ledger import ReadPermission
from twinbus.spark.connector.partition_plan import PartitionPlan
from twinbus.spark.driver_channel import DriverChannelClient

__all__ = [
    "PERMANENT_ERRORS",
    "LockedMessageReader",
    "PartitionReader",
    "WarmReceiver",
    "explain_error",
    "lock_left_s",
]

PEEK_COUNT: Final = 250
PEEK_TIMEOUT_S: Final = 30.0
CHUNK_COUNT_MAX: Final = 500


class LockedMessageReader:
    """The known messages of one order."""

    def __init__(
        self, receiver: Receiver, tokens: Mapping[int, bytes], handed: ReceivedMessage | None
    ) -> None:
        """``tokens`` by sequence number; ``handed`` is the one that needs no peek."""
        self._receiver = receiver
        self._tokens = dict(tokens)
        self._numbers = list(tokens)
        self._here: dict[int, ReceivedMessage] = {}
        if handed is not None:
            self._here[handed.sequence_number] = handed
        self.missing: list[int] = []

    def include_deleted(self) -> None:
        """The message that needs no peek has no lock, and is read all the same."""
        self._numbers = list(self._here)
        self._tokens = dict.fromkeys(self._here, b"")

    async def chunk(self) -> list[ReceivedMessage]:
        """The next messages; none when there are no more."""
        while self._numbers:
            numbers, self._numbers = (
                self._numbers[:CHUNK_COUNT_MAX],
                self._numbers[CHUNK_COUNT_MAX:],
            )
            await self._look_up(sorted(set(numbers) - self._here.keys()))
            self.missing += [each for each in numbers if each not in self._here]
            found = [self._here.pop(each) for each in numbers if each in self._here]
            if found:
                return [m._replace(lock_token=self._tokens[m.sequence_number]) for m in found]
        return []

    async def _look_up(self, numbers: list[int]) -> None:
        """Page through the queue from one wanted number to the next."""
        wanted = set(numbers)
        first = 0
        while first < len(numbers):
            page = await self._receiver.peek(
                min(PEEK_COUNT, len(numbers) - first),
                from_sequence=numbers[first],
                timeout_s=PEEK_TIMEOUT_S,
            )
            for message in page:
                if message.sequence_number in wanted:
                    self._here[message.sequence_number] = message
            if not page:
                return
            seen = max(each.sequence_number for each in page)
            while first < len(numbers) and numbers[first] <= seen:
                first += 1


_LOG = logging.getLogger("twinbus.spark")

RECEIVE_WAIT_S: Final = 0.1
"""A queue without messages for this long counts as empty for this batch."""
RECEIVE_WAIT_S_MAX: Final = 1.0
"""The same when the service has a long response time."""
ANSWER_S: Final = 0.02
"""The usual response time of a service in the same network, beyond the requested wait."""

CHUNK_BYTES: Final = 4 << 20
MESSAGE_BYTES_GUESSED: Final = 16 << 10
LINK_MESSAGES_MAX: Final = 2_000
ABANDON_TIMEOUT_S: Final = 10.0
ALIVE_INTERVAL_S: Final = 1.0
WAIT_INTERVAL_S: Final = 0.2
WAIT_LOG_INTERVAL_S: Final = 60.0
"""How often a task logs that it waits for another one, which reads the same order."""
WAIT_S_MAX: Final = 900.0
"""How long the other one may make no progress. With a slow consumer of its rows it needs minutes
for a chunk; if it waits for this one, in the same task, it would never make progress."""
LOCK_S_USUAL: Final = 30.0

PERMANENT_ERRORS: Final = (EntityNotFound, AccessRefused, AuthenticationFailed, MessageRefused)
"""Errors that waiting does not change."""


class WarmReceiver:
    """Receives from one link, and waits for messages and not for the link to open."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._is_open = False

    async def receive(self, receiver: Receiver, count_max: int) -> list[ReceivedMessage]:
        """Up to ``count_max`` messages; none when the queue is empty for now."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        messages = await receiver.receive(count_max, wait_s=self._wait_s)
        if self._is_open:
            return messages
        self._is_open = True
        took_s = loop.time() - began_s
        # The first receive opens the link, and may have had no time left to wait.
        has_waited = took_s <= self._wait_s + ANSWER_S
        self._wait_s = min(max(self._wait_s, took_s / 2), RECEIVE_WAIT_S_MAX)
        if messages or has_waited:
            return messages
        return await receiver.receive(count_max, wait_s=self._wait_s)


class PartitionReader:
    """Reads one order, in the running event loop; used by ``async with``."""

    def __init__(
        self,
        driver: Driver,
        order: PartitionPlan,
        *,
        deletes: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._order = order
        self._mode = ReceiveMode.RECEIVE_AND_DELETE if deletes else ReceiveMode.PEEK_LOCK
        self._clock = clock or SystemClock()
        self._channel = DriverChannelClient(order.channel)
        self._name = uuid4().hex
        self._stack = AsyncExitStack()
        self._receiver: Receiver = driver.receiver(order.path, mode=self._mode)
        self._on_link = 0
        self._patience = WarmReceiver(RECEIVE_WAIT_S)
        self._count = 0
        self._bytes = 0
        self._is_sealed = False
        self._is_at_end = False
        self._earlier: LockedMessageReader | None = None
        self._alive: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PartitionReader:
        await self._stack.enter_async_context(self._channel)
        self._stack.push_async_callback(self._leave)
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        answer = await self._turn()
        self._is_sealed = bool(answer["is_sealed"])
        known = {int(n): bytes.fromhex(token) for n, token in answer["known"]}
        self._earlier = LockedMessageReader(self._receiver, known, self._order.handed)
        if self._mode is ReceiveMode.RECEIVE_AND_DELETE:
            self._earlier.include_deleted()
        self._alive = asyncio.create_task(self._stay_alive(), name="alive")

    async def _turn(self) -> dict[str, Any]:
        """Wait while another task reads this order and makes progress."""
        progress = ""
        moved_s = self._clock.now().monotonic_s
        log_at_s = moved_s + WAIT_LOG_INTERVAL_S
        while True:
            answer = await self._ask("begin")
            turn = ReadPermission(answer["turn"])
            if turn is ReadPermission.GO:
                return answer
            if turn is not ReadPermission.WAIT:
                raise _refused(turn, self._order)
            now_s = self._clock.now().monotonic_s
            if answer["progress"] != progress:
                progress, moved_s = answer["progress"], now_s
            if now_s - moved_s >= WAIT_S_MAX:
                raise _stuck(self._order)
            if now_s >= log_at_s:
                log_at_s += WAIT_LOG_INTERVAL_S
                _LOG.warning(
                    "A task is still waiting for another task that reads the same part of %r",
                    self._order.path,
                )
            await asyncio.sleep(WAIT_INTERVAL_S)

    # -- chunks ---------------------------------------------------------------------------

    async def chunk(self) -> list[ReceivedMessage]:
        """The next messages; none at the end of the order."""
        messages = await self._known_chunk()
        if not messages and not self._is_sealed and not self._is_at_end:
            messages = await self._new_chunk()
        self._count += len(messages)
        self._bytes += sum(len(each.encoded) for each in messages)
        return messages

    async def finish(self) -> None:
        """Seal the order, because everything was read: it is settled when its batch is written."""
        if not self._is_sealed:
            self._is_sealed = await self._ask_as_owner("sealed")

    async def _known_chunk(self) -> list[ReceivedMessage]:
        assert self._earlier is not None
        messages = await self._earlier.chunk()
        if self._earlier.missing:
            await self._ask("missing", numbers=self._earlier.missing)
            self._earlier.missing = []
        return messages

    async def _new_chunk(self) -> list[ReceivedMessage]:
        wanted = self._wanted()
        if wanted <= 0:
            return []
        try:
            await self._change_link(wanted)
            messages = await self._patience.receive(self._receiver, wanted)
        except PERMANENT_ERRORS:
            raise
        except ServiceError:
            return []
        self._on_link += len(messages)
        until_ms = self._order.enqueued_until_ms
        if until_ms is not None:
            self._is_at_end = any((each.enqueued_at_ms or 0) > until_ms for each in messages)
        if messages and self._mode is ReceiveMode.PEEK_LOCK:
            await self._report(messages)
        elif messages:
            await self._ask("deleted", count=len(messages))
        return messages

    def _wanted(self) -> int:
        share = self._order.share
        usual = self._bytes // self._count if self._count else MESSAGE_BYTES_GUESSED
        room = min(CHUNK_BYTES, share.bytes_max - self._bytes)
        if room <= 0:
            return 0
        fitting = max(1, room // max(1, usual))
        return min(CHUNK_COUNT_MAX, fitting, share.messages_max - self._count)

    async def _change_link(self, wanted: int) -> None:
        if self._on_link + wanted > LINK_MESSAGES_MAX and self._mode is ReceiveMode.PEEK_LOCK:
            old, self._on_link = self._receiver, 0
            self._patience = WarmReceiver(RECEIVE_WAIT_S)
            self._receiver = self._driver.receiver(self._order.path, mode=self._mode)
            with suppress(ServiceError):
                await old.close()

    async def _report(self, messages: list[ReceivedMessage]) -> None:
        locks = [[each.sequence_number, each.lock_token.hex()] for each in messages]
        lock_s = lock_left_s(messages, self._clock.now().wall_ms)
        is_taken = False
        try:
            is_taken = await self._ask_as_owner(
                "received", path=self._order.path, locks=locks, lock_s=lock_s
            )
        finally:
            if not is_taken:
                with suppress(ServiceError):  # Their locks end by themselves.
                    await self._receiver.abandon(messages, timeout_s=ABANDON_TIMEOUT_S)

    # -- reports to the driver ------------------------------------------------------------

    async def _ask(self, kind: str, **facts: Any) -> dict[str, Any]:
        return await self._channel.ask(kind, order=self._order.order_id, reader=self._name, **facts)

    async def _ask_as_owner(self, kind: str, **facts: Any) -> bool:
        """Send a report that only the owner may send; raises if this reader is not the owner."""
        if not (await self._ask(kind, **facts))["is_taken"]:
            raise _refused(ReadPermission.OVER, self._order)
        return True

    async def _stay_alive(self) -> None:
        with suppress(ServiceError):  # The next report raises the same error.
            while True:
                await asyncio.sleep(ALIVE_INTERVAL_S)
                await self._ask("alive", count=self._count)

    async def _leave(self) -> None:
        if self._alive is not None:
            self._alive.cancel()
        with suppress(ServiceError):
            await self._receiver.close()
        if not self._is_sealed:
            with suppress(ServiceError):
                await self._ask("left")


def lock_left_s(messages: Sequence[ReceivedMessage], now_ms: int) -> float:
    """How long their locks last. This machine's clock may be behind the service's, which is at
    least the time at which the newest of them was enqueued."""
    ends = [each.locked_until_ms for each in messages if each.locked_until_ms is not None]
    now_ms = max(now_ms, *(each.enqueued_at_ms or 0 for each in messages))
    return (min(ends) - now_ms) / 1000 if ends else LOCK_S_USUAL


def _stuck(order: PartitionPlan) -> ServiceError:
    return MessageRefused(
        f"A task has waited {WAIT_S_MAX / 60:.0f} minutes for another task that reads the same "
        f"part of {order.path!r} and makes no progress",
        hint="If the plan contains the source twice, use foreachBatch and persist() the batch",
    )


def _refused(turn: ReadPermission, order: PartitionPlan) -> ServiceError:
    if turn is ReadPermission.DELETED:
        return MessageRefused(
            f"A batch of messages from {order.path!r} cannot be read twice: they were deleted when "
            "they were received",
            hint="Use receiveMode=peekLock, or read each batch once and persist() it",
        )
    return MessageRefused(
        f"A part of {order.path!r} is read by another task now, so this task has ended",
        hint="No action is needed: the other task reads the messages",
    )


def explain_error(path: str, error: ServiceError) -> TwinbusError:
    """The error of a queue that cannot be received from, in terms of the connector's options."""
    if isinstance(error, MessageRefused) and "session" in str(error):
        return ConfigurationError(
            f'{path!r} requires sessions, which format("servicebus") does not support',
            hint="Read from a queue or subscription without sessions",
        )
    return error
