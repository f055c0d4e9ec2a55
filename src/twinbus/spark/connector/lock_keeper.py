"""Renews the locks of messages that tasks have received, and settles them when a batch is written.

    ledgers (lock_ledger.py)  --due-->    renew, a few requests at once  --failed--> soon again
                              --taken-->  complete or abandon, a slice   --failed--> put back

Rule 1: renewing and settling do not wait for each other, nor one queue for another.
Rule 2: messages are settled in slices. A service that becomes unresponsive affects the slices under
        way, not those that were settled before.
Rule 3: a renewal ends early enough to be tried again before its locks end.
Rule 4: a queue that cannot be settled gets pauses that grow, because a round waits for all its
        queues. Locks of its unsettled messages are renewed meanwhile.
Rule 5: no error ends the renewing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from twinbus.common.clock import Clock
from twinbus.drivers.interface import Receiver
from twinbus.errors import ServiceError
from twinbus.spark.connector.lock_ledger import Lock, LockLedger, PartitionLedger, Renewal
from twinbus.spark.connector.partition_plan import Pauses
from twinbus.spark.connector.partition_reader import PERMANENT_ERRORS

__all__ = ["LockKeeper", "SettlementSummary"]

_LOG = logging.getLogger("twinbus.spark")

RENEW_TICK_S: Final = 0.5
RENEWALS_AT_ONCE_MAX: Final = 4
RENEW_TIMEOUT_S_MIN: Final = 2.0
SLICE_COUNT_MAX: Final = 1_000
SLICES_AT_ONCE_MAX: Final = 4
SETTLE_TIMEOUT_S: Final = 15.0
"""For one slice, which takes milliseconds."""


@dataclass(slots=True)
class SettlementSummary:
    """The orders of written batches, by outcome."""

    owed: int = 0
    """Messages that are not settled yet."""
    failed: set[str] = field(default_factory=set)
    """The queues of orders that could not be settled."""
    settled: set[str] = field(default_factory=set)
    """The queues of orders that were settled."""
    unread: dict[str, int] = field(default_factory=dict)
    """By queue: messages that were abandoned, because no task read its part to the end."""


class LockKeeper:
    """For one run of one query, in the running event loop."""

    def __init__(self, receivers: Mapping[str, Receiver], ledger: LockLedger, clock: Clock) -> None:
        self._receivers = receivers
        self._ledger = ledger
        self._clock = clock
        self._room = {path: asyncio.Semaphore(RENEWALS_AT_ONCE_MAX) for path in receivers}
        self._renewals: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        self._pauses = Pauses()

    def start(self) -> None:
        """Renew locks from now on."""
        self._renewing = asyncio.create_task(self._renew(), name="locks")

    async def close(self) -> None:
        """Renew nothing more; may be called twice."""
        tasks = [*self._renewals, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s

    # -- renewing -------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_TICK_S)
            for renewal in self._ledger.due(self._now_s()):
                task = asyncio.create_task(self._renew_some(renewal))
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)

    async def _renew_some(self, renewal: Renewal) -> None:
        path = renewal.locks[0].path
        lost: list[Lock] | None = None
        async with self._room[path]:
            began_s = self._now_s()
            try:
                messages = await self._receivers[path].renew(
                    [lock.as_message() for lock in renewal.locks],
                    timeout_s=max(RENEW_TIMEOUT_S_MIN, renewal.half_s / 2),
                )
                lost = [Lock.of(each) for each in messages]
            except Exception as error:
                self._log_failure(path, len(renewal.locks), error)
            finally:
                # A failure may have taken long, so the next attempt counts from its end.
                ended_s = self._now_s()
                when_s = ended_s if lost is None else began_s
                gone = self._ledger.renewed(renewal, lost, began_s=when_s)
        if lost is not None:
            _log_lost(path, gone)
            if path in self._failing:
                self._failing.discard(path)
                _LOG.warning("Renewing locks of messages of %r works again", path)

    def _log_failure(self, path: str, count: int, error: Exception) -> None:
        """Once for each outage; of an error that is not the service's only the type is logged."""
        if path not in self._failing:
            self._failing.add(path)
            cause = str(error) if isinstance(error, ServiceError) else type(error).__name__
            _LOG.warning("%d locks of messages of %r were not renewed: %s", count, path, cause)

    # -- settling -------------------------------------------------------------------------

    async def settle(self, epoch: int, *, is_last: bool = False) -> SettlementSummary:
        """Settle this batch and all before it. Queues in a pause are tried later; with ``is_last``
        all queues are tried now."""
        ending, work = SettlementSummary(), []
        for name, ledger in self._ledger.written(epoch).items():
            if is_last or self._may_be_settled(ledger):
                work.append(self._end(name, ledger, ending))
            else:
                ending.owed += len(ledger.locks)
        ends = await asyncio.gather(*work, return_exceptions=True)
        for path in ending.failed:
            self._pauses.note(path, self._now_s())
        for path in {*ending.settled, *ending.unread} - ending.failed:
            self._pauses.forget(path)
        for error in ends:
            if isinstance(error, BaseException):
                raise error
        for path in ending.settled:  # Another task read its part of the same queue.
            ending.unread.pop(path, None)
        return ending

    def _may_be_settled(self, ledger: PartitionLedger) -> bool:
        path = next((lock.path for lock in ledger.locks.values()), "")
        return self._pauses.is_over(path, self._now_s())

    async def give_back(self, epoch: int) -> None:
        """Abandon the messages of one batch alone, which no task will read."""
        orders = self._ledger.of_epoch(epoch)
        # Errors are ignored: locks end by themselves.
        ends = (self._end(name, each, SettlementSummary()) for name, each in orders.items())
        await asyncio.gather(*ends, return_exceptions=True)

    async def _end(self, order_id: str, ledger: PartitionLedger, ending: SettlementSummary) -> None:
        path, given_back = "", 0
        while slices := self._slices(order_id):
            path = slices[0][0].path
            waiting = list(slices)
            try:
                ends = await asyncio.gather(
                    *(
                        self._end_slice(order_id, each, waiting, is_sealed=ledger.is_sealed)
                        for each in slices
                    )
                )
            finally:
                for each in waiting:  # Cancelled before they began, so they are put back here.
                    self._ledger.put_back(order_id, each, self._now_s())
            if None in ends:
                ending.owed += len(ledger.locks)
                ending.failed.add(path)
                return
            given_back += sum(filter(None, ends))
        self._ledger.close(order_id)
        if path and ledger.is_sealed:
            ending.settled.add(path)
        elif path:
            ending.unread[path] = ending.unread.get(path, 0) + given_back

    def _slices(self, order_id: str) -> list[list[Lock]]:
        """The next few slices, sent together so that they share the service's commits."""
        taken = (self._ledger.take(order_id, SLICE_COUNT_MAX) for _ in range(SLICES_AT_ONCE_MAX))
        return [locks for locks in taken if locks]

    async def _end_slice(
        self, order_id: str, locks: list[Lock], waiting: list[list[Lock]], *, is_sealed: bool
    ) -> int | None:
        """How many were completed or abandoned; None when the service did not answer.

        ``waiting`` are the slices that have not begun.
        """
        waiting.remove(locks)
        receiver = self._receivers[locks[0].path]
        act = receiver.complete if is_sealed else receiver.abandon
        lost_count: int | None = None
        try:
            messages = [lock.as_message() for lock in locks]
            lost_count = len(await act(messages, timeout_s=SETTLE_TIMEOUT_S))
        except ServiceError as error:
            if isinstance(error, PERMANENT_ERRORS):
                raise
            _LOG.warning(
                "%d messages of %r could not be settled yet: %s", len(locks), receiver.path, error
            )
        finally:
            if lost_count is None:
                self._ledger.put_back(order_id, locks, self._now_s())
        if lost_count is None:
            return None
        self._ledger.ended(order_id, len(locks), lost_count)
        _log_lost(receiver.path, lost_count)
        return len(locks) - lost_count


def _log_lost(path: str, count: int) -> None:
    if count:
        _LOG.warning(
            "%d locks of messages of %r were lost: these messages will be delivered again",
            count,
            path,
        )
