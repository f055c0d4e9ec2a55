"""Finds the sections of an encoded message and checks all of its bytes.

    header | delivery ann. | message ann. | properties | app. properties | body | footer
                                          |<-------------- bare message -------------->|

Rule 1: a message that is accepted can be decoded by every receiver; any other message is refused
        here with an error, before it is stored.
Rule 2: nothing is re-encoded. The result is positions; only the header is decoded, because
        the broker uses it.
Rule 3: the table FOLLOWERS has the sections that may follow each section.
Rule 4: lists, maps and arrays in the body take long to check. Those beyond the first STEP_BYTES of
        it can be left for later (check_body=False), and then be checked in steps (body_steps).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

from twinbus.amqp.codec.composites import SPECS, decode_fields
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.fixed_fields import BOOLEAN, UBYTE, UINT, decode_fixed_fields
from twinbus.amqp.codec.primitives import descend, size8, size32, truncated, unpack_u32
from twinbus.amqp.codec.skip import STEP_BYTES, skip_descriptor, skip_steps, skip_value
from twinbus.amqp.errors import DecodeError, TooManySections
from twinbus.amqp.limits import (
    DEFAULT_LIMITS,
    SECTION_COST,
    AmqpLimits,
    Budget,
)
from twinbus.amqp.message.properties import Header, Span
from twinbus.amqp.message.section_checks import (
    ANNOTATIONS,
    are_properties,
    check_map,
    check_properties,
    check_sequence,
    data_span,
    is_empty_value,
)
from twinbus.amqp.message.section_checks import APPLICATION_PROPERTIES as PROPERTY_RULES

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78
_NOTHING_YET: Final = 0x00
_CLOSED: Final = 0xFF

SECTION_NAMES: Final = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery-annotations",
    MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application-properties",
    DATA: "data",
    SEQUENCE: "amqp-sequence",
    VALUE: "amqp-value",
    FOOTER: "footer",
}
_DESCRIPTORS: Final[dict[int | str, int]] = {
    **{code: code for code in SECTION_NAMES},
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

# The Azure SDK writes delivery annotations at the end. They are accepted there as well (0x71 in
# the later rows), and end the message: _CLOSED has no followers.
FOLLOWERS: Final = {
    _NOTHING_YET: b"\x70\x71\x72\x73\x74\x75\x76\x77\x78",
    HEADER: b"\x71\x72\x73\x74\x75\x76\x77\x78",
    DELIVERY_ANNOTATIONS: b"\x72\x73\x74\x75\x76\x77\x78",
    MESSAGE_ANNOTATIONS: b"\x73\x74\x75\x76\x77\x78\x71",
    PROPERTIES: b"\x74\x75\x76\x77\x78\x71",
    APPLICATION_PROPERTIES: b"\x75\x76\x77\x78\x71",
    DATA: b"\x75\x78\x71",
    SEQUENCE: b"\x76\x78\x71",
    VALUE: b"\x78\x71",
    FOOTER: b"\x71",
    _CLOSED: b"",
}


_PLAIN_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES))
_PLAIN_DATA: Final = bytes((0x00, 0x53, DATA))
_LONG_LIST: Final = struct.Struct(">II").unpack_from


class BodyKind(IntEnum):
    """What the body is made of; the numbers are the descriptors."""

    NONE = 0
    DATA = DATA
    SEQUENCE = SEQUENCE
    VALUE = VALUE


_BODY_KINDS: Final = {kind.value: kind for kind in BodyKind}


@dataclass(slots=True)
class MessageSections:
    """The positions of all sections. Spans are of a section's value; the caller has ``buf``."""

    properties_start: int
    """Where the bare message begins: the first section that is not header or annotations."""
    bare_end: int
    """Where it ends, footer included."""
    body: list[Span]
    """The content of each data section, or the value of each other section of the body."""
    body_kind: BodyKind = BodyKind.NONE
    body_empty: bool = True
    """No byte of data, or a null, or a string or binary without content."""
    body_start: int = -1
    """Where the first section of the body begins, its descriptor included."""
    header: Header | None = None
    delivery_annotations: Span | None = None
    message_annotations: Span | None = None
    properties: Span | None = None
    application_properties: Span | None = None
    footer: Span | None = None
    unchecked: list[tuple[int, int, Budget]] | None = None
    """Values of a large body that were skipped by their size, and the remaining budget for them;
    body_steps() checks them."""


