"""The sink: ``df.write.format("servicebus")`` and ``df.writeStream.format("servicebus")``.

    planned (driver)     options and columns are checked before a task starts
    written (executors)  rows are encoded by one thread while the batch before is being sent
    committed (driver)   nothing is left to do: a message is in its queue once it was accepted

A task sends its rows in batches:

    rows of one Arrow batch -> grouped by destination -> links open, sizes checked
                            -> batches that fit -> several in flight -> accepted

Rule 1: ``send_all`` returns once the service has stored every message durably (at least once: what
        was accepted before a task failed is sent again when Spark repeats the task).
Rule 2: before the first message of an Arrow batch is sent, the link of every destination in it is
        open and every message in it fits. With a missing queue or a message that is too large
        nothing of the batch is sent; earlier Arrow batches of the task may have been sent.
Rule 3: order is kept for each destination. Only a batch that has to be sent again can fall behind
        those that were in flight with it; with one in flight none can.
Rule 4: every batch has its own deadline; transient errors are retried until then. When a send is
        ambiguous, the retry may send the messages twice: such messages are counted.
Rule 5: at least once. A task that is run again, and a micro-batch that is run again after a crash,
        send their rows again; with duplicate detection a queue drops the repeats of rows that have
        a messageId.
Rule 6: append only. The contents of a queue cannot be replaced.
Rule 7: commit and abort only log; they may be called again for the same micro-batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from twinbus.common.event_loop import LoopThread, bounded_gather
from twinbus.drivers.interface import Driver, LinkProperties, Sender
from twinbus.encoding.batching import ranges_that_fit
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import ConfigurationError, MessageTooLarge, ServerBusy, ServiceError
from twinbus.failover.backoff import RetryPolicy
from twinbus.spark.connector.options import WriteOptions
from twinbus.spark.connector.row_encoder import EncodedRow, check_columns, encode_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "BatchSender",
    "CommitInfo",
    "SendSummary",
    "ServiceBusBatchWriter",
    "ServiceBusStreamWriter",
]

# A send waits for one commit of the service; a thousand small messages fill most of its batch.
BATCH_COUNT_MAX: Final = 1_000
# Links cost memory on both sides. Rows may name any number of destinations.
LINKS_MAX: Final = 64
DESTINATIONS_AT_ONCE_MAX: Final = 16
# The first retry is early, because a restarted service is available within a second or two, and
# the deadline ends the retries, not their number.
RETRIES: Final = RetryPolicy(retry_total=1_000, retry_backoff_factor=0.1, retry_backoff_max=5.0)

Result = TypeVar("Result")


@dataclass(slots=True)
class SendSummary:
    """The messages that a destination has accepted."""

    messages: int = 0
    size_bytes: int = 0
    maybe_twice: int = 0
    """Sent again after an ambiguous attempt."""


class BatchSender:
    """Sends through one driver, in one event loop."""

    def __init__(
        self,
        driver: Driver,
        *,
        timeout_s: float,
        batches_in_flight_max: int,
        rng: Random | None = None,
    ) -> None:
        self.sent: dict[str, SendSummary] = {}
        """By destination."""
        self._driver = driver
        self._timeout_s = timeout_s
        self._in_flight_max = batches_in_flight_max
        self._rng = rng or Random()
        self._properties: dict[str, LinkProperties] = {}
        self._senders: dict[str, Sender] = {}
        """The one that was used last is last."""
        self._in_use: set[str] = set()

    async def send_all(self, messages: Sequence[EncodedRow], *, default: str | None) -> None:
        """Send one Arrow batch; ``default`` is for rows that name no destination."""
        groups = _group(messages, default)
        await bounded_gather(groups, self._open_link, concurrency_max=DESTINATIONS_AT_ONCE_MAX)
        for path, group in groups.items():
            _check_sizes(path, group, self._properties[path])
        await bounded_gather(
            groups.items(),
            lambda item: self._send_group(*item),
            concurrency_max=DESTINATIONS_AT_ONCE_MAX,
        )

    async def _open_link(self, path: str) -> None:
        """Open the link of a destination that was not used before."""
        if path not in self._properties:
            async with self._sender(path) as sender:
                self._properties[path] = await self._retry(
                    path, lambda left_s: sender.attach(timeout_s=left_s)
                )

    async def _send_group(self, path: str, group: Sequence[EncodedRow]) -> None:
        limit_bytes = self._properties[path].batch_limit_bytes
        async with self._sender(path) as sender:
            await bounded_gather(
                _batches(group, limit_bytes),
                lambda batch: self._send(path, sender, batch),
                concurrency_max=self._in_flight_max,
            )

    async def _send(self, path: str, sender: Sender, batch: Sequence[EncodedRow]) -> None:
        messages = [OutgoingMessage(each.encoded) for each in batch]
        sent = self.sent.setdefault(path, SendSummary())
        is_ambiguous = False

        async def send(left_s: float) -> None:
            nonlocal is_ambiguous
            try:
                await sender.send(messages, timeout_s=left_s)
            except ServiceError as error:
                is_ambiguous = is_ambiguous or error.is_ambiguous
                raise

        await self._retry(path, send)
        if is_ambiguous:
            sent.maybe_twice += len(batch)
        sent.messages += len(batch)
        sent.size_bytes += sum(len(each.encoded) for each in batch)

    async def _retry(self, path: str, attempt: Callable[[float], Awaitable[Result]]) -> Result:
        """Try until it succeeds, fails permanently, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s, retry = loop.time() + self._timeout_s, 0
        while True:
            try:
                return await attempt(max(0.1, deadline_s - loop.time()))
            except ServiceError as error:
                retry += 1
                delay_s = RETRIES.delay_s(retry, self._rng)
                if isinstance(error, ServerBusy):
                    delay_s = max(delay_s, error.retry_after_s)
                left_s = deadline_s - loop.time()
                if not error.is_transient or delay_s >= left_s:
                    raise self._error(path, error) from error
            await asyncio.sleep(delay_s)

    def _error(self, path: str, error: ServiceError) -> ServiceError:
        accepted = sum(each.messages for each in self.sent.values())
        failed = type(error)(
            f"Writing to {path!r} failed after {accepted:,} messages of this task were accepted: "
            f"{error.sentence}",
            path=path,
            condition=error.condition,
            hint=error.hint,
        )
        failed.is_ambiguous = error.is_ambiguous
        return failed.mark_final()

    # -- links --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _sender(self, path: str) -> AsyncIterator[Sender]:
        sender = self._senders.pop(path, None) or self._driver.sender(path)
        self._senders[path] = sender
        self._in_use.add(path)
        try:
            yield sender
        finally:
            self._in_use.discard(path)
            if len(self._senders) > LINKS_MAX:
                oldest = next(each for each in self._senders if each not in self._in_use)
                await self._senders.pop(oldest).close()


