"""What a task of the syphon does: work one shift, and hand its receipts to Spark as they come.

    Spark asks for rows <-- receipts <-- run_work_order(), on an event loop in a thread of its own
                                            |-- every half second: progress to the desk
                                            '-- at the end: the report

Rule 1: nothing is kept between two tasks but what the desk was told.
Rule 2: a desk that does not answer stops nobody: messages go home without it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from twinbus.common.event_loop import LoopThread
from twinbus.errors import ServiceError
from twinbus.mover.planning.receipts import Receipt, ReceiptCounts, ReceiptOutcome
from twinbus.mover.planning.work_order import WorkOrder, WorkReport, report_to_json, split_report
from twinbus.mover.work_order_runner import run_work_order
from twinbus.spark.driver_channel import DriverChannelAddress, DriverChannelClient
from twinbus.spark.syphon.receipt_rows import to_record_batch
from twinbus.spark.syphon.settings import SyphonSettings

if TYPE_CHECKING:
    import pyarrow

__all__ = ["tried_again", "work_order"]

_log = logging.getLogger("twinbus.spark")

PROGRESS_INTERVAL_S: Final = 0.5
ROWS_PER_BATCH: Final = 2_000
"""Few enough that receipts are still in the processor's cache when they become columns."""
# Messages live for milliseconds and hold no cycles.
GC_THRESHOLD: Final = 500_000


def work_order(
    settings: SyphonSettings,
    order: WorkOrder,
    order_id: str,
    channel: DriverChannelAddress,
    *,
    is_second_try: bool = False,
) -> Iterator[pyarrow.RecordBatch]:
    """Work the order; yields its receipts. Raises when a namespace cannot be used at all."""
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()
    if is_second_try:
        order = tried_again(order)
    engine = LoopThread("twinbus-shift", dies_with_parent=True)
    shift = _TaskRun(settings, order, order_id, channel)
    try:
        future = engine.start(shift.work())
        future.add_done_callback(lambda _done: shift.finished.put(None))
        rows: list[Receipt] = []
        while (receipts := shift.finished.get()) is not None:
            rows += receipts
            if len(rows) >= ROWS_PER_BATCH:
                yield to_record_batch(rows)
                rows = []
        if rows:
            yield to_record_batch(rows)
        future.result()
    finally:
        engine.close()


def tried_again(order: WorkOrder) -> WorkOrder:
    """The order for whoever comes after a task that failed or was killed.

    It took along what it knew of messages set aside. And what it was handed may be home already:
    with locks that look old they are renewed first, and what cannot be renewed is not sent.
    """
    return replace(
        order,
        scan_from=dict.fromkeys(order.queues, 1),
        prefetched=tuple(each._replace(locked_until_ms=0) for each in order.prefetched),
    )


@dataclass(slots=True)
class _TaskRun:
    settings: SyphonSettings
    order: WorkOrder
    order_id: str
    channel: DriverChannelAddress
    finished: queue.SimpleQueue[Sequence[Receipt] | None] = field(default_factory=queue.SimpleQueue)
    receipt_counts: ReceiptCounts = field(default_factory=ReceiptCounts)
    foreign: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages of other pairs, by backlog queue and mark."""
    is_stopping: bool = False
    has_enough: bool = False

    async def work(self) -> None:
        settings = self.settings
        async with AsyncExitStack() as stack:
            line = await self._line(stack)
            telling = asyncio.create_task(self._tell(line))
            stack.push_async_callback(_cancelled, telling)
            secondary = await stack.enter_async_context(settings.opened_secondary())
            primary = await stack.enter_async_context(settings.opened_primary())
            report = await run_work_order(
                secondary.driver,
                primary.driver,
                self.order,
                settings.mover_options(primary.driver.address),
                on_receipts=self._take,
                should_stop=lambda: self.is_stopping,
                has_enough=lambda: self.has_enough,
            )
            await _cancelled(telling)
            await self._report(line, report)

    def _take(self, receipts: Sequence[Receipt]) -> None:
        self.finished.put(receipts)
        self.receipt_counts.add(receipts)
        for receipt in receipts if self.receipt_counts.counts[ReceiptOutcome.FOREIGN] else ():
            if receipt.outcome is ReceiptOutcome.FOREIGN:
                self.foreign[receipt.queue, receipt.reason] += 1

    # -- the desk -------------------------------------------------------------------------

    async def _line(self, stack: AsyncExitStack) -> DriverChannelClient | None:
        try:
            return await stack.enter_async_context(DriverChannelClient(self.channel))
        except ServiceError as error:
            _log.warning("%s", error)
            return None

    async def _tell(self, line: DriverChannelClient | None) -> None:
        with suppress(ServiceError):
            while line is not None:
                await self._progress(line)
                await asyncio.sleep(PROGRESS_INTERVAL_S)

    async def _progress(self, line: DriverChannelClient) -> None:
        tally, self.receipt_counts = self.receipt_counts, ReceiptCounts()
        counts = {outcome.value: count for outcome, count in tally.counts.items() if count}
        foreign, self.foreign = self.foreign, Counter()
        answer = await line.ask(
            "progress",
            counts=counts,
            moved_bytes=tally.moved_bytes,
            foreign=[[*key, count] for key, count in foreign.items()],
        )
        self.is_stopping = self.is_stopping or bool(answer.get("stop"))
        self.has_enough = self.has_enough or bool(answer.get("enough"))

    async def _report(self, line: DriverChannelClient | None, report: WorkReport) -> None:
        if line is not None:
            try:
                await self._progress(line)
                *ahead, last = split_report(report)
                for part in ahead:
                    await line.ask("aside", order=self.order_id, report=report_to_json(part))
                await line.ask("report", order=self.order_id, report=report_to_json(last))
            except ServiceError as error:
                _log.warning("a shift's report was not heard: %s", error)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
