"""Reads the service's metadata of delivered messages: sequence number, times, delivery count.

The messages of one link are alike up to their bodies. Once one was parsed completely, the next are
recognised by the bytes around the numbers, and the numbers are read from their positions.

    header .. count | lock token | key number | key time | key until | the rest
    equal     read    ignored      equal read   equal read   equal read   ignored

Rule 1: a message that differs in any way is parsed completely, and its layout is used from then on.
Rule 2: a message that cannot be parsed is delivered as well, with zeros: its receiver decides what
        to do with it. So is one of more than 512 annotations, which no service writes.
Rule 3: only the sections before the message itself are read, so that its size does not matter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.primitives import FIXED_WIDTHS
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import STORED_LIMITS, Budget
from twinbus.amqp.message.sections import MessageSections, scan_front


class DeliveryMetadata(NamedTuple):
    """The service's metadata of a message."""

    sequence_number: int = 0
    enqueued_at_ms: int | None = None
    locked_until_ms: int | None = None
    delivery_count: int = 0


_UNKNOWN: Final = DeliveryMetadata()

_SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
_ENQUEUED: Final = "x-opt-enqueued-time"
_LOCKED_UNTIL: Final = "x-opt-locked-until"
_FACT_OF: Final = {_SEQUENCE_NUMBER: 0, _ENQUEUED: 1, _LOCKED_UNTIL: 2}
_DELIVERY_COUNT: Final = 3
_NO_FACT: Final = -1

_HEADER_FIELD_COUNT: Final = 5
_LAYOUTS: Final = {0x43: "", 0x52: "B", 0x70: "I", 0x55: "b", 0x81: "q", 0x83: "q"}
"""The layout of numbers, by their constructors."""
_LIST_HEADS: Final = {0xC0: 3, 0xD0: 9}
_MAP_HEADS: Final = {0xC1: 2, 0xD1: 8}
"""By constructor: the bytes of size and count after it."""


class _Hole(NamedTuple):
    """Bytes that may differ between messages of one layout."""

    start: int
    size: int
    fact: int = _NO_FACT
    """Which of the values they are, if any."""
    layout: str = ""


class _NoShape(Exception):
    """A value may follow something of any length: such messages have no common positions."""


class MetadataReader:
    """Reads the messages of one link."""

    def __init__(self) -> None:
        self._equal: Callable[[bytes], tuple[Any, ...]] | None = None
        self._numbers: Callable[[bytes], tuple[Any, ...]] = struct.Struct("").unpack_from
        self._expected: tuple[Any, ...] = ()
        self._order: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._size_bytes = 0

    def read(self, message: bytes) -> tuple[int, int | None, int | None, int]:
        """The values of a message, in the order of DeliveryMetadata."""
        equal = self._equal
        if (
            equal is not None
            and len(message) >= self._size_bytes
            and equal(message) == self._expected
        ):
            # Values that messages of this layout do not have follow those that they have.
            found = (*self._numbers(message), 0, None)
            number, enqueued, until, count = self._order
            return found[number], found[enqueued], found[until], found[count]
        return self._parse(message)

    def _parse(self, message: bytes) -> DeliveryMetadata:
        try:
            sections = scan_front(message, 0, len(message))
            facts = _facts(message, sections)
        except DecodeError:
            return _UNKNOWN
        try:
            self._learn(message, _holes(message, sections))
        except _NoShape:
            self._equal = None
        return facts

    def _learn(self, message: bytes, holes: list[_Hole]) -> None:
        """Learn the layout of a message: which bytes are equal in all, and where the values are."""
        equal, numbers = ">", ">"
        position = 0
        for hole in holes:
            between = hole.start - position
            equal += f"{between}s{hole.size}x"
            numbers += f"{between}x" + (hole.layout or f"{hole.size}x")
            position = hole.start + hole.size
        found = [hole.fact for hole in holes if hole.layout]
        zero, none = len(found), len(found) + 1
        number, enqueued, until, count = (
            found.index(fact) if fact in found else default
            for fact, default in ((0, zero), (1, none), (2, none), (3, zero))
        )
        self._equal = struct.Struct(equal).unpack_from
        self._numbers = struct.Struct(numbers).unpack_from
        self._order = (number, enqueued, until, count)
        self._size_bytes = position
        self._expected = self._equal(message)


