"""A task of the syphon: it runs one work order and returns the receipts to Spark as they come.

    Spark reads rows <-- receipts <-- run_work_order(), on an event loop in a thread of its own
                                            |-- every half second: progress to the driver
                                            '-- at the end: the report

Rule 1: nothing is kept between two tasks except for what was reported to the driver.
Rule 2: a driver that does not answer stops no task: messages are moved without it.
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

__all__ = ["order_for_retry", "work_order"]

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
    """Run the order; yields its receipts. Raises when a namespace cannot be used at all."""
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()
    if is_second_try:
        order = order_for_retry(order)
    engine = LoopThread("twinbus-work-order", dies_with_parent=True)
    run = _TaskRun(settings, order, order_id, channel)
    try:
        future = engine.start(run.work())
        future.add_done_callback(lambda _done: run.finished.put(None))
        rows: list[Receipt] = []
        while (receipts := run.finished.get()) is not None:
            rows += receipts
            if len(rows) >= ROWS_PER_BATCH:
                yield to_record_batch(rows)
                rows = []
        if rows:
            yield to_record_batch(rows)
        future.result()
    finally:
        engine.close()


def order_for_retry(order: WorkOrder) -> WorkOrder:
    """The order for the attempt after a task that failed or was killed.

    What that task had found out about deferred messages is lost, so queues are scanned from the
    beginning. The messages that were passed to it may have been moved already: their locks count
    as expired, so they are renewed first, and messages whose lock cannot be renewed are not sent.
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
            client = await self._connect(stack)
            reporting = asyncio.create_task(self._keep_reporting(client))
            stack.push_async_callback(_cancel, reporting)
            secondary = await stack.enter_async_context(settings.open_secondary())
            primary = await stack.enter_async_context(settings.open_primary())
            report = await run_work_order(
                secondary.driver,
                primary.driver,
                self.order,
                settings.mover_options(primary.driver.address),
                on_receipts=self._take,
                should_stop=lambda: self.is_stopping,
                has_enough=lambda: self.has_enough,
            )
            await _cancel(reporting)
            await self._report(client, report)

    def _take(self, receipts: Sequence[Receipt]) -> None:
        self.finished.put(receipts)
        self.receipt_counts.add(receipts)
        for receipt in receipts if self.receipt_counts.counts[ReceiptOutcome.FOREIGN] else ():
            if receipt.outcome is ReceiptOutcome.FOREIGN:
                self.foreign[receipt.queue, receipt.reason] += 1

    # -- reports to the driver ------------------------------------------------------------

    async def _connect(self, stack: AsyncExitStack) -> DriverChannelClient | None:
        try:
            return await stack.enter_async_context(DriverChannelClient(self.channel))
        except ServiceError as error:
            _log.warning("%s", error)
            return None

    async def _keep_reporting(self, client: DriverChannelClient | None) -> None:
        with suppress(ServiceError):
            while client is not None:
                await self._report_progress(client)
                await asyncio.sleep(PROGRESS_INTERVAL_S)

    async def _report_progress(self, client: DriverChannelClient) -> None:
        tally, self.receipt_counts = self.receipt_counts, ReceiptCounts()
        counts = {outcome.value: count for outcome, count in tally.counts.items() if count}
        foreign, self.foreign = self.foreign, Counter()
        answer = await client.ask(
            "progress",
            counts=counts,
            moved_bytes=tally.moved_bytes,
            foreign=[[*key, count] for key, count in foreign.items()],
        )
        self.is_stopping = self.is_stopping or bool(answer.get("stop"))
        self.has_enough = self.has_enough or bool(answer.get("enough"))

    async def _report(self, client: DriverChannelClient | None, report: WorkReport) -> None:
        if client is not None:
            try:
                await self._report_progress(client)
                *ahead, last = split_report(report)
                for part in ahead:
                    await client.ask("aside", order=self.order_id, report=report_to_json(part))
                await client.ask("report", order=self.order_id, report=report_to_json(last))
            except ServiceError as error:
                _log.warning("The Spark driver did not get a work report: %s", error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