def scan_message(
    buf: bytes,
    start: int,
    end: int,
    limits: AmqpLimits = DEFAULT_LIMITS,
    *,
    body_required: bool = True,
    check_body: bool = True,
) -> MessageSections:
    """The sections of the message in ``buf[start:end]``, all of them valid.

    ``body_required=False`` also accepts a message without a body section, which the Azure SDK
    creates for ``ServiceBusMessage(None)``. With ``check_body=False`` most of a large body is
    skipped: for a message that was checked before, or as the first part of a check that
    body_steps() continues.
    """
    found = MessageSections(end, end, [])
    try:
        _scan(buf, start, end, found, Budget(limits, is_built=False))
    except IndexError:
        raise truncated("a section") from None
    if body_required and not found.body:
        raise DecodeError("A message has no body section. Add a data or amqp-value section.")
    if check_body and found.unchecked:
        for _ in body_steps(buf, found):
            pass
    return found


def scan_front(
    buf: bytes, start: int, end: int, limits: AmqpLimits = DEFAULT_LIMITS
) -> MessageSections:
    """Header and annotations, which precede the bare message; the latter is not checked."""
    found, budget = MessageSections(end, end, []), Budget(limits, is_built=False)
    pos, last = start, _NOTHING_YET
    try:
        while pos < end:
            code, value_pos = section_at(buf, pos, end, budget)
            if code not in FOLLOWERS[last]:
                raise _out_of_order(code, last)
            if code >= PROPERTIES or code < last:
                found.properties_start = pos
                break
            pos = _READERS[code](buf, value_pos, end, found, budget)
            last = code
    except IndexError:
        raise truncated("a section") from None
    return found


def scan_to_body(
    buf: bytes, start: int, end: int, limits: AmqpLimits = DEFAULT_LIMITS
) -> MessageSections:
    """The sections before the body; the body is not checked."""
    found, budget = MessageSections(end, end, []), Budget(limits, is_built=False)
    pos, last = start, _NOTHING_YET
    try:
        while pos < end:
            if buf[pos] == 0x00 and buf[pos + 1] == 0x53 and pos + 3 < end:
                code, value_pos = buf[pos + 2], pos + 3
            else:
                code, value_pos = section_at(buf, pos, end, budget)
            if code not in FOLLOWERS[last]:
                raise _out_of_order(code, last)
            if last < PROPERTIES <= code:
                found.properties_start = pos
            if code >= DATA or code < last:
                if DATA <= code <= VALUE:
                    found.body_start, found.body_kind = pos, _BODY_KINDS[code]
                break
            pos = _READERS[code](buf, value_pos, end, found, budget)
            last = code
    except IndexError:
        raise truncated("a section") from None
    return found


def body_steps(buf: bytes, sections: MessageSections) -> Iterator[None]:
    """Check what scan_message(check_body=False) left, with a pause after each step.

    A step takes up to 2 ms. When the iterator ends the whole message is valid; an invalid message
    raises DecodeError. Most messages have nothing left to check, and then nothing is yielded.
    """
    unchecked, sections.unchecked = sections.unchecked, None
    for start, stop, budget in unchecked or ():
        yield from skip_steps(buf, start, stop, budget)
        yield


