"""The columns of ``format("servicebus")``, and received messages as Arrow batches of them.

    ReceivedMessage, ...  --one pass-->  rows, maps  --one array per column-->  RecordBatch

A row is the values of a message's columns, all but the maps in one tuple.

Rule 1: a body is never decoded. Data sections are joined; a body of values is kept as its encoded
        sections, so that a sink sends what a source read.
Rule 2: bytes that are not a message raise one of DAMAGE; numbers outside a column's range become
        its minimum or maximum.
Rule 3: the cost of a message depends on what it contains: fields that are null, and the annotations
        that every broker adds, are skipped.
Rule 4: the Arrow schema is the one that Spark derives from the columns; Spark refuses every other.
Rule 5: bytes that are not a message affect their own row only, never the batch: such a row has the
        raw bytes and the body type "undecodable".
Rule 6: application properties are text, with the name of their AMQP type in another column
        (column_types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.primitives import unpack_u32
from twinbus.amqp.codec.skip import skip_value
from twinbus.amqp.codec.types import Timestamp
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.sections import DATA, SEQUENCE, VALUE, section_at
from twinbus.encoding.splicing import (
    CREATION_TIME,
    DAMAGE,
    EXPIRY_TIME,
    PROPERTY_COUNT_MAX,
    SECTION_HEAD_BYTES,
    TTL_MS_UNSPECIFIED,
    header_at,
    outline,
    pairs_of,
    property_starts,
    value_at,
)
from twinbus.encoding.transit import ReceivedMessage
from twinbus.spark.connector.column_types import text_and_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "ARROW_SCHEMA",
    "BODY_TYPES",
    "COLUMNS",
    "CORRELATION_ID_TYPE",
    "MESSAGE_ID_TYPE",
    "NO_BODY",
    "SCHEMA_DDL",
    "UNDECODABLE",
    "VALUE_COUNT",
    "body_at",
    "raw_row",
    "row_of",
    "schema",
    "to_batch",
]

# The values of the column bodyType.
BODY_TYPES: Final = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}
NO_BODY: Final = "none"
UNDECODABLE: Final = "undecodable"
MESSAGE_ID_TYPE, CORRELATION_ID_TYPE = "messageIdType", "correlationIdType"
"""Among the system properties: the AMQP type of an id that is not a string."""

VALUE_COUNT: Final = 24
"""Columns that are not maps."""


def row_of(
    delivered: ReceivedMessage,
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, str | None]]:
    """(columns that are not maps, application properties, system properties)."""
    buf, (header_stop, delivery_stop, annotations_stop, properties_stop, stop) = outline(
        delivered.encoded
    )
    priority, ttl_ms = _header_of(buf[:header_stop]) if header_stop else (None, None)
    fields, others = _fields_at(buf, annotations_stop, properties_stop)
    annotations = _NOTHING
    if not _has_facts_only(buf, delivery_stop, annotations_stop):
        annotations = _annotations_at(buf, delivery_stop, annotations_stop, others)
    properties = _map_at(buf, properties_stop, stop) if stop > properties_stop else {}
    body, body_type = body_at(buf, stop)
    row = (
        body,
        body_type,
        fields[0],
        _long(delivered.sequence_number),
        _micros(delivered.enqueued_at_ms),
        _int(delivered.delivery_count),
        _token_text(delivered.lock_token),
        _micros(delivered.locked_until_ms),
        delivered.path,
        fields[10],
        _text(annotations.get(b"x-opt-partition-key")),
        fields[5],
        fields[3],
        fields[6],
        fields[7],
        fields[2],
        fields[4],
        fields[12],
        ttl_ms if ttl_ms != TTL_MS_UNSPECIFIED else _long_ttl_ms(fields),
        _micros(annotations.get(b"x-opt-scheduled-enqueue-time")),
        priority,
        _text(properties.get("DeadLetterReason")) if properties else None,
        _text(properties.get("DeadLetterErrorDescription")) if properties else None,
        _text(annotations.get(b"x-opt-deadletter-source")),
    )
    return row, properties, others


def raw_row(delivered: ReceivedMessage) -> tuple[Any, ...]:
    """The delivery's own values, and the message as raw bytes."""
    facts = (
        _long(delivered.sequence_number),
        _micros(delivered.enqueued_at_ms),
        _int(delivered.delivery_count),
        _token_text(delivered.lock_token),
        _micros(delivered.locked_until_ms),
        delivered.path,
    )
    known = (delivered.encoded, UNDECODABLE, None, *facts)
    return (*known, *(None,) * (VALUE_COUNT - len(known)))


