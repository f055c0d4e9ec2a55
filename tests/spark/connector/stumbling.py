"""The data source with a reader that stumbles: for tests of what Spark does then.

A module of its own, because Spark's workers must be able to import it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from twinbus.spark.connector.data_source import ServiceBusDataSource
from twinbus.spark.connector.options import ReadOptions
from twinbus.spark.connector.stream_reader import ServiceBusStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class StumblingReader(ServiceBusStreamReader):
    """The first try of each task ends after one chunk, by kill -9."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in super().read(partition):
            yield batch
            if context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class StumblingSource(ServiceBusDataSource):
    @classmethod
    def name(cls) -> str:
        return "stumbling"

    def streamReader(self, schema: StructType) -> StumblingReader:
        return StumblingReader(ReadOptions.from_options(self.options, is_streaming=True))
