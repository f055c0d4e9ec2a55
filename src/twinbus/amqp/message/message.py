"""A whole message as a Python value, for replies, tests and the lean client.

The broker does not use it for messages: it scans and slices them (sections.py).

Rule 1: ``Message.decode(message.encode()) == message``, AMQP types included.
Rule 2: sections that are None are left out, and are None again after decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from twinbus.amqp.codec.composites import encode_composite
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_into
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.limits import DEFAULT_LIMITS, AmqpLimits, Budget
from twinbus.amqp.message.properties import Header, Properties, Span, decode_properties
from twinbus.amqp.message.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    BodyKind,
    MessageSections,
    scan_message,
)


@dataclass(frozen=True, slots=True)
class DataSections:
    """A body of several data sections; a single one is plain ``bytes``."""

    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AmqpSequence:
    """A body of amqp-sequence sections, each a list."""

    items: tuple[list[Any], ...]


@dataclass(frozen=True, slots=True)
class AmqpValue:
    """A body that is one AMQP value."""

    value: Any


@dataclass(frozen=True, slots=True)
class UndecodedBody:
    """A received body that would cost too much to decode: its bytes, to be settled or sent on."""

    sections: bytes
    """All sections of the body, and what follows them."""
    reason: str
    """Why it was not decoded, as a sentence."""


Body: TypeAlias = bytes | DataSections | AmqpSequence | AmqpValue


@dataclass(slots=True, kw_only=True)
class Message:
    """The sections of a message, in order."""

    header: Header | None = None
    delivery_annotations: dict[Any, Any] | None = None
    message_annotations: dict[Any, Any] | None = None
    properties: Properties | None = None
    application_properties: dict[str, Any] | None = None
    body: Body = field(default=b"")
    footer: dict[Any, Any] | None = None

    def encode(self) -> bytes:
        """The message in message format 0."""
        out = bytearray()
        if self.header is not None:
            encode_composite(out, self.header)
        _append_annotations(out, DELIVERY_ANNOTATIONS, self.delivery_annotations)
        _append_annotations(out, MESSAGE_ANNOTATIONS, self.message_annotations)
        if self.properties is not None:
            encode_composite(out, self.properties, elide_trailing_nulls=True)
        if self.application_properties is not None:
            _append(out, APPLICATION_PROPERTIES, self.application_properties)
        _append_body(out, self.body)
        _append_annotations(out, FOOTER, self.footer)
        return bytes(out)

    @classmethod
    def decode(cls, buf: bytes, limits: AmqpLimits = DEFAULT_LIMITS) -> Message:
        """The message in ``buf``; DecodeError if it is not a valid one."""
        # Decoding checks the values, so that the scan need not check the body as well.
        found = scan_message(buf, 0, len(buf), limits, check_body=False)
        budget = Budget(limits)
        return cls(
            header=found.header,
            delivery_annotations=_value_at(buf, found.delivery_annotations, budget),
            message_annotations=_value_at(buf, found.message_annotations, budget),
            properties=decode_properties(buf, found.properties) if found.properties else None,
            application_properties=_value_at(buf, found.application_properties, budget),
            body=_body_at(buf, found, budget),
            footer=_value_at(buf, found.footer, budget),
        )


def _append(out: bytearray, code: int, value: Any) -> None:
    out += bytes((0x00, 0x53, code))
    encode_into(out, value)


def _append_annotations(out: bytearray, code: int, value: dict[Any, Any] | None) -> None:
    """Annotation keys may be given as strings; on the wire they are symbols."""
    if value is not None:
        keyed = {Symbol(key) if isinstance(key, str) else key: item for key, item in value.items()}
        _append(out, code, keyed)


def _append_body(out: bytearray, body: Body) -> None:
    match body:
        case AmqpValue(value):
            _append(out, VALUE, value)
        case AmqpSequence(items):
            for item in items:
                _append(out, SEQUENCE, item)
        case DataSections(items):
            for data in items:
                _append(out, DATA, data)
        case _:
            _append(out, DATA, body)


def _value_at(buf: bytes, span: Span | None, budget: Budget) -> Any:
    return None if span is None else decode_value(buf, span[0], span[1], budget)[0]


def _body_at(buf: bytes, found: MessageSections, budget: Budget) -> Body:
    if found.body_kind is BodyKind.DATA:
        items = tuple(buf[start:stop] for start, stop in found.body)
        return items[0] if len(items) == 1 else DataSections(items)
    values = tuple(decode_value(buf, start, stop, budget)[0] for start, stop in found.body)
    return AmqpSequence(values) if found.body_kind is BodyKind.SEQUENCE else AmqpValue(values[0])
