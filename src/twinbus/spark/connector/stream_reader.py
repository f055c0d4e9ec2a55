"""``spark.readStream.format("servicebus")``: passes Spark's calls on to coordinator and workers.

    latestOffset, partitions, stop   in one process beside the driver, to its StreamCoordinator
    read                             in Python workers, to a PartitionReader

At least once (S2): a message is settled after the batch that contains it was written, and is
delivered again after a crash in between. With receiveAndDelete at most once: messages are deleted
as soon as they are received, a crash loses those of its batch, and a batch cannot be read twice.

Rule 1: latestOffset waits for WAIT_SLICE_S at most, without a call to the service: the query can
        call its other sources, and processAllAvailable() returns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from twinbus.common.event_loop import LoopThread
from twinbus.errors import ConfigurationError
from twinbus.spark.connector.coordinator import Reading, StreamCoordinator
from twinbus.spark.connector.options import Mode, ReadOptions
from twinbus.spark.connector.partition_plan import BatchLimit, PartitionPlan, selected_paths
from twinbus.spark.driver_channel import LOOPBACK

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ServiceBusStreamReader"]

WAIT_SLICE_S: Final = 0.5
EPOCH: Final = "epoch"


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Small enough to be pickled: connections are opened when they are first needed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._is_available_now = False
        self._process: _CoordinatorProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_is_available_now": False, "_process": None}

    # -- beside the driver ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        return {EPOCH: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_per_trigger_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True
        process = self._started_process()
        process.engine.call_soon(process.coordinator.only_until_now)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The next batch, when there are messages for it; everything up to ``start`` is written."""
        if isinstance(limit, ReadAllAvailable) and not self._is_available_now:
            raise ConfigurationError(
                "trigger(once=True) is not supported: it ends before Spark reports that its batch "
                "was written",
                hint="Use trigger(availableNow=True)",
            )
        process = self._started_process()
        process.engine.run(process.coordinator.settle(start[EPOCH]))
        has_messages = process.engine.run(process.coordinator.has_messages(WAIT_SLICE_S))
        return {EPOCH: start[EPOCH] + 1} if has_messages else start

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Shown as latestOffset in the query's progress, which has no other field for counts."""
        return None if self._process is None else self._process.coordinator.counts

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start[EPOCH] == end[EPOCH]:
            return []
        process = self._started_process()
        orders = process.engine.run(process.coordinator.orders(end[EPOCH]))
        return [InputPartition(order) for order in orders]

    def commit(self, end: dict[str, int]) -> None:
        """Not used, because it comes too late: see coordinator.py."""

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _started_process(self) -> _CoordinatorProcess:
        if self._process is None:
            self._process = _CoordinatorProcess(self._options)
        return self._process

    # -- in tasks -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from twinbus.spark.connector.worker_reader import read_batches

        order = partition.value
        assert isinstance(order, PartitionPlan)
        return read_batches(self._options, order)


class _CoordinatorProcess:
    """A coordinator with its event loop and its connection."""

    def __init__(self, options: ReadOptions) -> None:
        self.engine = LoopThread("twinbus source", dies_with_parent=True)
        self._stack = AsyncExitStack()
        try:
            self.coordinator = self.engine.run(self._open(options))
        except BaseException:
            self.close()
            raise

    async def _open(self, options: ReadOptions) -> StreamCoordinator:
        namespace = await self._stack.enter_async_context(options.namespace.open())
        reading = Reading(
            paths=await selected_paths(options, namespace),
            limit=BatchLimit(options.messages_per_trigger_max, options.bytes_per_trigger_max),
            deletes=options.mode is Mode.RECEIVE_AND_DELETE,
            poll_s=options.wait_s,
            receivers_per_queue=options.receivers_per_queue,
        )
        coordinator = StreamCoordinator(namespace.driver, reading)
        self._stack.push_async_callback(coordinator.close)
        await coordinator.start(options.driver_host or os.environ.get("SPARK_LOCAL_IP") or LOOPBACK)
        return coordinator

    def close(self) -> None:
        try:
            self.engine.run(self._stack.aclose(), timeout_s=10.0)
        finally:
            self.engine.close()
