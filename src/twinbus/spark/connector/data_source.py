"""The data source ``servicebus``: what Spark calls first, before anything is read or written.

Spark creates one of these in several processes with the options; the readers and writers are
created where they are needed, from the checked options.

Rule 1: load() refuses wrong options, because it requests the columns; start() would be too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from twinbus.errors import ConfigurationError
from twinbus.spark.connector import message_columns
from twinbus.spark.connector.options import ReadOptions, check_read_options
from twinbus.spark.errors import without_traceback

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from twinbus.spark.connector.batch_reader import ServiceBusBatchReader
    from twinbus.spark.connector.stream_reader import ServiceBusStreamReader

__all__ = ["ServiceBusDataSource"]


class ServiceBusDataSource(DataSource):
    """Queues, topics and subscriptions of one namespace."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    @without_traceback()
    def schema(self) -> StructType:
        check_read_options(self.options)
        return message_columns.schema()

    @without_traceback()
    def reader(self, schema: StructType) -> ServiceBusBatchReader:
        from twinbus.spark.connector.batch_reader import ServiceBusBatchReader

        _check(schema)
        return ServiceBusBatchReader(ReadOptions.from_options(self.options, is_streaming=False))

    @without_traceback()
    def streamReader(self, schema: StructType) -> ServiceBusStreamReader:
        from twinbus.spark.connector.stream_reader import ServiceBusStreamReader

        _check(schema)
        return ServiceBusStreamReader(ReadOptions.from_options(self.options, is_streaming=True))

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from twinbus.spark.connector.sink import ServiceBusBatchWriter

        return ServiceBusBatchWriter(self.options, schema, overwrite)

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from twinbus.spark.connector.sink import ServiceBusStreamWriter

        return ServiceBusStreamWriter(self.options, schema, overwrite)


def _check(schema: StructType) -> None:
    found = [(field.name, field.dataType) for field in schema.fields]
    if found != [(field.name, field.dataType) for field in message_columns.schema().fields]:
        raise ConfigurationError(
            "The columns of servicebus and their types cannot be changed",
            hint="Remove .schema(...), and select() the columns you need",
        )