def _group(messages: Sequence[EncodedRow], default: str | None) -> dict[str, list[EncodedRow]]:
    groups: dict[str, list[EncodedRow]] = {}
    for message in messages:
        path = message.destination or default
        if path is None:
            raise ConfigurationError(
                "A row has no destination, and no option names one",
                hint="Set the option 'queue' or 'topic' for rows whose destination is null",
            )
        groups.setdefault(path, []).append(message)
    return groups


def _check_sizes(path: str, group: Sequence[EncodedRow], properties: LinkProperties) -> None:
    for message in group:
        if len(message.encoded) > properties.message_bytes_max:
            raise MessageTooLarge(
                f"Message {message.message_id[:128]!r} has {len(message.encoded):,} bytes; "
                f"{path!r} allows {properties.message_bytes_max:,}. No message of its Arrow batch "
                "was sent",
                path=path,
                hint="Reduce the size of its body, or filter out the row",
            )


def _batches(group: Sequence[EncodedRow], limit_bytes: int) -> list[Sequence[EncodedRow]]:
    return [
        group[start : min(start + BATCH_COUNT_MAX, fitting.stop)]
        for fitting in ranges_that_fit((len(each.encoded) for each in group), limit_bytes)
        for start in range(fitting.start, fitting.stop, BATCH_COUNT_MAX)
    ]


