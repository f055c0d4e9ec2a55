"""The sink: ``df.write.format("servicebus")`` and ``df.writeStream.format("servicebus")``.

    planned (driver)     options and columns checked: a sentence, before a task starts
    written (executors)  rows encoded by this thread while the batch before is being sent
    committed (driver)   nothing is left to do: a message is in its queue once it was accepted

Rule 1: at least once. A task that is run again, and a micro-batch that is run again after a
        crash, send their rows again; rows that bring their messageId are then recognised by a
        queue that looks for duplicates.
Rule 2: append only. A queue has no contents that could be replaced.
Rule 3: commit and abort only tell; they may be called again for the same micro-batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from twinbus.errors import ConfigurationError
from twinbus.spark.connector.dispatch import BatchSender
from twinbus.spark.connector.options import WriteOptions
from twinbus.spark.connector.outgoing import EncodedRow, check_columns, messages_of
from twinbus.spark.engine import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["CommitInfo", "ServiceBusBatchWriter", "ServiceBusStreamWriter"]

_LOG = logging.getLogger(__name__)
_ENGINE_NAME: Final = "servicebus-sink"
CLOSE_S_MAX: Final = 10.0


@dataclass
class CommitInfo(WriterCommitMessage):
    """What one task has had accepted."""

    messages: dict[str, int] = field(default_factory=dict)
    """By destination."""
    size_bytes: int = 0
    maybe_twice: int = 0
    """Messages that were sent again after an attempt of which nobody knows how it ended."""


class _Writing:
    """What both writers do; pickled to the executors, so it holds options only."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "servicebus adds messages and cannot replace those of a queue",
                hint="Use mode('append') or outputMode('append')",
            )
        self._options = WriteOptions.from_options(options)
        check_columns(schema, has_destination=self._options.destination is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        engine = LoopThread(_ENGINE_NAME)
        try:
            return _written(engine, self._options, iterator)
        finally:
            engine.close()


class ServiceBusBatchWriter(_Writing, DataSourceArrowWriter):
    """``df.write``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell("wrote %d messages, %d bytes, to %d destinations", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell("a write failed after %d messages, %d bytes, to %d destinations", messages)


class ServiceBusStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell("wrote %d messages, %d bytes, to %d destinations", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell("a micro-batch failed after %d messages, %d bytes, to %d destinations", messages)


def _tell(text: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Tasks that failed have told nothing: what they had sent is not counted."""
    told = [each for each in messages if isinstance(each, CommitInfo)]
    _LOG.info(
        text,
        sum(sum(each.messages.values()) for each in told),
        sum(each.size_bytes for each in told),
        len({path for each in told for path in each.messages}),
    )
    if maybe_twice := sum(each.maybe_twice for each in told):
        _LOG.warning(
            "%d messages may be there twice: the service did not answer when they were sent, "
            "and they were sent again",
            maybe_twice,
        )


# --- one task ----------------------------------------------------------------------------------


def _written(
    engine: LoopThread, options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> CommitInfo:
    line = _SinkConnection(options)
    try:
        under_way: Future[None] | None = None
        for batch in batches:
            outgoing = messages_of(batch, now_ms=time.time_ns() // 1_000_000)
            if under_way is not None:
                under_way.result()
            under_way = engine.start(line.send_all(outgoing)) if outgoing else None
        if under_way is not None:
            under_way.result()
        return line.summary()
    finally:
        # What was accepted stays accepted, however the line ends.
        with suppress(Exception):
            engine.run(line.close(), timeout_s=CLOSE_S_MAX)


class _SinkConnection:
    """A task's way to the namespace; a task without rows opens none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._dispatch: BatchSender | None = None

    async def send_all(self, outgoing: Sequence[EncodedRow]) -> None:
        if self._dispatch is None:
            namespace = await self._stack.enter_async_context(self._options.namespace.opened())
            self._dispatch = BatchSender(
                namespace.driver,
                timeout_s=self._options.send_timeout_s,
                batches_in_flight_max=self._options.batches_in_flight_max,
            )
        await self._dispatch.send_all(outgoing, default=self._options.destination)

    def summary(self) -> CommitInfo:
        shipped = {} if self._dispatch is None else self._dispatch.shipped
        return CommitInfo(
            {path: each.messages for path, each in shipped.items()},
            sum(each.size_bytes for each in shipped.values()),
            sum(each.maybe_twice for each in shipped.values()),
        )

    async def close(self) -> None:
        await self._stack.aclose()
