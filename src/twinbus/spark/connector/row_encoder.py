"""Encodes rows of a DataFrame as messages, for the sink.

    body                required: binary, or string, which is sent as UTF-8
    destination         the queue or topic of this row, instead of the option's
    bodyType            data (the default), value or sequence: then body is the encoded section
    properties          application properties; propertyTypes names their AMQP types, else strings
    messageId, sessionId, subject, timeToLive, scheduledEnqueueTime, ...   as in message_columns.py

Rule 1: columns are checked when a write is planned: an unknown one is refused by name, so that no
        value is omitted unnoticed.
Rule 2: columns that the service sets (number, times, lock, dead-letter source) are allowed, so that
        the rows of a source can be written as they are; they are not sent. Nor are the reason and
        the description of a dead letter, which are application properties: sent again, the message
        is no longer a dead letter. (Azure's .NET SDK omits them as well when it creates a new
        message from a received one.)
Rule 3: a row without an id gets a new, random one. An id that is derived from the position of the
        row would be given to another row when Spark runs a task again, and duplicate detection
        would drop the wrong message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa

from twinbus.common.entity_path import parse_entity_path
from twinbus.encoding.brokered_message import encode_message, moment_of
from twinbus.encoding.splicing import DAMAGE
from twinbus.errors import ConfigurationError, InvalidMessage
from twinbus.message import BrokeredMessage
from twinbus.spark.connector.column_types import value_of
from twinbus.spark.connector.message_columns import (
    BODY_TYPES,
    COLUMNS,
    CORRELATION_ID_TYPE,
    MESSAGE_ID_TYPE,
    NO_BODY,
    UNDECODABLE,
    body_at,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["EncodedRow", "check_columns", "encode_rows"]


class EncodedRow(NamedTuple):
    """One message to be sent."""

    destination: str | None
    """A queue or topic; None where the row names none."""
    encoded: bytes
    message_id: str


_TEXTS: Final = {
    "sessionId": "session_id",
    "partitionKey": "partition_key",
    "subject": "subject",
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "to": "to",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_session_id",
}
_SENT: Final = (
    "body",
    "destination",
    "bodyType",
    "messageId",
    "correlationId",
    *_TEXTS,
    "timeToLive",
    "scheduledEnqueueTime",
    "priority",
    "properties",
    "propertyTypes",
    "systemProperties",
)
_KNOWN: Final = {name.lower(): name for name in (*COLUMNS, *_SENT)}
_ALLOWED_TYPES: Final[dict[str, tuple[str, ...]]] = {
    **{name: (kind,) for name, kind in COLUMNS.items()},
    "body": ("binary", "string"),
    "destination": ("string",),
    "timeToLive": ("bigint", "int"),
    "priority": ("int", "smallint", "tinyint", "bigint"),
}

_OF_DEAD_LETTERS: Final = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))
# AMQP's own default: it need not be sent.
_PRIORITY_DEFAULT: Final = 4
_MS: Final = timedelta(milliseconds=1)


def check_columns(schema: StructType, *, has_destination: bool) -> None:
    """Raise ConfigurationError unless rows of this schema can be sent."""
    found = set()
    for field in schema.fields:
        name = _KNOWN.get(field.name.lower())
        if name is None:
            raise _unknown_column(field.name)
        if name in found:
            raise ConfigurationError(
                f"The DataFrame has two columns {name!r}", hint="Remove one of them"
            )
        found.add(name)
        kind = field.dataType.simpleString()
        if name in _SENT and kind not in _ALLOWED_TYPES[name]:
            raise ConfigurationError(
                f"Column {name!r} has the type {kind[:80]}; servicebus requires "
                f"{' or '.join(_ALLOWED_TYPES[name])}",
                hint=f"Cast it to {_ALLOWED_TYPES[name][0]}",
            )
    if "body" not in found:
        raise ConfigurationError(
            "The DataFrame has no column 'body'",
            hint="Rename the column to send: select(col(...).alias('body'))",
        )
    if not has_destination and "destination" not in found:
        raise ConfigurationError(
            "Neither an option nor a column names the destination",
            hint="Set the option 'queue' or 'topic', or add a column 'destination'",
        )


def _unknown_column(name: str) -> ConfigurationError:
    nearest = get_close_matches(name.lower(), _KNOWN, n=1)
    hint = f"Did you mean {_KNOWN[nearest[0]]!r}" if nearest else f"Use {', '.join(_SENT)}"
    return ConfigurationError(
        f"servicebus cannot send the column {name[:80]!r}",
        hint=f"{hint}? Otherwise drop the column, or add it to the body" if nearest else hint,
    )


# --- rows --------------------------------------------------------------------------------------


def encode_rows(batch: pa.RecordBatch, *, now_ms: int) -> list[EncodedRow]:
    """The rows of a batch as messages, in order; InvalidMessage names a value that cannot be
    sent."""
    columns = {
        name: _values(batch.column(index), name)
        for index, found in enumerate(batch.schema.names)
        if (name := _KNOWN.get(found.lower())) in _SENT
    }
    return [_message(row, now_ms) for row in _rows(columns, batch.num_rows)]


def _values(array: pa.Array, name: str) -> Sequence[Any]:
    if name == "scheduledEnqueueTime":
        array = array.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: Sequence[Any] = array.to_pylist()
    return values


def _rows(columns: Mapping[str, Sequence[Any]], count: int) -> Iterator[dict[str, Any]]:
    """Each row as a dict of its values that are not null."""
    filled = {name: values for name, values in columns.items() if values.count(None) < count}
    names = list(filled)
    for values in zip(*filled.values(), strict=True) if filled else [()] * count:
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _message(row: dict[str, Any], now_ms: int) -> EncodedRow:
    get = row.get
    id_types = dict(get("systemProperties", ()))
    message_id = _id(row, "messageId", id_types.get(MESSAGE_ID_TYPE))
    if message_id is None:
        message_id = str(uuid4())
    kind, body = get("bodyType", "data"), get("body")
    message = BrokeredMessage(
        body if kind == "data" else None,
        message_id=message_id,
        correlation_id=_id(row, "correlationId", id_types.get(CORRELATION_ID_TYPE)),
        properties=_properties(row) if "properties" in row else {},
        **{field: row[name] for name, field in _TEXTS.items() if name in row},
    )
    if "timeToLive" in row:
        message.time_to_live = _time_to_live(row["timeToLive"])
    if "scheduledEnqueueTime" in row:
        message.scheduled_enqueue_time_utc = moment_of(row["scheduledEnqueueTime"] // 1_000)
    if get("priority", _PRIORITY_DEFAULT) != _PRIORITY_DEFAULT:
        message.priority = row["priority"]
    encoded = encode_message(message, now_ms=now_ms)
    if kind != "data":
        encoded += _sections(kind, body)
    destination = parse_entity_path(row["destination"]) if "destination" in row else None
    return EncodedRow(destination, encoded, str(message_id))


def _id(row: dict[str, Any], name: str, type_name: str | None) -> Any:
    return value_of(row.get(name), type_name, where=name)


def _properties(row: dict[str, Any]) -> dict[str, Any]:
    types = dict(row.get("propertyTypes", ()))
    return {
        name: value_of(text, types.get(name), where=f"property {name[:60]!a}")
        for name, text in row["properties"]
        if name not in _OF_DEAD_LETTERS
    }


def _time_to_live(ms: int) -> timedelta:
    try:
        return ms * _MS
    except OverflowError:
        raise InvalidMessage(
            "timeToLive", f"is {ms} milliseconds, which is too long", hint="Use null for no limit"
        ) from None


def _sections(kind: str, body: Any) -> bytes:
    """The encoded sections of a body that is not data, after a check that they have this type."""
    if kind == NO_BODY and not body:
        return b""
    if kind == UNDECODABLE:
        raise InvalidMessage(
            "bodyType",
            f"is {UNDECODABLE!r}: the source could not decode it",
            hint=f"Filter out such rows: where(\"bodyType <> '{UNDECODABLE}'\")",
        )
    if kind not in BODY_TYPES.values() or not isinstance(body, bytes):
        raise InvalidMessage(
            "bodyType",
            f"is {kind[:40]!a} with a body of type {type(body).__name__}",
            hint="Use data, or value or sequence with the encoded section in a binary body",
        )
    try:
        has_type = body_at(body, 0) == (body, kind)
    except DAMAGE:
        has_type = False
    if not has_type:
        raise InvalidMessage(
            "body", f"does not contain AMQP sections of type {kind}", hint="Use the body type data"
        )
    return body
