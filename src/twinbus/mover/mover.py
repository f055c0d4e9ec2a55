"""The mover of a process, and the local syphon.

Brings the messages of all backlog queues home: the syphon's engine, in plain Python.

    Mover --for each queue--> lanes      receive a chunk, send it home, and again
                          '-> returner   tries what was set aside, once it may be tried

A mover in the background of an application: what ``enable_syphon`` hosts without Spark.

Rule 1: any number of movers may run against one backlog (Y5).
Rule 2: while nobody can be reached at the primary nothing is received: an outage costs nothing.
Rule 3: stop() returns within about 5 s, whatever the namespaces do.
Rule 4: a mover that ends by itself is a fault, and whoever hosts it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from twinbus.common.clock import Clock
from twinbus.drivers.interface import Driver
from twinbus.errors import AccessRefused, ServiceError
from twinbus.failover.missing_claims import ClaimMonitor
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.receipts import Receipt, ReceiptCounts, ReceiptOutcome
from twinbus.mover.planning.stall_detector import STALL_S, StallDetector, stall_reason
from twinbus.mover.queue_group import OnFault, QueueGroup
from twinbus.mover.queue_mover import OnReceipts, QueueMover

__all__ = ["LocalSyphon", "Mover", "MoverOptions", "MoverReport", "OnFault"]

ONCE_WAIT_S: Final = 1.0
"""How long a run over everything waits for a queue before it calls it empty."""
ONCE_LOOKS: Final = 2
"""And how often: the first receive opens the link, which can take all its time."""
# How often what is set aside is looked at, in memory: the pauses of the board decide the rest.
RETURN_INTERVAL_S: Final = 0.5
STALL_LOOK_S: Final = 1.0


@dataclass(slots=True)
class MoverReport:
    """What a mover has done so far."""

    receipt_counts: ReceiptCounts = field(default_factory=ReceiptCounts)
    faults: dict[str, ServiceError] = field(default_factory=dict)
    """Backlog queues that could not be read when it was last tried, each with its error."""


class Mover:
    """All backlog queues of a pair. Used once: after run() it is closed."""

    def __init__(
        self,
        secondary: Driver,
        primary: Driver,
        queues: Sequence[str],
        options: MoverOptions,
        *,
        on_receipts: OnReceipts | None = None,
        on_fault: OnFault | None = None,
        on_stall: Callable[[str], object] | None = None,
        on_refused: Callable[[str, str], object] | None = None,
        search: BacklogSearch | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """``search`` finds more queues than these, before and while it runs (Y9)."""
        self._options = options
        self._search = search
        self._on_receipts = on_receipts
        self._on_stall, self._on_refused = on_stall, on_refused
        self._queue_group = QueueGroup(
            secondary,
            primary,
            queues,
            options,
            on_receipts=self._take_receipts,
            on_fault=on_fault,
            clock=clock,
            random=random,
        )
        self.queues = self._queue_group.queues
        self.report = MoverReport(faults=self._queue_group.faults)

    async def run(self, *, once: bool = False) -> MoverReport:
        """Move until stop(); with ``once`` until every queue is empty, or what is left has to
        wait for its destination."""
        if once:
            await self._find_more()
        beside = [asyncio.create_task(self._watch())]
        if not once:
            beside.append(asyncio.create_task(self._keep_finding()))
        try:
            await self._queue_group.run(self._drain if once else self._serve)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        return self.report

    async def dry_run(self) -> MoverReport:
        """What run() would do with everything that is there now; nothing is received."""
        await self._find_more()
        await self._queue_group.run(QueueMover.dry_run)
        return self.report

    def stop(self) -> None:
        """Ask run() to end; it does within about 5 s."""
        self._queue_group.stop()

    async def close(self) -> None:
        """Let go of all links."""
        await self._queue_group.close()

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their destinations, as far as this one knows."""
        return sum(len(queue.deferred) for queue in self.queues)

    async def _watch(self) -> None:
        """Tell when messages wait and none moves, and at once when a claim is missing."""
        queue_group, stall, claims = (
            self._queue_group,
            StallDetector(stall_s=STALL_S),
            ClaimMonitor(),
        )
        while self._on_stall is not None or self._on_refused is not None:
            await asyncio.sleep(STALL_LOOK_S)
            unread = [
                each
                for each in queue_group.faults
                if isinstance(queue_group.faults[each], AccessRefused)
            ]
            for path, claim in claims.observe(listen=unread, send=queue_group.circuits.refused()):
                if self._on_refused is not None:
                    self._on_refused(path, claim)
            waiting, is_away = self.deferred_count, queue_group.primary_probe.is_unreachable
            moved, now_s = (
                self.report.receipt_counts.counts[ReceiptOutcome.MOVED],
                queue_group.clock.now().monotonic_s,
            )
            # Nobody knows what is in a queue that cannot be read.
            held = 0 if queue_group.rate_delay_s > 0 else waiting + len(queue_group.faults)
            if stall.update(waiting=held, moved=moved, now_s=now_s):
                closed = queue_group.circuits.open_circuits()
                why = stall_reason(
                    waiting,
                    closed=closed,
                    unread={path: each.sentence for path, each in queue_group.faults.items()},
                    is_primary_unreachable=is_away,
                )
                if self._on_stall is not None:
                    self._on_stall(why)

    # -- more queues ----------------------------------------------------------------------

    async def _find_more(self) -> None:
        if self._search is not None:
            for queue in await self._search.holding(self._known()):
                self._queue_group.add(queue)

    async def _keep_finding(self) -> None:
        if self._search is not None:
            await self._find_more()
            await self._search.keep_finding(self._known, self._queue_group.add)

    def _known(self) -> list[str]:
        return [each.queue for each in self.queues]

    # -- one queue ------------------------------------------------------------------------

    async def _serve(self, queue: QueueMover) -> None:
        async with asyncio.TaskGroup() as group:
            for _lane in range(self._options.chunks_at_once):
                group.create_task(self._worker(queue))
            group.create_task(self._deferred_worker(queue))

    async def _worker(self, queue: QueueMover) -> None:
        queue_group, failure_count = self._queue_group, 0
        while not queue_group.is_stopped:
            try:
                await self._step(queue)
                failure_count = 0
                queue_group.faults.pop(queue.queue, None)
            except ServiceError as error:
                failure_count += 1
                queue_group.note_fault(queue, error)
                await queue_group.rest(
                    self._options.backoff.pause_s(failure_count, queue_group.random)
                )

    async def _step(self, queue: QueueMover) -> None:
        queue_group = self._queue_group
        await queue_group.wait_for_primary()
        await queue_group.wait_for_rate()
        if queue_group.is_stopped:
            return
        # What another mover had set aside before it was killed does not wait for a whole poll, nor
        # does the word that a queue can be read again.
        wait_s = self._options.poll_s
        if queue.foreign_count:
            wait_s = min(wait_s, queue.scan_interval_s)
        if not queue.has_scanned or queue.queue in queue_group.faults:
            wait_s = min(wait_s, ONCE_WAIT_S)
        if not await queue_group.move(queue, wait_s):
            await queue.scan_if_due()

    async def _deferred_worker(self, queue: QueueMover) -> None:
        queue_group = self._queue_group
        while not queue_group.is_stopped:
            await queue_group.rest(RETURN_INTERVAL_S)
            try:
                await queue_group.retry_deferred(queue)
            except ServiceError as error:
                queue_group.note_fault(queue, error)

    async def _drain(self, queue: QueueMover) -> None:
        await self._queue_group.empty(queue, wait_s=ONCE_WAIT_S, looks=ONCE_LOOKS)
        if not self._queue_group.is_over:
            await queue.scan_deferred()
            await self._queue_group.retry_deferred(queue)

    def _take_receipts(self, receipts: Sequence[Receipt]) -> None:
        self.report.receipt_counts.add(receipts)
        if self._search is not None and any(
            each.outcome is ReceiptOutcome.MOVED for each in receipts
        ):
            self._search.note_moved()
        if self._on_receipts is not None:
            self._on_receipts(receipts)