def _facts(message: bytes, sections: MessageSections) -> DeliveryMetadata:
    annotations: dict[Any, Any] = {}
    if sections.message_annotations is not None:
        start, stop = sections.message_annotations
        annotations = decode_value(message, start, stop, Budget(STORED_LIMITS))[0]
    return DeliveryMetadata(
        _whole(annotations.get(_SEQUENCE_NUMBER)) or 0,
        _whole(annotations.get(_ENQUEUED)),
        _whole(annotations.get(_LOCKED_UNTIL)),
        0 if sections.header is None else sections.header.delivery_count,
    )


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _holes(message: bytes, sections: MessageSections) -> list[_Hole]:
    """The positions before the body where messages of one link differ."""
    if sections.message_annotations is None:
        raise _NoShape
    holes = _annotation_holes(message, sections.message_annotations)
    if sections.header is not None:
        holes += _header_holes(message)
    if sections.delivery_annotations is not None:
        found, _ = _map_holes(message, sections.delivery_annotations)
        holes += found
    holes.sort()
    return holes


def _header_holes(message: bytes) -> list[_Hole]:
    """Every field of the header that has a fixed width; the header is always first."""
    position = 3
    if message[1] != 0x53 or message[position] not in _LIST_HEADS:
        raise _NoShape
    size, start = message[position + 1], position + _LIST_HEADS[message[position]]
    end, position = (position + 2 + size if message[position] == 0xC0 else len(message)), start
    holes = []
    for index in range(_HEADER_FIELD_COUNT):
        if position >= end:
            break
        code = message[position]
        width = FIXED_WIDTHS[code]
        if index == _HEADER_FIELD_COUNT - 1:
            holes.append(_fact_hole(position, width, _DELIVERY_COUNT, code))
        elif width:
            holes.append(_Hole(position + 1, width))
        position += 1 + width
    return holes


def _fact_hole(position: int, width: int, fact: int, code: int) -> _Hole:
    if code not in _LAYOUTS:
        raise _NoShape
    return _Hole(position + 1, width, fact, _LAYOUTS[code])


def _annotation_holes(message: bytes, span: tuple[int, int]) -> list[_Hole]:
    """The values, and the head of their map if annotations of the sender follow them."""
    holes, is_whole = _map_holes(message, span)
    if is_whole:
        # The map is as learned up to its end, so it contains nothing else.
        return [*holes, _Hole(span[1], 0)]
    if {hole.fact for hole in holes} >= set(_FACT_OF.values()):
        return [_Hole(span[0] + 1, _MAP_HEADS[message[span[0]]]), *holes]
    raise _NoShape


def _map_holes(message: bytes, span: tuple[int, int]) -> tuple[list[_Hole], bool]:
    """Values with a fixed width, up to the first without one; whether those were all."""
    start, stop = span
    holes: list[_Hole] = []
    position = start + 1 + _MAP_HEADS[message[start]]
    budget = Budget(STORED_LIMITS)
    while position < stop:
        key, position = decode_value(message, position, stop, budget)
        code = message[position]
        fact = _FACT_OF.get(key, _NO_FACT) if isinstance(key, str) else _NO_FACT
        if code not in FIXED_WIDTHS:
            return holes, False
        width = FIXED_WIDTHS[code]
        if fact != _NO_FACT:
            holes.append(_fact_hole(position, width, fact, code))
        elif width:
            holes.append(_Hole(position + 1, width))
        position += 1 + width
    return holes, True