def _scan(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> None:
    last = _NOTHING_YET
    while pos < end:
        if buf[pos] == 0x00 and buf[pos + 1] == 0x53 and pos + 3 < end:
            code, value_pos = buf[pos + 2], pos + 3
        else:
            _charge_section(budget)
            if len(found.body) >= budget.sections:
                raise TooManySections(budget.sections)
            code, value_pos = section_at(buf, pos, end, budget)
        if code not in FOLLOWERS[last]:
            raise _out_of_order(code, last)
        if code >= PROPERTIES:
            if last < PROPERTIES:
                found.properties_start = pos
            if last < DATA <= code <= VALUE:
                found.body_start, found.body_kind = pos, _BODY_KINDS[code]
        elif code == DELIVERY_ANNOTATIONS and last > DELIVERY_ANNOTATIONS:
            code = _close(found, pos)
        if code == DATA:
            span = data_span(buf, value_pos, end)
            found.body.append(span)
            pos = span[1]
            if pos > span[0]:
                found.body_empty = False
            if pos < end:
                pos = _more_data(buf, pos, end, found, budget)
        else:
            pos = _READERS[code](buf, value_pos, end, found, budget)
        last = code


def is_plain(buf: bytes, start: int, end: int, properties_bytes_max: int) -> bool:
    """Whether the message is the simplest kind: short properties, then one data section.

    True means that it is valid. False means that scan_message() decides.
    """
    if not buf.startswith(_PLAIN_PROPERTIES, start, end):
        return False
    try:
        if buf[start + 3] == 0xC0:
            body, count, fields = start + 5 + buf[start + 4], buf[start + 5], start + 6
        elif buf[start + 3] == 0xD0:
            size, count = _LONG_LIST(buf, start + 4)
            body, fields = start + 8 + size, start + 12
        else:
            return False
        if body - fields > properties_bytes_max or not buf.startswith(_PLAIN_DATA, body, end):
            return False
        if buf[body + 3] == 0xA0:
            stop = body + 5 + buf[body + 4]
        elif buf[body + 3] == 0xB0:
            stop = body + 8 + unpack_u32(buf, body + 4)[0]
        else:
            return False
        return stop == end and are_properties(buf, fields, body, count)
    except (DecodeError, IndexError, struct.error):
        return False


def iter_batch(buf: bytes, start: int, end: int, limits: AmqpLimits = DEFAULT_LIMITS) -> list[Span]:
    """The spans of the messages in a batch envelope (message format 0x80013700).

    The envelope is checked; each message in it still has to be scanned. A message that is
    itself a batch is a message with data, like any other: nothing is unpacked twice.
    """
    # Data needs no check, and any other body is refused.
    sections = scan_message(buf, start, end, limits, check_body=False)
    if sections.body_kind is not BodyKind.DATA:
        raise DecodeError("The messages of a batch must be in data sections. Send one in each.")
    return sections.body


# --- sections ----------------------------------------------------------------------------------

_Reader: TypeAlias = Callable[[bytes, int, int, MessageSections, Budget], int]
"""Check the section value at the position, note it, and return the position after it."""


def section_at(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[int, int]:
    """(section code, position of its value) for any form of descriptor."""
    if buf[pos] != 0x00:
        raise DecodeError("A section does not begin with a descriptor. Check the message.")
    skip_descriptor(buf, pos + 1, end, budget)
    descriptor, value_pos = decode_value(buf, pos + 1, end, budget)
    code = _DESCRIPTORS.get(descriptor)
    if code is None:
        raise DecodeError("A section has an unknown descriptor. Use the sections of AMQP 1.0.")
    if value_pos >= end:
        raise truncated(f"the {SECTION_NAMES[code]} section")
    return code, value_pos


def _out_of_order(code: int, last: int) -> DecodeError:
    if code not in SECTION_NAMES:
        return DecodeError(f"Section 0x{code:02x} is unknown. Use the sections of AMQP 1.0.")
    after = SECTION_NAMES.get(last, "the end of the message")
    return DecodeError(
        f"A {SECTION_NAMES[code]} section cannot follow {after}. Send the sections in order."
    )


def _close(found: MessageSections, pos: int) -> int:
    """Delivery annotations at the end: the bare message ends before them."""
    if found.delivery_annotations is not None:
        raise DecodeError("A message has delivery-annotations twice. Send them once.")
    found.bare_end = pos
    found.properties_start = min(found.properties_start, pos)
    return _CLOSED


_HEADER_CODES: Final = (BOOLEAN, UBYTE, UINT, BOOLEAN, UINT)


def _header(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    values: list[Any] = [False, None, None, False, 0]
    stop = decode_fixed_fields(buf, pos, end, _HEADER_CODES, values)
    if stop:
        found.header = Header(*values)
        return stop
    found.header, pos = decode_fields(SPECS[Header], buf, pos, end, budget)
    return pos


def _delivery_annotations(
    buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget
) -> int:
    stop = check_map(buf, pos, end, ANNOTATIONS, budget)
    found.delivery_annotations = (pos, stop)
    return stop


def _message_annotations(
    buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget
) -> int:
    stop = check_map(buf, pos, end, ANNOTATIONS, budget)
    found.message_annotations = (pos, stop)
    return stop


def _properties(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    stop = check_properties(buf, pos, end, budget)
    found.properties = (pos, stop)
    return stop


def _application_properties(
    buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget
) -> int:
    stop = check_map(buf, pos, end, PROPERTY_RULES, budget)
    found.application_properties = (pos, stop)
    return stop


def _after_value(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    """The position after a value of the body, which is checked at once if it ends within the first
    STEP_BYTES of the body: many values of a few bytes take as long as a large one."""
    start, levels = pos, budget.levels
    while pos < end and buf[pos] == 0x00:
        descend(budget)
        pos = skip_descriptor(buf, pos + 1, end, budget)
    budget.levels = levels
    if pos < end and buf[pos] in _LONG_CODES:
        after = size32(buf, pos + 1, end, "a compound")
    elif pos - found.body_start > STEP_BYTES and pos < end and buf[pos] in _SHORT_CODES:
        after = size8(buf, pos + 1, end, "a compound")
    else:
        return skip_value(buf, start, end, budget)
    if after - found.body_start <= STEP_BYTES:
        return skip_value(buf, start, end, budget)
    if found.unchecked is None:
        found.unchecked = []
    found.unchecked.append((start, after, budget))
    return after


_LONG_CODES: Final = b"\xd0\xd1\xf0"
_SHORT_CODES: Final = b"\xc0\xc1\xe0"


def _more_data(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    """The position after the data sections that follow another: a batch has thousands."""
    body = found.body
    for _ in range(budget.sections - len(body)):
        if not buf.startswith(_PLAIN_DATA, pos, end):
            return pos
        start, pos = span = data_span(buf, pos + 3, end)
        body.append(span)
        if pos > start:
            found.body_empty = False
    if buf.startswith(_PLAIN_DATA, pos, end):
        raise TooManySections(budget.sections)
    return pos


def _charge_section(budget: Budget) -> None:
    """Take a section from the budget whose kind or descriptor takes long to read."""
    budget.items -= SECTION_COST
    if budget.items < 0:
        raise TooManySections(budget.sections)


def _sequence(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    _charge_section(budget)
    check_sequence(buf, pos)
    after = _after_value(buf, pos, end, found, budget)
    found.body.append((pos, after))
    found.body_empty = False
    return after


def _value(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    after = _after_value(buf, pos, end, found, budget)
    found.body.append((pos, after))
    found.body_empty = is_empty_value(buf, pos, after)
    return after


def _footer(buf: bytes, pos: int, end: int, found: MessageSections, budget: Budget) -> int:
    stop = check_map(buf, pos, end, ANNOTATIONS, budget)
    found.footer = (pos, stop)
    return stop


_READERS: Final[dict[int, _Reader]] = {
    HEADER: _header,
    DELIVERY_ANNOTATIONS: _delivery_annotations,
    _CLOSED: _delivery_annotations,
    MESSAGE_ANNOTATIONS: _message_annotations,
    PROPERTIES: _properties,
    APPLICATION_PROPERTIES: _application_properties,
    SEQUENCE: _sequence,
    VALUE: _value,
    FOOTER: _footer,
}
