"""The mover of one backlog queue: receive, move, renew locks.

Keeps the locks of a chunk while it is moved.

A chunk is over in a fraction of its lock, nearly always. So nothing is started for it but a
timer; only a chunk that takes longer than half of its lock gets a task that renews.

Brings the messages of one backlog queue home, chunk by chunk.

    receive()      a chunk of what waits in the queue
    move()   restore it, send it, complete what was accepted
    move_prefetched()    the same with messages that somebody else received
    retry_deferred()   ask for messages that were set aside, once their destinations may be tried
    scan_deferred()     look through the queue for messages that somebody else set aside
    dry_run()      look at what would be moved, and touch nothing

Rule 1: all of them may run at once, here and in other processes: locks keep them apart (Y5).
Rule 2: receipts are handed to ``on_receipts`` also when a chunk is cut short, so that every
        second copy on the primary was announced by one.
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

# The lock of a backlog queue (P4). The service's clock may differ from ours, so what it says
# about the end of a lock is believed only within these.
LOCK_S_MAX: Final = 60.0
LOCK_S_MIN: Final = 2.0


def remaining_lock_s(deliveries: Sequence[ReceivedMessage], now_ms: int) -> float:
    """How long the locks of a chunk last from now, as far as we can tell."""
    ends_ms = [each.locked_until_ms for each in deliveries if each.locked_until_ms is not None]
    left_s = (min(ends_ms) - now_ms) / 1000 if ends_ms else LOCK_S_MAX
    return min(LOCK_S_MAX, max(LOCK_S_MIN, left_s))


@asynccontextmanager
async def renew_locks(
    receiver: Receiver, ledger: ChunkLedger, *, lock_s: float, timeout_s: float
) -> AsyncIterator[None]:
    """Renew what the ledger still owes, every half of the lock, until the block is left."""
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
        # A lock that is lost shows when the message is settled, and a line that is down too.
        with suppress(ServiceError):
            await receiver.renew(ledger.unsettled, timeout_s=timeout_s)
        await asyncio.sleep(interval_s)


OnReceipts = Callable[[Sequence[Receipt]], object]

PROBE_COUNT: Final = 10
# Destinations that are tried again at once: few enough for their messages to fit into memory.
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
    """One backlog queue, and what was set aside in it."""

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
        """Messages of other pairs that were met here (P21)."""
        self._count = min(FIRST_CHUNK_COUNT, self._count_max)

    @property
    def _count_max(self) -> int:
        # At a limited rate a chunk is what may be moved in a second: no bursts.
        options = self._shared.options
        return min(options.chunk_count, ceil(options.rate_per_s or options.chunk_count))

    async def receive(self, *, wait_s: float) -> list[ReceivedMessage]:
        """A chunk, as soon as there is something; empty after ``wait_s``."""
        # One receive at a time: an idle queue costs one long poll, however many chunks may be
        # under way (Y3).
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
        """move() for messages that were locked elsewhere; those whose lock is lost are
        left alone."""
        now_ms = self._shared.clock.now().wall_ms
        old = [each for each in deliveries if remaining_lock_s([each], now_ms) < LOCK_S_MAX / 3]
        lost = await self._not_renewed(old)
        left = self._released(lost, "its lock was lost before it was moved")
        renewed = {id(each) for each in old}
        ours = [
            # How long a renewed lock lasts is not told.
            each._replace(locked_until_ms=None) if id(each) in renewed else each
            for each in deliveries
            if each not in lost
        ]
        return left + await self._move(ours)

    async def release(self, deliveries: Sequence[ReceivedMessage], reason: str) -> list[Receipt]:
        """Messages that nothing is done with: to whoever receives next."""
        if not deliveries:
            return []
        with suppress(ServiceError):  # Their locks end by themselves.
            await self._receiver.abandon(
                deliveries, timeout_s=self._shared.options.settle_timeout_s
            )
        return self._released(deliveries, reason)

    async def _not_renewed(self, deliveries: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if not deliveries:
            return []
        try:
            return await self._receiver.renew(
                deliveries, timeout_s=self._shared.options.settle_timeout_s
            )
        except ServiceError:
            return deliveries

    def _released(self, deliveries: Sequence[ReceivedMessage], reason: str) -> list[Receipt]:
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
        # All at once: one of them may have a message for a silent destination.
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
        keeping = renew_locks(
            self._receiver,
            ledger,
            lock_s=remaining_lock_s(deliveries, now_ms),
            timeout_s=shared.options.settle_timeout_s,
        )
        try:
            async with keeping:
                await run.run(self._planned(deliveries))
        finally:
            ledger.give_up(shared.clock.now().wall_ms, "the mover was stopped")
            shared.on_receipts(ledger.receipts)
        return ledger.receipts

    # -- messages that were set aside -----------------------------------------------------

    async def retry_deferred(self, may_go_on: Callable[[], Awaitable[bool]] = _always) -> None:
        """Try every destination that may be tried, with all that was set aside for it.

        Some at once: to learn that one is silent takes a whole timeout, and others are there.
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
            # What a probe leaves in doubt may be doubled, so that it is small.
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
        """(the numbers that are still set aside, their messages).

        The service gives all or none. Where another mover was faster we look what is left, and
        leave it for the next time when it is held by somebody right now.
        """
        try:
            return numbers, await self._ask_for(numbers)
        except MessageNotFound:
            numbers = await self._still_deferred(numbers)
        try:
            return numbers, await self._ask_for(numbers)
        except MessageNotFound:
            return numbers, []

    async def _ask_for(self, numbers: list[int]) -> list[ReceivedMessage]:
        if not numbers:
            return []
        try:
            return await self._receiver.receive_deferred(
                numbers, timeout_s=self._shared.options.settle_timeout_s
            )
        except MessageTooLarge:
            # Too much for one reply. One message alone never is.
            middle = len(numbers) // 2
            if not middle:
                raise
            return await self._ask_for(numbers[:middle]) + await self._ask_for(numbers[middle:])

    async def _still_deferred(self, numbers: list[int]) -> list[int]:
        wanted, found = set(numbers), []
        async for page in self._pages(min(wanted)):
            for set_aside in self._deferred_in(page).values():
                found += [number for number in set_aside if number in wanted]
            if max(each.sequence_number for each in page) >= max(wanted):
                break
        return found

    @property
    def has_scanned(self) -> bool:
        """Whether the queue was looked through, to its end, at least once."""
        return self._next_scan_s > 0

    async def scan_if_due(self) -> None:
        """scan_deferred() for the first time, and then now and then while messages are diverted:
        looking costs an operation."""
        async with self._scanning:
            if self._shared.clock.now().monotonic_s >= self._next_scan_s and (
                not self.has_scanned or self._may_hold_more()
            ):
                await self.scan_deferred()

    def _may_hold_more(self) -> bool:
        """Whether somebody may have set messages aside since the last look."""
        return bool(
            self.deferred or self.foreign_count or self._shared.scan_pace.is_wanted(self._scanned_s)
        )

    async def scan_deferred(
        self, first: int = 1, may_go_on: Callable[[], bool] = lambda: True
    ) -> int | None:
        """Remember what is set aside in the queue from a number on, whoever did it. None: to its
        end; otherwise the number to go on from."""
        async for page in self._pages(first):
            for path, numbers in self._deferred_in(page).items():
                self.deferred.add(path, numbers)
            if not may_go_on():
                return max(first, *(each.sequence_number + 1 for each in page))
        self._scanned_s = now_s = self._shared.clock.now().monotonic_s
        self._next_scan_s = now_s + self.scan_interval_s
        return None

    @property
    def scan_interval_s(self) -> float:
        """Shorter where another pair's syphon may set messages of this one aside."""
        interval_s = self._shared.options.discovery_interval_s
        if not self.foreign_count:
            return interval_s
        return shared_scan_s(interval_s, self.foreign_count + len(self.deferred))

    def _pages(self, first: int) -> AsyncIterator[list[ReceivedMessage]]:
        return pages(self._receiver, first, timeout_s=self._shared.options.settle_timeout_s)

    def _deferred_in(self, page: Sequence[ReceivedMessage]) -> dict[str, list[int]]:
        now_ms = self._shared.clock.now().wall_ms
        return find_deferred(page, self._shared.options.rules, now_ms=now_ms)

    def _planned(self, deliveries: Sequence[ReceivedMessage]) -> ChunkPlan:
        now_ms = self._shared.clock.now().wall_ms
        plan = plan_chunk(deliveries, self._shared.options.rules, now_ms=now_ms)
        if plan.foreign:
            self.foreign_count += len(plan.foreign)
            # What it has set aside of ours meanwhile is looked for soon.
            soon_s = self._shared.clock.now().monotonic_s + self.scan_interval_s
            self._next_scan_s = min(self._next_scan_s, soon_s)
        return plan

    # -- looking only ---------------------------------------------------------------------

    async def dry_run(self, may_go_on: Callable[[], Awaitable[bool]] = _always) -> None:
        """Receipts for what would become of everything in the queue; nothing is received."""
        async for page in self._pages(1):
            if not await may_go_on():
                return
            now_ms = self._shared.clock.now().wall_ms
            ledger = ChunkLedger(self._identity, page, now_ms)
            plan = self._planned(page)
            for items in plan.by_destination.values():
                ledger.close(items, ReceiptOutcome.WOULD_MOVE, now_ms)
            for item, reason, _description in plan.poison:
                ledger.close([item], ReceiptOutcome.WOULD_DEAD_LETTER, now_ms, reason)
            for item, owner in plan.foreign:
                ledger.close([item], ReceiptOutcome.FOREIGN, now_ms, owner)
            self._shared.on_receipts(ledger.receipts)

    async def close(self) -> None:
        """Let go of the link; what is locked comes again when its locks end."""
        await self._receiver.close()
