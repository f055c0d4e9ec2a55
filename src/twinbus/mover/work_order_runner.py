"""Runs one work order: some backlog queues for some seconds.

    move the prefetched messages     '
    workers for every queue           >  at the same time, until all queues are empty and no
    retry deferred messages          '   message is being moved
    scan, retry deferred messages once more, report

The dispatcher keeps the state between orders; what a run finds out is in its report.

Rule 1: a run that was stopped, or whose primary is unreachable, reports like every other (L2).
Rule 2: a queue that cannot be read is a fault in the report; the others go on.
Rule 3: while one destination delays the end of a run, also beyond its time, the queues are served
        on: messages for other destinations do not wait for the next order (Y4).
Rule 4: after ``has_enough`` a run receives nothing more and ends by itself; after ``should_stop``
        what is still in progress is also cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Final

from twinbus.common.clock import Clock
from twinbus.drivers.interface import Driver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.work_order import WorkOrder, WorkReport
from twinbus.mover.queue_group import QueueGroup
from twinbus.mover.queue_mover import OnReceipts, QueueMover

__all__ = ["run_work_order"]

EMPTY_WAIT_S: Final = 0.2
"""How long a receive waits before its queue counts as empty: messages follow each other quickly,
or the watch of the queue reports the next one."""
# How often a run checks whether it has to stop, and whether deferred messages may be retried.
STOP_CHECK_S: Final = 0.1
RETRY_INTERVAL_S: Final = 0.5
LONG_STEP_S: Final = 1.0
"""A step that takes longer than this is waited for, whatever ``has_enough`` returns."""


async def run_work_order(
    secondary: Driver,
    primary: Driver,
    order: WorkOrder,
    options: MoverOptions,
    *,
    on_receipts: OnReceipts,
    should_stop: Callable[[], bool] = lambda: False,
    has_enough: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    random: Random | None = None,
) -> WorkReport:
    """Carry out ``order``; no error of either namespace leaves it.

    ``should_stop`` is called between chunks and at short intervals; once it is true the run ends
    with the chunks in progress, within about 3 s. ``has_enough`` is called between chunks; once it
    is true all chunks in progress are waited for. The drivers stay open.
    """
    conditions = (should_stop, has_enough)
    run = _WorkOrderRun(secondary, primary, order, options, on_receipts, conditions, clock, random)
    return await run.work()


class _WorkOrderRun:
    def __init__(
        self,
        secondary: Driver,
        primary: Driver,
        order: WorkOrder,
        options: MoverOptions,
        on_receipts: OnReceipts,
        conditions: tuple[Callable[[], bool], Callable[[], bool]],
        clock: Clock | None,
        random: Random | None,
    ) -> None:
        self._order = order
        self._should_stop, self._has_enough = conditions
        prefetched = [each.path for each in order.prefetched]
        queues = [*order.queues, *prefetched, *order.retry_deferred, *order.scan_from]
        self._queue_group = QueueGroup(
            secondary,
            primary,
            list(dict.fromkeys(queues)),
            replace(options, rate_per_s=order.rate_per_s),
            on_receipts=on_receipts,
            clock=clock,
            random=random,
        )
        self._ends_s = self._now_s() + order.seconds_max
        self._emptied: list[str] = []
        self._to_scan = dict(order.scan_from)

    async def work(self) -> WorkReport:
        self._import_order()
        # A probe that is due shows whether the primary is reachable now.
        self._probing = asyncio.create_task(self._queue_group.primary_probe.probe_once())
        watching = asyncio.create_task(self._watch())
        try:
            await self._queue_group.run(self._dry_run if self._order.is_dry_run else self._serve)
        finally:
            for task in (watching, self._probing):
                task.cancel()
            await asyncio.gather(watching, self._probing, return_exceptions=True)
        return self._report()

    async def _watch(self) -> None:
        while not self._should_stop():
            await asyncio.sleep(STOP_CHECK_S)
        self._queue_group.stop()
        self._probing.cancel()

    # -- one queue ------------------------------------------------------------------------

    async def _dry_run(self, queue: QueueMover) -> None:
        await queue.release(self._prefetched(queue), "this was a dry run")
        await queue.dry_run(self._may_scan_on)

    async def _serve(self, queue: QueueMover) -> None:
        await asyncio.wait([self._probing])
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._move_prefetched(queue))
            group.create_task(self._deferred_worker(queue, over))
            try:
                await self._empty(queue)
            finally:
                over.set()
        if queue.queue not in self._queue_group.faults:
            await self._finish(queue)

    async def _move_prefetched(self, queue: QueueMover) -> None:
        if prefetched := self._prefetched(queue):
            if self._queue_group.is_over:
                reason = "the primary is unreachable, or the syphon was stopped"
                await queue.release(prefetched, reason)
            else:
                with self._queue_group.in_progress():
                    await queue.move_prefetched(prefetched)

    async def _deferred_worker(self, queue: QueueMover, over: asyncio.Event) -> None:
        while not over.is_set():
            with self._note_faults(queue):
                await self._queue_group.retry_deferred(queue, self._may_begin)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_INTERVAL_S):
                    await over.wait()

    async def _empty(self, queue: QueueMover) -> None:
        with self._note_faults(queue):
            if await self._queue_group.empty(
                queue,
                wait_s=EMPTY_WAIT_S,
                may_receive=self._may_receive,
                may_end=lambda: not self._queue_group.is_at_work,
            ):
                self._emptied.append(queue.queue)

    async def _finish(self, queue: QueueMover) -> None:
        first = self._to_scan.get(queue.queue)
        if first is not None and queue.queue in self._emptied and self._may_begin():
            # At least one page, so that every run makes progress.
            following = await queue.scan_deferred(first, self._may_begin)
            if following is None:
                del self._to_scan[queue.queue]
            else:
                self._to_scan[queue.queue] = following
        await self._queue_group.retry_deferred(queue, self._may_begin)

    def _prefetched(self, queue: QueueMover) -> list[ReceivedMessage]:
        return [each for each in self._order.prefetched if each.path == queue.queue]

    @contextmanager
    def _note_faults(self, queue: QueueMover) -> Iterator[None]:
        try:
            yield
        except ServiceError as error:
            self._queue_group.note_fault(queue, error)

    # -- limits ---------------------------------------------------------------------------

    def _may_receive(self) -> bool:
        """Also when its time is over, while an older step delays the end of the run (rule 3)."""
        return self._may_begin() or (
            self._queue_group.has_older_work(self._ends_s) and self._has_room()
        )

    def _may_begin(self) -> bool:
        return self._now_s() < self._ends_s and self._has_room()

    def _has_room(self) -> bool:
        if self._should_stop():
            self._queue_group.stop()
        received_count = sum(queue.received_count for queue in self._queue_group.queues)
        is_over = self._queue_group.is_over or self._has_enough_now()
        return not is_over and received_count < self._order.messages_max

    def _has_enough_now(self) -> bool:
        """Not while an older step delays the end anyway: others are served meanwhile (rule 3)."""
        return self._has_enough() and not self._queue_group.has_older_work(
            self._now_s() - LONG_STEP_S
        )

    async def _may_scan_on(self) -> bool:
        return not self._queue_group.is_stopped

    def _now_s(self) -> float:
        return self._queue_group.clock.now().monotonic_s

    # -- order and report -----------------------------------------------------------------

    def _import_order(self) -> None:
        order, queue_group = self._order, self._queue_group
        queue_group.circuits.import_state(order.open_circuits, self._now_s())
        for queue in queue_group.queues:
            queue.deferred.hold(order.blocked_paths.get(queue.queue, ()))
            for path, numbers in order.retry_deferred.get(queue.queue, {}).items():
                queue.deferred.add(path, numbers)

    def _report(self) -> WorkReport:
        queue_group = self._queue_group
        still_open = set(queue_group.circuits.open_circuits())
        return WorkReport(
            deferred={
                queue.queue: queue.deferred.numbers()
                for queue in queue_group.queues
                if queue.deferred
            },
            open_circuits=queue_group.circuits.export_state(self._now_s()),
            recovered=tuple(
                each.path for each in self._order.open_circuits if each.path not in still_open
            ),
            emptied=tuple(self._emptied),
            scanned=tuple(each for each in self._order.scan_from if each not in self._to_scan),
            to_scan=self._to_scan,
            faults={queue: error.sentence for queue, error in queue_group.faults.items()},
            is_primary_unreachable=queue_group.primary_probe.is_unreachable,
            rate_delay_s=queue_group.rate_delay_s,
        )
