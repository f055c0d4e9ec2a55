"""The header and the properties of a message, whole or one field at a time.

Rule 1: a span is (start, end) of a section's value, constructor included, as the scan found it.
Rule 2: the scan has validated a span before these functions read from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from twinbus.amqp.codec.composites import KINDS, SPECS, FieldType, composite, decode_fields
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import ENCODERS, encode_into
from twinbus.amqp.codec.skip import SKIPPERS
from twinbus.amqp.codec.types import Timestamp, ULong
from twinbus.amqp.limits import Budget

Span: TypeAlias = tuple[int, int]
MessageId: TypeAlias = str | UUID | bytes | int

PROPERTY_FIELD_COUNT: Final = 13


@composite(0x70, "amqp:header:list", "boolean ubyte uint boolean uint")
@dataclass(slots=True)
class Header:
    """What the network may change about a message on its way."""

    durable: bool = False
    priority: int | None = None
    """None: the sender did not say, which means 4."""
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


def _is_message_id(value: Any) -> bool:
    return type(value) in (str, UUID, bytes, ULong)


def _write_message_id(out: bytearray, value: MessageId) -> None:
    encode_into(out, ULong(value) if isinstance(value, int) else value)


def _write_timestamp(out: bytearray, value: int) -> None:
    ENCODERS[Timestamp](out, value, 0)


KINDS["message-id"] = FieldType(
    "a ulong, uuid, binary or string",
    _is_message_id,
    _write_message_id,
    b"\xa1\x98\xb1\xa0\xb0\x53\x80\x44",
)
KINDS["timestamp"] = FieldType(
    "a timestamp", lambda value: type(value) is Timestamp, _write_timestamp, b"\x83"
)


@composite(
    0x73,
    "amqp:properties:list",
    "message-id binary string string string message-id symbol symbol timestamp timestamp "
    "string uint string",
)
@dataclass(slots=True)
class Properties:
    """What the sender says about a message once and for all."""

    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


MESSAGE_ID: Final = 0
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
GROUP_ID: Final = 10

_BODY_OFFSETS: Final = {0xC0: 3, 0xD0: 9}


def decode_properties(buf: bytes, span: Span) -> Properties:
    """All properties of a scanned message."""
    properties: Properties
    properties, _ = decode_fields(SPECS[Properties], buf, span[0], span[1], Budget())
    return properties


def property_field(buf: bytes, span: Span, index: int) -> Any:
    """One property by its index in the section, or None; the others are only stepped over."""
    start, stop = span
    code = buf[start]
    if code == 0x45:
        return None
    pos = start + _BODY_OFFSETS[code]
    budget = Budget()
    for _ in range(index):
        if pos >= stop:
            return None
        pos = SKIPPERS[buf[pos]](buf, pos + 1, stop, budget)
    return decode_value(buf, pos, stop, budget)[0] if pos < stop else None
