"""Rows of a DataFrame as encoded messages: what the sink sends.

    body                required: binary, or string, which is sent as UTF-8
    destination         the queue or topic of this row, instead of the option's
    bodyType            data (the default), value or sequence: then body is the encoded section
    properties          application properties; propertyTypes names their AMQP types, else strings
    messageId, sessionId, subject, timeToLive, scheduledEnqueueTime, ...   as in message_columns.py

Rule 1: columns are checked when a write is planned: one that nobody knows is refused by name, so
        that no value is left out in silence.
Rule 2: what a service gives to a message (number, times, lock, dead-letter source) may be there,
        so that what a source read can be written as it is; it is not sent. Nor are the reason and
        the description of a dead letter, which travel among the properties: sent again, it is
        none any more. (A received message as a new one in Azure's .NET SDK leaves them out, too.)
Rule 3: a row without an id gets a new one. It is random: one that is made from the row's place
        would be given to another row when Spark runs a task again, and a queue that looks for
        duplicates would drop the wrong message.
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

__all__ = ["EncodedRow", "check_columns", "messages_of"]


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
# AMQP's own default: a message says the same without it.
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
                f"the DataFrame has two columns {name!r}", hint="Keep one of them"
            )
        found.add(name)
        kind = field.dataType.simpleString()
        if name in _SENT and kind not in _ALLOWED_TYPES[name]:
            raise ConfigurationError(
                f"the column {name!r} is {kind[:80]} and servicebus takes "
                f"{' or '.join(_ALLOWED_TYPES[name])}",
                hint=f"Cast it to {_ALLOWED_TYPES[name][0]}",
            )
    if "body" not in found:
        raise ConfigurationError(
            "the DataFrame has no column 'body'",
            hint="Name the column to send: select(col(...).alias('body'))",
        )
    if not has_destination and "destination" not in found:
        raise ConfigurationError(
            "neither an option nor a column says where to write",
            hint="Set the option 'queue' or 'topic', or add a column 'destination'",
        )


def _unknown_column(name: str) -> ConfigurationError:
    nearest = get_close_matches(name.lower(), _KNOWN, n=1)
    hint = f"Did you mean {_KNOWN[nearest[0]]!r}" if nearest else f"Use {', '.join(_SENT)}"
    return ConfigurationError(
        f"servicebus has no column {name[:80]!r} that it could send",
        hint=f"{hint}? Drop it, or put it into the body" if nearest else hint,
    )


# --- rows --------------------------------------------------------------------------------------


def messages_of(batch: pa.RecordBatch, *, now_ms: int) -> list[EncodedRow]:
    """The rows of a batch as messages, in order; InvalidMessage names what cannot be sent."""
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
    """Each row as a dict of what is set."""
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
            "timeToLive", f"is {ms} milliseconds", hint="Use null for no limit"
        ) from None


def _sections(kind: str, body: Any) -> bytes:
    """The encoded sections of a body that is not data, once they are what they are said to be."""
    if kind == NO_BODY and not body:
        return b""
    if kind == UNDECODABLE:
        raise InvalidMessage(
            "bodyType",
            f"is {UNDECODABLE!r}: a source could not read it",
            hint=f"Filter such rows out: where(\"bodyType <> '{UNDECODABLE}'\")",
        )
    if kind not in BODY_TYPES.values() or not isinstance(body, bytes):
        raise InvalidMessage(
            "bodyType",
            f"is {kind[:40]!a} with a body that is {type(body).__name__}",
            hint="Use data, or value and sequence with the encoded section in a binary body",
        )
    try:
        is_said = body_at(body, 0) == (body, kind)
    except DAMAGE:
        is_said = False
    if not is_said:
        raise InvalidMessage(
            "body", f"holds no AMQP sections of the type {kind}", hint="Use the body type data"
        )
    return body
