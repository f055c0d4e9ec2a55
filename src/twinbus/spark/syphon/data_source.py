"""The backlog as a data source: reading it moves its messages, and yields the receipts.

    spark.readStream.format("twinbus-backlog").options(**settings.to_options()).load()

Rule 1: an offset is an epoch, a number that only counts: which messages are moved is decided by
        the locks of the backlog queues. Losing a checkpoint loses nothing.
Rule 2: Spark loads this module in a dozen processes, one after the other, before the first message
        is moved: the coordinator and the mover are loaded only where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from twinbus.spark.errors import without_traceback
from twinbus.spark.syphon.receipt_rows import RECEIPT_COLUMNS
from twinbus.spark.syphon.settings import SyphonSettings

if TYPE_CHECKING:
    from twinbus.common.event_loop import LoopThread
    from twinbus.mover.planning.work_order import WorkOrder
    from twinbus.spark.driver_channel import DriverChannelAddress
    from twinbus.spark.syphon.coordinator import SyphonCoordinator

__all__ = ["FORMAT", "BacklogSource"]

FORMAT: Final = "twinbus-backlog"
STOP_S_MAX: Final = 3.0


class BacklogSource(DataSource):
    """Receipts of moved messages."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @without_traceback()
    def schema(self) -> str:
        SyphonSettings.from_options(self.options)  # load() raises for a wrong option.
        return RECEIPT_COLUMNS

    @without_traceback()
    def streamReader(self, schema: Any) -> SyphonStreamReader:
        return SyphonStreamReader(SyphonSettings.from_options(self.options))


@dataclass
class WorkOrderPartition(InputPartition):
    """A work order for a task."""

    order: WorkOrder
    order_id: str
    channel: DriverChannelAddress


class SyphonStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's calls, passed on to the coordinator (on the driver) or a work order (in a task)."""

    def __init__(self, settings: SyphonSettings) -> None:
        self._settings = settings
        self._is_once = False
        self._engine: LoopThread | None = None
        self._coordinator: SyphonCoordinator | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_settings": self._settings,
            "_is_once": False,
            "_engine": None,
            "_coordinator": None,
        }

    # -- on the driver --------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_once = True

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        engine, coordinator = self._start()
        return {"epoch": engine.run(coordinator.next_epoch(start["epoch"], once=self._is_once))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        engine, coordinator = self._start()
        orders = engine.run(_get_orders(coordinator, end["epoch"]))
        return [
            WorkOrderPartition(order, order_id, coordinator.address)
            for order_id, order in orders.items()
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: tasks settle what they have moved."""

    def stop(self) -> None:
        if self._engine is not None and self._coordinator is not None:
            try:
                self._engine.run(self._coordinator.close(), timeout_s=STOP_S_MAX)
            finally:
                self._engine.close()

    def _start(self) -> tuple[LoopThread, SyphonCoordinator]:
        if self._engine is None or self._coordinator is None:
            from twinbus.common.event_loop import LoopThread
            from twinbus.spark.syphon.coordinator import SyphonCoordinator

            self._engine = LoopThread("twinbus-syphon", dies_with_parent=True)
            self._coordinator = SyphonCoordinator(self._settings)
            self._engine.run(self._coordinator.start())
        return self._engine, self._coordinator

    # -- in a task ------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from twinbus.spark.syphon.task import work_order

        assert isinstance(partition, WorkOrderPartition)
        context = TaskContext.get()
        yield from work_order(
            self._settings,
            partition.order,
            partition.order_id,
            partition.channel,
            is_second_try=context is not None and context.attemptNumber() > 0,
        )


async def _get_orders(coordinator: SyphonCoordinator, epoch: int) -> dict[str, WorkOrder]:
    return coordinator.orders(epoch)
