"""Moves the messages of one backlog queue, chunk by chunk, and renews their locks meanwhile.

    receive()           a chunk of the queue
    move()              restore it, send it, complete what was accepted
    move_prefetched()   the same with messages that another receiver has locked
    retry_deferred()    receive deferred messages by number, once their destinations may be tried
    scan_deferred()     find deferred messages, of any mover, in the queue
    dry_run()           peek at what would be moved; nothing is received

Rule 1: all of them may run at the same time, here and in other processes: a message has one lock
        (Y5).
Rule 2: ``on_receipts`` gets the receipts also of a chunk that was cancelled, so that every second
        copy on the primary was announced by a receipt.
Rule 3: nearly every chunk ends in a fraction of its lock. So only a timer is started for it; a
        chunk that takes longer than half of its lock gets a task that renews.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from twinbus.common.clock import Clock
from twinbus.common.event_loop import bounded_gather
from twinbus.drivers.interface import Driver, Receiver
from twinbus.encoding.pair_mark import shared_scan_s
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import MessageNotFound, MessageTooLarge, ServiceError
from twinbus.mover.backlog_scan import PAGE_COUNT, find_deferred, pages
from twinbus.mover.chunk_transfer import PRIMARY, ChunkTransfer
from twinbus.mover.destination_senders import DestinationSenders
from twinbus.mover.in_flight_limit import InFlightLimit
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_ledger import ChunkLedger, MoverIdentity
from twinbus.mover.planning.chunk_plan import ChunkPlan, plan_chunk
from twinbus.mover.planning.circuit_breaker import DestinationCircuits, SendPermission
from twinbus.mover.planning.deferred_messages import DeferredMessages
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome
from twinbus.mover.planning.scan_pace import ScanPace

__all__ = ["GroupResources", "OnReceipts", "QueueMover", "renew_locks"]

# The lock of a backlog queue (P4). The clock of the service may differ from ours, so the end of a
# lock that it states is used only within these limits.
LOCK_S_MAX: Final = 60.0
LOCK_S_MIN: Final = 2.0


def remaining_lock_s(deliveries: Sequence[ReceivedMessage], now_ms: int) -> float:
    """How long the locks of a chunk last from now, within the limits above."""
    ends_ms = [each.locked_until_ms for each in deliveries if each.locked_until_ms is not None]
    left_s = (min(ends_ms) - now_ms) / 1000 if ends_ms else LOCK_S_MAX
    return min(LOCK_S_MAX, max(LOCK_S_MIN, left_s))


@asynccontextmanager
async def renew_locks(
    receiver: Receiver, ledger: ChunkLedger, *, lock_s: float, timeout_s: float
) -> AsyncIterator[None]:
    """Renew the locks of unsettled messages, every half of the lock, until the block is left."""
    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(asyncio.create_task(_renew(receiver, ledger, lock_s / 2, timeout_s)))

    timer = asyncio.get_running_loop().call_later(lock_s / 2, begin)
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _renew(
    receiver: Receiver, ledger: ChunkLedger, interval_s: float, timeout_s: float
) -> None:
    while not ledger.is_closed:
        # A lost lock or connection is detected when the message is settled.
        with suppress(ServiceError):
            await receiver.renew(ledger.unsettled, timeout_s=timeout_s)
        await asyncio.sleep(interval_s)


OnReceipts = Callable[[Sequence[Receipt]], object]

PROBE_COUNT: Final = 10
# Destinations that are retried at the same time: few enough for their messages to fit in memory.
PATHS_AT_ONCE_MAX: Final = 16
# The first chunk of a queue, before the size of its messages is known.
FIRST_CHUNK_COUNT: Final = 100
_SETTLED: Final = frozenset({ReceiptOutcome.MOVED, ReceiptOutcome.DEAD_LETTERED})


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResources:
    """What all queues of one mover have in common."""

    secondary: Driver
    senders: DestinationSenders
    circuits: DestinationCircuits
    in_flight: InFlightLimit
    options: MoverOptions
    clock: Clock
    on_receipts: OnReceipts
    scan_pace: ScanPace


class QueueMover:
    """One backlog queue, and the numbers of its deferred messages."""

    def __init__(self, shared: GroupResources, queue: str) -> None:
        self.queue = queue
        self.deferred = DeferredMessages()
        self.received_count = 0
        self._shared = shared
        self._identity = MoverIdentity(queue, socket.gethostname(), os.getpid())
        self._receiver = shared.secondary.receiver(queue)
        self._receiving = asyncio.Lock()
        self._scanning = asyncio.Lock()
        self._next_scan_s = 0.0
        self._scanned_s = -inf
        self.foreign_count = 0
        """Messages of other pairs that were received here (P21)."""
        self._count = min(FIRST_CHUNK_COUNT, self._count_max)

    @property
    def _count_max(self) -> int:
        # At a limited rate a chunk is what may be moved in a second: no bursts.
        options = self._shared.options
        return min(options.chunk_count, ceil(options.rate_per_s or options.chunk_count))

    async def receive(self, *, wait_s: float) -> list[ReceivedMessage]:
        """A chunk, as soon as there is something; empty after ``wait_s``."""
        # One receive at a time: an idle queue costs one long poll, however many chunks may be in
        # progress (Y3).
        async with self._receiving:
            deliveries = await self._receiver.receive(self._count, wait_s=wait_s)
        if deliveries:
            self.received_count += len(deliveries)
            self._adapt(deliveries)
        return deliveries

    async def move(self, deliveries: Sequence[ReceivedMessage]) -> list[Receipt]:
        """Send a chunk to its destinations and settle it: a receipt for each message."""
        return await self._move(deliveries)

    async def move_prefetched(self, deliveries: Sequence[ReceivedMessage]) -> list[Receipt]:
        """move() for messages that another receiver has locked; those whose lock is lost are not
        moved."""
        now_ms = self._shared.clock.now().wall_ms
        old = [each for each in deliveries if remaining_lock_s([each], now_ms) < LOCK_S_MAX / 3]
        lost = await self._renew(old)
        released = self._report_released(lost, "its lock was lost before it was moved")
        renewed = {id(each) for each in old}
        ours = [
            # The service does not return how long a renewed lock lasts.
            each._replace(locked_until_ms=None) if id(each) in renewed else each
            for each in deliveries
            if each not in lost
        ]
        return released + await self._move(ours)

    async def release(self, deliveries: Sequence[ReceivedMessage], reason: str) -> list[Receipt]:
        """Return messages that are not moved to the queue, for the next receive."""
        if not deliveries:
            return []
        with suppress(ServiceError):  # Their locks expire.
            await self._receiver.abandon(
                deliveries, timeout_s=self._shared.options.settle_timeout_s
            )
        return self._report_released(deliveries, reason)

    async def _renew(self, deliveries: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Renew the locks; returns the messages whose locks are lost."""
        if not deliveries:
            return []
        try:
            return await self._receiver.renew(
                deliveries, timeout_s=self._shared.options.settle_timeout_s
            )
        except ServiceError:
            return deliveries

    def _report_released(self, deliveries: Sequence[ReceivedMessage], reason: str) -> list[Receipt]:
        if not deliveries:
            return []
        now_ms = self._shared.clock.now().wall_ms
        ledger = ChunkLedger(self._identity, deliveries, now_ms)
        ledger.give_up(now_ms, reason)
        self._shared.on_receipts(ledger.receipts)
        return ledger.receipts

    def _adapt(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """The next chunk holds as many messages of this size as a chunk should."""
        average_bytes = sum(len(each.encoded) for each in deliveries) // len(deliveries) + 1
        fitting = self._shared.options.chunk_bytes // average_bytes
        self._count = max(1, min(self._count_max, fitting))

    async def _move(
        self, deliveries: Sequence[ReceivedMessage], permission: SendPermission | None = None
    ) -> list[Receipt]:
        size = self._shared.in_flight.piece_count_max
        pieces = [deliveries[start : start + size] for start in range(0, len(deliveries), size)]
        if len(pieces) == 1:
            return await self._move_piece(pieces[0], permission)
        # At the same time: one may have a message for a destination that does not respond.
        async with asyncio.TaskGroup() as group:
            moving = [group.create_task(self._move_piece(each, permission)) for each in pieces]
        return [receipt for each in moving for receipt in each.result()]

    async def _move_piece(
        self, deliveries: Sequence[ReceivedMessage], permission: SendPermission | None
    ) -> list[Receipt]:
        shared, now_ms = self._shared, self._shared.clock.now().wall_ms
        ledger = ChunkLedger(self._identity, deliveries, now_ms)
        run = ChunkTransfer(
            self._receiver,
            shared.senders,
            circuits=shared.circuits,
            in_flight=shared.in_flight,
            deferred=self.deferred,
            ledger=ledger,
            options=shared.options,
            clock=shared.clock,
            permission=permission,
        )
        renewal = renew_locks(
            self._receiver,
            ledger,
            lock_s=remaining_lock_s(deliveries, now_ms),
            timeout_s=shared.options.settle_timeout_s,
        )
        try:
            async with renewal:
                await run.run(self._plan(deliveries))
        finally:
            ledger.give_up(shared.clock.now().wall_ms, "the mover was stopped")
            shared.on_receipts(ledger.receipts)
        return ledger.receipts

    # -- deferred messages ----------------------------------------------------------------

    async def retry_deferred(self, may_go_on: Callable[[], Awaitable[bool]] = _always) -> None:
        """Try every destination that may be tried, with all messages that are deferred for it.

        Several at the same time: one that does not respond takes a whole timeout.
        """

        async def one(path: str) -> ServiceError | None:
            return await self._retry_path(path, may_go_on)

        paths = self.deferred.paths()
        for error in filter(
            None, await bounded_gather(paths, one, concurrency_max=PATHS_AT_ONCE_MAX)
        ):
            raise error

    async def _retry_path(
        self, path: str, may_go_on: Callable[[], Awaitable[bool]]
    ) -> ServiceError | None:
        left = self.deferred.count(path)
        while left > 0 and await may_go_on():
            permission = self._permission(path)
            if permission is SendPermission.WAIT:
                break
            # The messages of a failed probe may be ambiguous, so a probe is small.
            is_probe = permission is SendPermission.PROBE
            count_max = PROBE_COUNT if is_probe else PAGE_COUNT
            count = min(left, count_max, self._shared.in_flight.piece_count_max)
            numbers = self.deferred.take(path, count)
            left -= count
            try:
                await self._retry_deferred(path, numbers, permission)
            except ServiceError as error:
                return error
        return None

    def _permission(self, path: str) -> SendPermission:
        if path == PRIMARY:  # Messages without a usable destination.
            return SendPermission.SEND
        return self._shared.circuits.admit(path, self._shared.clock.now().monotonic_s)

    async def _retry_deferred(
        self, path: str, numbers: list[int], permission: SendPermission
    ) -> None:
        settled: set[int] = set()
        try:
            numbers, deliveries = await self._fetch(numbers)
            receipts = await self._move(deliveries, permission)
            settled = {each.sequence_number for each in receipts if each.outcome in _SETTLED}
        finally:
            # A deferred message whose lock ends is deferred again: its number is still needed.
            self.deferred.add(path, [each for each in numbers if each not in settled])
            if permission is SendPermission.PROBE:
                self._shared.circuits.release(path, self._shared.clock.now().monotonic_s)

    async def _fetch(self, numbers: list[int]) -> tuple[list[int], list[ReceivedMessage]]:
        """(the numbers that are still deferred, their messages).

        The service returns all or none. If another mover has received some, a scan finds the
        rest, which is left for the next time if another receiver has a lock on it now.
        """
        try:
            return numbers, await self._receive_deferred(numbers)
        except MessageNotFound:
            numbers = await self._still_deferred(numbers)
        try:
            return numbers, await self._receive_deferred(numbers)
        except MessageNotFound:
            return numbers, []

    async def _receive_deferred(self, numbers: list[int]) -> list[ReceivedMessage]:
        if not numbers:
            return []
        try:
            return await self._receiver.receive_deferred(
                numbers, timeout_s=self._shared.options.settle_timeout_s
            )
        except MessageTooLarge:
            # Too large for one reply. One message alone never is.
            middle = len(numbers) // 2
            if not middle:
                raise
            first = await self._receive_deferred(numbers[:middle])
            return first + await self._receive_deferred(numbers[middle:])

    async def _still_deferred(self, numbers: list[int]) -> list[int]:
        wanted, found = set(numbers), []
        async for page in self._pages(min(wanted)):
            for deferred in self._find_deferred(page).values():
                found += [number for number in deferred if number in wanted]
            if max(each.sequence_number for each in page) >= max(wanted):
                break
        return found

    @property
    def has_scanned(self) -> bool:
        """Whether the queue was scanned to its end at least once."""
        return self._next_scan_s > 0

    async def scan_if_due(self) -> None:
        """scan_deferred() for the first time, and then at intervals while messages are diverted:
        a scan costs operations."""
        async with self._scanning:
            if self._shared.clock.now().monotonic_s >= self._next_scan_s and (
                not self.has_scanned or self._may_hold_more()
            ):
                await self.scan_deferred()

    def _may_hold_more(self) -> bool:
        """Whether another mover may have deferred messages since the last scan."""
        return bool(
            self.deferred or self.foreign_count or self._shared.scan_pace.is_wanted(self._scanned_s)
        )

    async def scan_deferred(
        self, first: int = 1, may_go_on: Callable[[], bool] = lambda: True
    ) -> int | None:
        """Remember all deferred messages of the queue from a number on. Returns None at the end of
        the queue, otherwise the number to continue from."""
        async for page in self._pages(first):
            for path, numbers in self._find_deferred(page).items():
                self.deferred.add(path, numbers)
            if not may_go_on():
                return max(first, *(each.sequence_number + 1 for each in page))
        self._scanned_s = now_s = self._shared.clock.now().monotonic_s
        self._next_scan_s = now_s + self.scan_interval_s
        return None

    @property
    def scan_interval_s(self) -> float:
        """Shorter where the syphon of another pair may defer messages of this one."""
        interval_s = self._shared.options.discovery_interval_s
        if not self.foreign_count:
            return interval_s
        return shared_scan_s(interval_s, self.foreign_count + len(self.deferred))

    def _pages(self, first: int) -> AsyncIterator[list[ReceivedMessage]]:
        return pages(self._receiver, first, timeout_s=self._shared.options.settle_timeout_s)

    def _find_deferred(self, page: Sequence[ReceivedMessage]) -> dict[str, list[int]]:
        now_ms = self._shared.clock.now().wall_ms
        return find_deferred(page, self._shared.options.rules, now_ms=now_ms)

    def _plan(self, deliveries: Sequence[ReceivedMessage]) -> ChunkPlan:
        now_ms = self._shared.clock.now().wall_ms
        plan = plan_chunk(deliveries, self._shared.options.rules, now_ms=now_ms)
        if plan.foreign:
            self.foreign_count += len(plan.foreign)
            # The syphon of that pair may have deferred messages of ours: scan soon.
            soon_s = self._shared.clock.now().monotonic_s + self.scan_interval_s
            self._next_scan_s = min(self._next_scan_s, soon_s)
        return plan

    # -- dry run --------------------------------------------------------------------------

    async def dry_run(self, may_go_on: Callable[[], Awaitable[bool]] = _always) -> None:
        """Receipts for what would be done with every message of the queue; nothing is received."""
        async for page in self._pages(1):
            if not await may_go_on():
                return
            now_ms = self._shared.clock.now().wall_ms
            ledger = ChunkLedger(self._identity, page, now_ms)
            plan = self._plan(page)
            for items in plan.by_destination.values():
                ledger.close(items, ReceiptOutcome.WOULD_MOVE, now_ms)
            for item, reason, _description in plan.poison:
                ledger.close([item], ReceiptOutcome.WOULD_DEAD_LETTER, now_ms, reason)
            for item, owner in plan.foreign:
                ledger.close([item], ReceiptOutcome.FOREIGN, now_ms, owner)
            self._shared.on_receipts(ledger.receipts)

    async def close(self) -> None:
        """Close the link; locked messages are received again when their locks expire."""
        await self._receiver.close()
