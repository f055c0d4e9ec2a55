"""``spark.read.format("servicebus")``: peeks at the messages of a queue. None is removed or locked.

Rule 1: a batch may be run any number of times, so it only peeks. It may or may not contain messages
        that others receive or send meanwhile.
Rule 2: everything that a peek returns is read, including locked, deferred and scheduled messages.
Rule 3: what a stream refuses is refused here as well. A peek does not report that an entity has
        sessions; opening a link does, and a link alone receives nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from twinbus.common.event_loop import LoopThread
from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError
from twinbus.spark.connector.options import ReadOptions
from twinbus.spark.connector.partition_plan import selected_paths
from twinbus.spark.connector.partition_reader import explain_error

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ServiceBusBatchReader"]

PEEK_COUNT: Final = 500
PEEK_TIMEOUT_S: Final = 30.0


class ServiceBusBatchReader(DataSourceReader):
    """One partition for each queue."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(path) for path in asyncio.run(_list_paths(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from twinbus.spark.connector.message_columns import to_batch

        for page in _pages(self._options, str(partition.value)):
            yield to_batch(page)


async def _list_paths(options: ReadOptions) -> list[str]:
    async with options.namespace.open() as namespace:
        return list(await selected_paths(options, namespace))


def _pages(options: ReadOptions, path: str) -> Iterator[list[ReceivedMessage]]:
    engine = LoopThread(f"peek {path}")
    opening = options.namespace.open()
    try:
        namespace = engine.run(opening.__aenter__())
        try:
            receiver: Receiver = namespace.driver.receiver(path)
            try:
                engine.run(receiver.receive(0, wait_s=0.0))
            except ServiceError as error:
                raise explain_error(path, error) from error
            number, left = options.starting_sequence_number, options.messages_max
            while left is None or left > 0:
                count = PEEK_COUNT if left is None else min(PEEK_COUNT, left)
                page = engine.run(
                    receiver.peek(count, from_sequence=number, timeout_s=PEEK_TIMEOUT_S)
                )
                if not page:
                    return
                yield page
                number = page[-1].sequence_number + 1
                left = None if left is None else left - len(page)
        finally:
            engine.run(opening.__aexit__(None, None, None))
    finally:
        engine.close()
