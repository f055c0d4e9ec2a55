"""A BrokeredMessage as bytes, and received bytes as a BrokeredMessage.

    body                          data section(s), amqp-value or amqp-sequence
    ids, texts, session           properties       (session_id is group-id, subject is subject)
    properties                    application properties
    partition key, schedule       message annotations x-opt-partition-key, x-opt-scheduled-...
    priority, time to live        header

Rule 1: a field that is not set takes no bytes, so that a plain message is properties and a body.
Rule 2: an encoded message decodes to an equal message, except that text is received as bytes and
        a datetime among the properties as a Timestamp.
Rule 3: every message that a service delivers can be decoded: a time outside the range of datetime
        becomes its minimum or maximum, and a body that would block its receiver
        (amqp/codec/primitives.py, KEY_COSTS) is not decoded.
Rule 4: decoding a message takes a few milliseconds at most, whatever it contains. A body or
        properties of more elements are decoded when the application reads them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_into, encode_value
from twinbus.amqp.codec.types import Array, Symbol, Timestamp, ULong
from twinbus.amqp.errors import CostlyValue, DecodeError, EncodeError
from twinbus.amqp.limits import SECTION_COST, VALUE_COST, AmqpLimits, Budget
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections, UndecodedBody
from twinbus.amqp.message.properties import (
    CONTENT_TYPE,
    CORRELATION_ID,
    GROUP_ID,
    MESSAGE_ID,
    Header,
)
from twinbus.amqp.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    section_at,
)
from twinbus.encoding.splicing import (
    CREATION_TIME,
    DAMAGE,
    EXPIRY_TIME,
    PROPERTY_COUNT_MAX,
    SECTION_HEAD_BYTES,
    TTL_MS_UNSPECIFIED,
    counted,
    expiry_ms,
    header_at,
    header_section,
    map_section,
    outline,
    pairs_of,
    property_starts,
    value_at,
)
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import InvalidMessage, ServiceError
from twinbus.message import BrokeredMessage, PartlyRead, check_moment

__all__ = ["decode_message", "encode_message", "moment_of", "ms_of"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_PARTITION_KEY: Final = encode_value(Symbol("x-opt-partition-key"))
_SCHEDULED: Final = encode_value(Symbol("x-opt-scheduled-enqueue-time"))
_TO, _SUBJECT, _REPLY_TO, _CONTENT_ENCODING, _REPLY_TO_GROUP_ID = 2, 3, 4, 7, 12
_PROPERTIES_HEAD: Final = b"\x00\x53\x73"
_DATA_HEAD: Final = bytes((0x00, 0x53, DATA))
_NULL: Final = b"\x40"
_SIZED8: Final = struct.Struct(">BB").pack
_SIZED32: Final = struct.Struct(">BI").pack


# --- out ---------------------------------------------------------------------------------------


def encode_message(message: BrokeredMessage, *, now_ms: int = 0) -> bytes:
    """The message in AMQP's message format 0.

    ``now_ms`` is written as its creation time if its time to live is above 49 days, which is
    sent as two times. Raises InvalidMessage for a message that no service accepts.
    """
    message.check()
    try:
        return b"".join(
            (
                _header_of(message),
                _annotations_of(message),
                _properties_of(message, now_ms),
                _application_properties_of(message.properties) if message.properties else b"",
                _body_of(message.body),
            )
            if message.unread is None
            else (
                _header_of(message),
                _annotations_of(message),
                _properties_of(message, now_ms),
                *_kept_parts_of(message),
            )
        )
    except EncodeError as error:
        raise InvalidMessage(
            "a value", "cannot be encoded as AMQP", hint=error.description
        ) from error


def ms_of(moment: datetime) -> int:
    """Milliseconds since the Unix epoch."""
    return (moment - _EPOCH) // _MILLISECOND


def _header_of(message: BrokeredMessage) -> bytes:
    ttl_ms = None
    if message.time_to_live is not None:
        ttl_ms = min(_ttl_ms(message.time_to_live), TTL_MS_UNSPECIFIED)
    return header_section(priority=message.priority, ttl_ms=ttl_ms)


def _ttl_ms(time_to_live: timedelta) -> int:
    """Whole milliseconds, rounded up, so that no time to live becomes 0."""
    return -(-time_to_live // _MILLISECOND)


def _annotations_of(message: BrokeredMessage) -> bytes:
    pairs = []
    if message.partition_key is not None:
        pairs.append(_PARTITION_KEY + _string(message.partition_key))
    if message.scheduled_enqueue_time_utc is not None:
        at_ms = ms_of(message.scheduled_enqueue_time_utc)
        pairs.append(_SCHEDULED + encode_value(Timestamp(at_ms)))
    return map_section(MESSAGE_ANNOTATIONS, len(pairs), b"".join(pairs))


def _properties_of(message: BrokeredMessage, now_ms: int) -> bytes:
    expiry = creation = _NULL
    if message.time_to_live is not None and _ttl_ms(message.time_to_live) >= TTL_MS_UNSPECIFIED:
        creation = encode_value(Timestamp(now_ms))
        expiry = encode_value(Timestamp(expiry_ms(now_ms, _ttl_ms(message.time_to_live))))
    fields = (
        _id("message_id", message.message_id),
        _NULL,
        _string(message.to),
        _string(message.subject),
        _string(message.reply_to),
        _id("correlation_id", message.correlation_id),
        _symbol("content_type", message.content_type),
        _symbol("content_encoding", message.content_encoding),
        expiry,
        creation,
        _string(message.session_id),
        _NULL,
        _string(message.reply_to_session_id),
    )
    count = len(fields)
    while count and fields[count - 1] is _NULL:
        count -= 1
    return _PROPERTIES_HEAD + counted(0xC0, count, b"".join(fields[:count])) if count else b""


def _string(text: str | None) -> bytes:
    if text is None:
        return _NULL
    raw = _utf8(text)
    size = len(raw)
    return (_SIZED8(0xA1, size) if size < 256 else _SIZED32(0xB1, size)) + raw


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError("A text has a lone surrogate, which UTF-8 cannot encode.") from error


def _symbol(name: str, text: str | None) -> bytes:
    if text is None:
        return _NULL
    if not text.isascii():
        raise InvalidMessage(name, "has characters outside ASCII", hint="Use ASCII only")
    return encode_value(Symbol(text))


def _id(name: str, value: Any) -> bytes:
    if value is None or isinstance(value, str):
        return _string(value)
    if isinstance(value, bytes | UUID):
        return encode_value(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return encode_value(ULong(value))
    raise InvalidMessage(
        name,
        f"must be a str, bytes, UUID or whole number from 0, got {type(value).__name__}",
        hint="Use a str",
    )


def _undecoded_section(message: BrokeredMessage, name: str) -> bytes | None:
    """The section of a received message that was not decoded yet, or None."""
    if message.unread is None or name not in message.unread:
        return None
    try:
        object.__getattribute__(message, name)
    except AttributeError:
        raw: bytes = message.unread[name].raw
        return raw
    return None


def _kept_parts_of(message: BrokeredMessage) -> tuple[bytes, bytes]:
    """Application properties and body of a message with a part that is decoded later."""
    properties = _undecoded_section(message, "properties")
    body = _undecoded_section(message, "body")
    if properties is None:
        properties = _application_properties_of(message.properties) if message.properties else b""
    return properties, _body_of(message.body) if body is None else body


def _application_properties_of(properties: dict[str, Any]) -> bytes:
    out = bytearray()
    for name, value in properties.items():
        if not isinstance(name, str):
            raise InvalidMessage(
                "a property name", f"must be a str, got {type(name).__name__}", hint="Use a str"
            )
        out += _string(name)
        encode_into(out, _simple(name, value))
    return map_section(APPLICATION_PROPERTIES, len(properties), bytes(out))


def _simple(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        check_moment(f"property {name[:60]!a}", value)
        return Timestamp(ms_of(value))
    if isinstance(value, list | dict | tuple | Array):
        raise InvalidMessage(
            f"property {name[:60]!a}",
            f"must be a simple value, got {type(value).__name__}",
            hint="Use a simple value, or put it into the body",
        )
    return value


def _body_of(body: Any) -> bytes:
    match body:
        case bytes() | bytearray() | memoryview():
            return _data(bytes(body))
        case str():
            return _data(_utf8(body))
        case None:
            return b""
        case AmqpValue(value):
            return bytes((0x00, 0x53, VALUE)) + encode_value(value)
        case AmqpSequence(items):
            head = bytes((0x00, 0x53, SEQUENCE))
            return b"".join(head + encode_value(item) for item in items)
        case DataSections(items):
            return b"".join(map(_data, items))
        case UndecodedBody(sections):
            return sections
        case list() | tuple() if body and all(isinstance(item, bytes) for item in body):
            return b"".join(map(_data, body))
    raise InvalidMessage(
        "body",
        f"has the unsupported type {type(body).__name__}",
        hint="Use bytes, str, a list of bytes, AmqpValue or AmqpSequence",
    )


def _data(raw: bytes) -> bytes:
    size = len(raw)
    return b"".join((_DATA_HEAD, _SIZED8(0xA0, size) if size < 256 else _SIZED32(0xB0, size), raw))


# --- in ----------------------------------------------------------------------------------------


# A message of 100 MB, the largest of any tier, may have as many elements. Their cost is in
# proportion to its bytes, and only the keys of maps could cost more.
_RECEIVED_LIMITS: Final = AmqpLimits(compound_count_max=1 << 26, value_count_max=1 << 26)
# What is decoded at once: about a millisecond for a body, and one for the properties.
_AT_ONCE_LIMITS: Final = AmqpLimits(value_count_max=4_096, hashed_key_cost_max=256)


@dataclass(frozen=True, slots=True)
class _UnreadBody:
    """A body that takes long to decode."""

    raw: bytes

    def read(self) -> Any:
        try:
            return _decoded_body(self.raw, 0, Budget(_RECEIVED_LIMITS))
        except DAMAGE as error:
            reason = error.description if isinstance(error, DecodeError) else "The body is damaged."
            return UndecodedBody(self.raw, reason)


@dataclass(frozen=True, slots=True)
class _UnreadProperties:
    """Application properties that take long to decode."""

    raw: bytes
    delivered: ReceivedMessage

    def read(self) -> dict[Any, Any]:
        try:
            return _map_at(self.raw, 0, len(self.raw), Budget(_RECEIVED_LIMITS))
        except DAMAGE as error:
            raise _undecodable(self.delivered) from error


def decode_message(delivered: ReceivedMessage) -> BrokeredMessage:
    """The message that a driver received."""
    try:
        return _decoded(delivered)
    except DAMAGE as error:
        raise _undecodable(delivered) from error


def _undecodable(delivered: ReceivedMessage) -> ServiceError:
    return ServiceError(
        "the service delivered bytes that are not an AMQP message",
        path=delivered.path,
        hint="Receive it with another client, or dead-letter it by its sequence number, "
        f"{delivered.sequence_number}",
    )


def _decoded(delivered: ReceivedMessage) -> BrokeredMessage:
    buf, (header_stop, delivery_stop, annotations_stop, properties_stop, stop) = outline(
        delivered.encoded
    )
    header = header_at(buf, header_stop) if header_stop else Header()
    annotations = _annotations_at(buf, delivery_stop, annotations_stop)
    fields = _fields_at(buf, annotations_stop, properties_stop)
    message = BrokeredMessage.__new__(BrokeredMessage)
    message.unread = None
    try:
        message.body = _decoded_body(buf, stop, Budget(_AT_ONCE_LIMITS))
    except CostlyValue:
        message.__class__ = PartlyRead
        message.unread = {"body": _UnreadBody(buf[stop:])}
    message.message_id = fields[MESSAGE_ID]
    message.session_id = _text(fields[GROUP_ID])
    message.correlation_id = fields[CORRELATION_ID]
    message.subject = _text(fields[_SUBJECT])
    message.to = _text(fields[_TO])
    message.reply_to = _text(fields[_REPLY_TO])
    message.reply_to_session_id = _text(fields[_REPLY_TO_GROUP_ID])
    message.content_type = _text(fields[CONTENT_TYPE])
    message.content_encoding = _text(fields[_CONTENT_ENCODING])
    message.partition_key = _text(annotations.get(b"x-opt-partition-key"))
    message.priority = None if header.priority is None else int(header.priority)
    message.time_to_live = _time_to_live(header, fields)
    message.scheduled_enqueue_time_utc = moment_of(annotations.get(b"x-opt-scheduled-enqueue-time"))
    try:
        message.properties = _map_at(buf, properties_stop, stop, Budget(_AT_ONCE_LIMITS))
    except CostlyValue:
        message.__class__ = PartlyRead
        unread = _UnreadProperties(buf[properties_stop:stop], delivered)
        message.unread = {**(message.unread or {}), "properties": unread}
    message.sequence_number = delivered.sequence_number
    message.enqueued_sequence_number = annotations.get(b"x-opt-enqueue-sequence-number")
    message.enqueued_time_utc = moment_of(delivered.enqueued_at_ms)
    message.locked_until_utc = moment_of(delivered.locked_until_ms)
    message.delivery_count = delivered.delivery_count
    message.lock_token = UUID(bytes_le=delivered.lock_token) if delivered.lock_token else None
    message.dead_letter_source = _text(annotations.get(b"x-opt-deadletter-source"))
    message.held = None
    return message


def moment_of(ms: Any) -> datetime | None:
    """The time ``ms`` milliseconds after the Unix epoch, or the minimum or maximum of datetime."""
    if not isinstance(ms, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return (datetime.max if ms > 0 else datetime.min).replace(tzinfo=UTC)


def _map_at(buf: bytes, start: int, stop: int, budget: Budget) -> dict[Any, Any]:
    if start == stop:
        return {}
    values: dict[Any, Any] = decode_value(buf, start + SECTION_HEAD_BYTES, stop, budget)[0]
    return values


# The annotations that become fields of a message; there are more.
_DECODED_ANNOTATIONS: Final = frozenset(
    (
        b"x-opt-partition-key",
        b"x-opt-scheduled-enqueue-time",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-deadletter-source",
    )
)


def _annotations_at(buf: bytes, start: int, stop: int) -> dict[bytes, Any]:
    try:
        pairs = pairs_of(buf, start, stop)
    except CostlyValue:  # Thousands, which no service writes: none of them is decoded.
        return {}
    return {
        key: value_at(buf, first, after)
        for key, _, first, after in pairs
        if key in _DECODED_ANNOTATIONS and key is not None and _is_simple(buf[first])
    }


def _fields_at(buf: bytes, start: int, stop: int) -> list[Any]:
    """The thirteen properties."""
    starts = property_starts(buf, start, stop)
    fields: list[Any] = [None] * PROPERTY_COUNT_MAX
    for index, (first, after) in enumerate(pairwise(starts)):
        if buf[first] != 0x40:
            if not _is_simple(buf[first]):
                raise DecodeError("A property is a list, map or array. Send simple values.")
            fields[index] = value_at(buf, first, after)
    return fields


def _is_simple(code: int) -> bool:
    """Whether a value with this constructor is neither described nor made of others."""
    return 0x40 <= code < 0xC0 and code != 0x45


def _text(value: Any) -> str | None:
    """Plain text of a string or symbol; None of anything else."""
    return str(value) if isinstance(value, str) else None


def _time_to_live(header: Header, fields: list[Any]) -> timedelta | None:
    ttl_ms = header.ttl_ms
    if ttl_ms == TTL_MS_UNSPECIFIED:
        expires_ms, creation_ms = fields[EXPIRY_TIME], fields[CREATION_TIME]
        if type(expires_ms) is not Timestamp or type(creation_ms) is not Timestamp:
            return None
        ttl_ms = max(0, expires_ms - creation_ms)
    try:
        return None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    except OverflowError:
        return timedelta.max


def _decoded_body(buf: bytes, pos: int, budget: Budget) -> Any:
    end = len(buf)
    kind, values = 0, []
    while pos < end:
        if buf.startswith(_DATA_HEAD, pos):
            code, start = DATA, pos + len(_DATA_HEAD)
            budget.items -= VALUE_COST
        else:
            code, start = section_at(buf, pos, end, budget)
            budget.items -= SECTION_COST
        if budget.items < 0:
            raise CostlyValue("The body has too many sections to be decoded at once.")
        if code not in (DATA, SEQUENCE, VALUE):
            break  # A footer, or delivery annotations at the end.
        value, pos = decode_value(buf, start, end, budget)
        values.append(value)
        kind = code
    if kind == DATA:
        return values[0] if len(values) == 1 else DataSections(tuple(values))
    if kind == SEQUENCE:
        return AmqpSequence(tuple(values))
    return AmqpValue(values[0]) if values else None