# --- sections ----------------------------------------------------------------------------------

_IDS: Final = {0: MESSAGE_ID_TYPE, 5: CORRELATION_ID_TYPE}
# Shown, and never sent again: the service sets the user id, and the times follow from the time to
# live.
_SHOWN_FIELDS: Final = {
    1: "user-id",
    EXPIRY_TIME: "absolute-expiry-time",
    CREATION_TIME: "creation-time",
    11: "group-sequence",
}
_COLUMN_ANNOTATIONS: Final = frozenset(
    (b"x-opt-partition-key", b"x-opt-scheduled-enqueue-time", b"x-opt-deadletter-source")
)
# The driver has read them already.
_FACT_ANNOTATIONS: Final = frozenset(
    (b"x-opt-sequence-number", b"x-opt-enqueued-time", b"x-opt-locked-until")
)
_NOTHING: Final[Mapping[bytes, Any]] = {}
# These three as the broker writes them, each with a value of eight bytes, which is skipped here.
_FACTS: Final = Struct(">12s24s8x22s8x21s8x")
_FACTS_EXPECTED: Final = (
    b"\x00\x53\x72\xd1\x00\x00\x00\x5f\x00\x00\x00\x06",
    b"\xa3\x15x-opt-sequence-number\x81",
    b"\xa3\x13x-opt-enqueued-time\x83",
    b"\xa3\x12x-opt-locked-until\x83",
)


@lru_cache(maxsize=256)
def _header_of(section: bytes) -> tuple[int | None, int | None]:
    """(priority, time to live in milliseconds); the messages of a queue have few distinct
    headers."""
    header = header_at(section, len(section))
    return header.priority, header.ttl_ms


def _fields_at(buf: bytes, start: int, stop: int) -> tuple[list[Any], dict[str, str | None]]:
    """The thirteen properties, with ids as text; and those that are shown as system properties."""
    fields: list[Any] = [None] * PROPERTY_COUNT_MAX
    others: dict[str, str | None] = {}
    for index, (first, after) in enumerate(pairwise(property_starts(buf, start, stop))):
        if buf[first] == 0x40:
            continue
        value = value_at(buf, first, after)
        if index in _IDS:
            fields[index], kind = text_and_type(value)
            if kind != "string":
                others[_IDS[index]] = kind
        elif index in _SHOWN_FIELDS:
            fields[index] = value
            others[_SHOWN_FIELDS[index]] = text_and_type(value)[0]
        elif isinstance(value, str):
            fields[index] = value
    return fields, others


def _has_facts_only(buf: bytes, start: int, stop: int) -> bool:
    """Whether these are the annotations that a broker adds to a plain message, in its order."""
    return stop - start == _FACTS.size and _FACTS.unpack_from(buf, start) == _FACTS_EXPECTED


def _annotations_at(
    buf: bytes, start: int, stop: int, others: dict[str, str | None]
) -> dict[bytes, Any]:
    """The annotations that have a column; the rest goes to ``others`` as text."""
    shown: dict[bytes, Any] = {}
    for key, pair_start, first, after in pairs_of(buf, start, stop):
        if key in _FACT_ANNOTATIONS:
            continue
        value = value_at(buf, first, after)
        if key is None:
            others[str(value_at(buf, pair_start, first))] = text_and_type(value)[0]
        elif key in _COLUMN_ANNOTATIONS:
            shown[key] = value
        else:
            others[key.decode()] = text_and_type(value)[0]
    return shown