_LOG = logging.getLogger("twinbus.spark.connector.sink")
_ENGINE_NAME: Final = "servicebus-sink"
CLOSE_S_MAX: Final = 10.0


@dataclass
class CommitInfo(WriterCommitMessage):
    """The messages of one task that were accepted."""

    messages: dict[str, int] = field(default_factory=dict)
    """By destination."""
    size_bytes: int = 0
    maybe_twice: int = 0
    """Messages that were sent again after an ambiguous attempt."""


class _Writing:
    """Both writers; pickled for the executors, so it contains only options."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                "servicebus only appends messages: those of a queue cannot be replaced",
                hint="Use mode('append') or outputMode('append')",
            )
        self._options = WriteOptions.from_options(options)
        check_columns(schema, has_destination=self._options.destination is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        engine = LoopThread(_ENGINE_NAME)
        try:
            return _write_all(engine, self._options, iterator)
        finally:
            engine.close()


class ServiceBusBatchWriter(_Writing, DataSourceArrowWriter):
    """``df.write``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_summary("Wrote %d messages, %d bytes, to %d destinations", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_summary("Write failed after %d messages, %d bytes, to %d destinations", messages)


class ServiceBusStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_summary("Wrote %d messages, %d bytes, to %d destinations", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_summary("Micro-batch failed after %d messages, %d bytes, to %d destinations", messages)


def _log_summary(text: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Tasks that failed returned no counts: the messages they had sent are not included."""
    counts = [each for each in messages if isinstance(each, CommitInfo)]
    _LOG.info(
        text,
        sum(sum(each.messages.values()) for each in counts),
        sum(each.size_bytes for each in counts),
        len({path for each in counts for path in each.messages}),
    )
    if maybe_twice := sum(each.maybe_twice for each in counts):
        _LOG.warning(
            "%d messages may be stored twice: the service did not acknowledge them, and they were "
            "sent again",
            maybe_twice,
        )


# --- one task ----------------------------------------------------------------------------------


def _write_all(
    engine: LoopThread, options: WriteOptions, batches: Iterator[pa.RecordBatch]
) -> CommitInfo:
    connection = _SinkConnection(options)
    try:
        under_way: Future[None] | None = None
        for batch in batches:
            outgoing = encode_rows(batch, now_ms=time.time_ns() // 1_000_000)
            if under_way is not None:
                under_way.result()
            under_way = engine.start(connection.send_all(outgoing)) if outgoing else None
        if under_way is not None:
            under_way.result()
        return connection.summary()
    finally:
        # Accepted messages stay accepted, whatever closing the connection raises.
        with suppress(Exception):
            engine.run(connection.close(), timeout_s=CLOSE_S_MAX)


class _SinkConnection:
    """A task's connection to the namespace; a task without rows opens none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._sender: BatchSender | None = None

    async def send_all(self, outgoing: Sequence[EncodedRow]) -> None:
        if self._sender is None:
            namespace = await self._stack.enter_async_context(self._options.namespace.open())
            self._sender = BatchSender(
                namespace.driver,
                timeout_s=self._options.send_timeout_s,
                batches_in_flight_max=self._options.batches_in_flight_max,
            )
        await self._sender.send_all(outgoing, default=self._options.destination)

    def summary(self) -> CommitInfo:
        sent = {} if self._sender is None else self._sender.sent
        return CommitInfo(
            {path: each.messages for path, each in sent.items()},
            sum(each.size_bytes for each in sent.values()),
            sum(each.maybe_twice for each in sent.values()),
        )

    async def close(self) -> None:
        await self._stack.aclose()