class LocalSyphon:
    """Brings the backlog home from start() to stop()."""

    def __init__(
        self,
        primary: Driver,
        secondary: Driver,
        queues: Sequence[str],
        options: MoverOptions,
        *,
        on_receipts: OnReceipts | None = None,
        on_fault: OnFault | None = None,
        on_stall: Callable[[str], object] | None = None,
        on_refused: Callable[[str, str], object] | None = None,
        on_end: Callable[[BaseException], object] | None = None,
        search: BacklogSearch | None = None,
    ) -> None:
        """``on_fault`` is told of a queue that could not be read, and that is tried again;
        ``on_stall`` why nothing moves although messages wait; ``on_refused`` of a path and the
        claim that is missing for it; ``on_end`` of an error that ended the whole."""
        self._mover = Mover(
            secondary,
            primary,
            queues,
            options,
            on_receipts=on_receipts,
            on_fault=on_fault,
            on_stall=on_stall,
            on_refused=on_refused,
            search=search,
        )
        self._on_end = on_end
        self._task: asyncio.Task[object] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def receipt_counts(self) -> ReceiptCounts:
        """What became of the messages so far."""
        return self._mover.report.receipt_counts

    def start(self) -> None:
        """Begin, in the running event loop; once."""
        if self._task is None:
            self._task = asyncio.create_task(self._mover.run(), name="twinbus-syphon")
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End after the chunks under way; may be called twice."""
        if self._task is None:
            await self._mover.close()
            return
        self._mover.stop()
        with suppress(Exception):  # Told to on_end, by whose reason it ended.
            await asyncio.shield(self._task)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) and self._on_end is not None:
            self._on_end(error)