def _map_at(buf: bytes, start: int, stop: int) -> dict[str, Any]:
    found: Any = decode_value(buf, start + SECTION_HEAD_BYTES, stop, Budget())[0]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise DecodeError("The name of an application property is not a string. Use strings.")
    return found


_DATA_HEAD: Final = bytes((0x00, 0x53, DATA))


def body_at(buf: bytes, pos: int) -> tuple[bytes | None, str]:
    """(the content of data sections, or the other sections as they are; the column bodyType)."""
    end = len(buf)
    if buf.startswith(_DATA_HEAD, pos):  # One data section and nothing after it, nearly always.
        code = buf[pos + 3]
        if code == 0xB0 and pos + 8 + unpack_u32(buf, pos + 4)[0] == end:
            return buf[pos + 8 :], "data"
        if code == 0xA0 and pos + 5 + buf[pos + 4] == end:
            return buf[pos + 5 :], "data"
    return _body_sections(buf, pos, end)


def _body_sections(buf: bytes, pos: int, end: int) -> tuple[bytes | None, str]:
    budget, kind, parts = Budget(is_built=False), 0, []
    while pos < end:
        code, start = section_at(buf, pos, end, budget)
        if code not in BODY_TYPES:
            break  # A footer, or delivery annotations that come late.
        if kind and (code != kind or kind == VALUE):
            raise DecodeError("A body has sections that cannot follow each other.")
        after = skip_value(buf, start, end, budget)
        if code == DATA:
            data = decode_value(buf, start, after, budget)[0]
            if not isinstance(data, bytes):
                raise DecodeError("A data section is not binary. Encode it as binary.")
            parts.append(data)
        else:
            parts.append(bytes((0x00, 0x53, code)) + buf[start:after])
        kind, pos = code, after
    return (b"".join(parts), BODY_TYPES[kind]) if kind else (None, NO_BODY)


# --- single values -----------------------------------------------------------------------------

_I64_MAX: Final = (1 << 63) - 1
_I32_MAX: Final = (1 << 31) - 1
# The first and the last millisecond of Spark's calendar, which has four digits for the year.
_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
_GUID: Final = Struct("<IHH2s6s")


def _text(value: Any) -> str | None:
    """Plain text of a string or symbol; None of anything else."""
    return value if isinstance(value, str) else None


def _micros(ms: Any) -> int | None:
    """Microseconds, as Spark counts; a time outside its calendar is the calendar's limit."""
    if ms is None or not isinstance(ms, int):
        return None
    return (ms if _MS_MIN <= ms <= _MS_MAX else _MS_MIN if ms < 0 else _MS_MAX) * 1_000


def _long(value: int) -> int:
    return value if -_I64_MAX <= value <= _I64_MAX else _I64_MAX


def _int(value: int) -> int:
    return value if 0 <= value <= _I32_MAX else _I32_MAX


def _token_text(token: bytes) -> str | None:
    """A lock token as the SDK shows it: its bytes as a .NET GUID."""
    if len(token) != _GUID.size:
        return token.hex() or None
    first, second, third, fourth, last = _GUID.unpack(token)
    return f"{first:08x}-{second:04x}-{third:04x}-{fourth.hex()}-{last.hex()}"


def _long_ttl_ms(fields: list[Any]) -> int | None:
    """A time to live of more than 49 days travels as two times."""
    expires_ms, creation_ms = fields[EXPIRY_TIME], fields[CREATION_TIME]
    if type(expires_ms) is not Timestamp or type(creation_ms) is not Timestamp:
        return None
    return _long(max(0, expires_ms - creation_ms))


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
"""Names and types, in order. timeToLive is in milliseconds, queue is the path of the source."""

SCHEMA_DDL: Final = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())


def schema() -> StructType:
    """The columns as a schema of Spark."""
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
ARROW_SCHEMA: Final = pa.schema(
    [pa.field(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS.items()]
)


# --- batches -----------------------------------------------------------------------------------


class _Maps:
    """A map column while it is built."""

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
            for field in ARROW_SCHEMA
        ],
        schema=ARROW_SCHEMA,
    )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):  # Most columns of most batches.
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)
