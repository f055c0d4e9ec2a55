"""Reads one partition in a Python worker: a PartitionReader on its own loop, as Arrow batches.

Spark uses a worker for one task after the other, and the connection is kept for the next task:
opening one takes longer than reading a small batch.

Rule 1: while Spark processes one chunk the next one is received.
Rule 2: the order is sealed when Spark has got every row. That is earlier than their use: rows that
        a plan leaves out (limit, show) count as read.
Rule 3: a connection over which a task failed is not used again; for the next one the credential is
        read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from twinbus.common.event_loop import LoopThread
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError
from twinbus.pairing.client.namespace_connection import NamespaceConnection
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.connector.message_columns import to_batch
from twinbus.spark.connector.options import Mode, ReadOptions
from twinbus.spark.connector.partition_plan import PartitionPlan
from twinbus.spark.connector.partition_reader import PartitionReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_batches"]

CLOSE_TIMEOUT_S: Final = 10.0


class _WorkerConnection:
    """A namespace that stays open between the tasks of this process."""

    def __init__(self, reference: NamespaceRef) -> None:
        self.engine = LoopThread("twinbus worker")
        self._stack = AsyncExitStack()
        try:
            self.namespace: NamespaceConnection = self.engine.run(
                self._stack.enter_async_context(reference.open())
            )
        except BaseException:
            self.engine.close()
            raise

    def close(self) -> None:
        with suppress(ServiceError, TimeoutError):
            self.engine.run(self._stack.aclose(), timeout_s=CLOSE_TIMEOUT_S)
        self.engine.close()


_CONNECTIONS: Final[dict[NamespaceRef, _WorkerConnection]] = {}
"""Open connections that no task uses. A worker has one task at a time."""


def read_batches(options: ReadOptions, order: PartitionPlan) -> Iterator[pa.RecordBatch]:
    """The rows of one order."""
    reference = options.namespace
    connection = _CONNECTIONS.pop(reference, None) or _WorkerConnection(reference)
    deletes = options.mode is Mode.RECEIVE_AND_DELETE
    try:
        yield from _batches(connection, order, deletes=deletes)
    except BaseException:
        connection.close()
        raise
    _CONNECTIONS[reference] = connection


def _batches(
    connection: _WorkerConnection, order: PartitionPlan, *, deletes: bool
) -> Iterator[pa.RecordBatch]:
    engine = connection.engine
    stack = AsyncExitStack()
    coming: Future[list[ReceivedMessage]] | None = None
    try:
        reader = PartitionReader(connection.namespace.driver, order, deletes=deletes)
        engine.run(stack.enter_async_context(reader))
        coming = engine.start(reader.chunk())
        while messages := coming.result():
            coming = engine.start(reader.chunk())
            yield to_batch(messages)
        engine.run(reader.finish())
    finally:
        if coming is not None:
            coming.cancel()
        engine.run(stack.aclose(), timeout_s=CLOSE_TIMEOUT_S)
