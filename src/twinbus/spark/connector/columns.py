"""The columns of ``format("servicebus")``, and received messages as Arrow batches of them.

    Delivered, Delivered, ...  --one pass-->  rows, maps  --one array per column-->  RecordBatch

Rule 1: the Arrow schema is what Spark makes of the columns; Spark refuses every other.
Rule 2: bytes that are no message cost their own row at most, never the batch: such a row has the
        raw bytes and the body type "undecodable".
Rule 3: application properties are text with the name of their AMQP type beside it
        (column_types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from twinbus.core.envelope_layout import DAMAGE
from twinbus.core.parcel import ReceivedMessage
from twinbus.spark.connector.column_types import text_and_type
from twinbus.spark.connector.message_rows import VALUE_COUNT, raw_row, row_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "SCHEMA_DDL", "arrow_schema", "schema", "to_batch"]

COLUMNS: Final[dict[str, str]] = {
    "body": "binary",
    "bodyType": "string",
    "messageId": "string",
    "sequenceNumber": "bigint",
    "enqueuedTime": "timestamp",
    "deliveryCount": "int",
    "lockToken": "string",
    "lockedUntil": "timestamp",
    "queue": "string",
    "sessionId": "string",
    "partitionKey": "string",
    "correlationId": "string",
    "subject": "string",
    "contentType": "string",
    "contentEncoding": "string",
    "to": "string",
    "replyTo": "string",
    "replyToSessionId": "string",
    "timeToLive": "bigint",
    "scheduledEnqueueTime": "timestamp",
    "priority": "int",
    "properties": "map<string,string>",
    "propertyTypes": "map<string,string>",
    "deadLetterReason": "string",
    "deadLetterErrorDescription": "string",
    "deadLetterSource": "string",
    "systemProperties": "map<string,string>",
}
"""Names and types, in order. timeToLive is in milliseconds, queue is the path it came from."""

SCHEMA_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())


def schema() -> StructType:
    """The columns as Spark knows them."""
    from pyspark.sql import types

    kinds = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType([types.StructField(name, kinds[COLUMNS[name]]) for name in COLUMNS])


_MAP: Final = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)
_ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": _MAP,
}
_SCHEMA: Final = pa.schema([pa.field(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])


def arrow_schema() -> pa.Schema:
    """The columns as Arrow knows them."""
    return _SCHEMA


# --- batches -----------------------------------------------------------------------------------


class _Maps:
    """A map column while it grows."""

    def __init__(self) -> None:
        self.offsets, self.keys, self.values = [0], list[str](), list[str | None]()

    def end_row(self) -> None:
        self.offsets.append(len(self.keys))

    def array(self) -> pa.Array:
        return pa.MapArray.from_arrays(
            pa.array(self.offsets, pa.int32()),
            pa.array(self.keys, pa.string()),
            pa.array(self.values, pa.string()),
            type=_MAP,
        )


def to_batch(deliveries: Sequence[ReceivedMessage]) -> pa.RecordBatch:
    """One row per message, in order. Their bodies together stay below 2 GiB (Arrow's limit)."""
    rows = []
    texts, kinds, system = _Maps(), _Maps(), _Maps()
    for delivered in deliveries:
        try:
            row, properties, others = row_of(delivered)
        except DAMAGE:
            row, properties, others = raw_row(delivered), {}, {}
        rows.append(row)
        for name, value in properties.items():
            text, kind = text_and_type(value)
            texts.keys.append(name)
            texts.values.append(text)
            kinds.keys.append(name)
            kinds.values.append(kind)
        if others:
            system.keys.extend(others)
            system.values.extend(others.values())
        texts.end_row()
        kinds.end_row()
        system.end_row()
    plain: Iterable[Any] = zip(*rows, strict=True) if rows else [()] * VALUE_COUNT
    fields = iter(plain)
    maps = {"properties": texts, "propertyTypes": kinds, "systemProperties": system}
    return pa.record_batch(
        [
            maps[field.name].array() if field.name in maps else _array(next(fields), field.type)
            for field in _SCHEMA
        ],
        schema=_SCHEMA,
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):  # Most columns of most batches.
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)
