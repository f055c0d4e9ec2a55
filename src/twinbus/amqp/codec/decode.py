"""AMQP 1.0 bytes to Python values, from peers that may be hostile.

``decode_value`` builds a value; ``skip_value`` checks the same bytes and builds nothing.

Rule 1: whatever the bytes are, only DecodeError is raised, and nothing is read past ``end``.
Rule 2: a declared size or count is believed only when the bytes for it are there. Elements
        without a width could be declared by the billion in ten bytes: such arrays are refused.
Rule 3: what our consumers cannot decode is refused here, at the door: descriptors other than
        ulong and symbol, map keys that are null, compound or repeated.
Rule 4: ``buf`` is ``bytes``; a value's own bytes are the only ones copied.
Rule 5: no value takes more than 64 times its bytes in memory, and no more time than its elements
        times a constant: each compound takes VALUE_COST from the budget, and the keys of maps are
        judged by their constructors before they are hashed.

    constructor byte --256-entry table--> function(buf, pos, end, budget) -> (value, next pos)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID, SafeUUID

from twinbus.amqp.codec.primitives import (
    ascii_of,
    boolean_of,
    check_even,
    check_filled,
    check_key,
    code_point_of,
    counted8,
    counted32,
    descend,
    refuse_constructor,
    refuse_repeated_key,
    size32,
    text_of,
    too_many,
    truncated,
)
from twinbus.amqp.codec.skip import skip_array_constructor, skip_descriptor, skip_value
from twinbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Descriptor,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.amqp.limits import VALUE_COST, Budget

__all__ = ["Budget", "decode_value", "skip_value"]

Decoder: TypeAlias = Callable[[bytes, int, int, Budget], tuple[Any, int]]


def decode_value(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
    """The value that starts at ``pos``, and the position after it."""
    if pos >= end:
        raise truncated("a value")
    return _DECODERS[buf[pos]](buf, pos + 1, end, budget)


def _unknown(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
    refuse_constructor(buf, pos - 1)


# --- fixed width -------------------------------------------------------------------------------


def _constant(value: Any) -> Decoder:
    def decode(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
        return value, pos

    return decode


def _number(kind: type, layout: str) -> Decoder:
    codec = struct.Struct(layout)
    unpack, width = codec.unpack_from, codec.size

    def decode(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
        after = pos + width
        if after > end:
            raise truncated(f"a value of {width} bytes")
        return kind(unpack(buf, pos)[0]), after

    return decode


def _small(kind: type, first: int) -> Decoder:
    """Numbers of one byte, of which there are so few that each is made once."""
    numbers = tuple(kind(byte if byte < first + 256 else byte - 256) for byte in range(256))

    def decode(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
        if pos >= end:
            raise truncated("a value of 1 bytes")
        return numbers[buf[pos]], pos + 1

    return decode


def _charge(budget: Budget) -> None:
    """Values that take twice as long as others to build count twice."""
    budget.items -= 1
    if budget.items < 0:
        raise too_many()


def _raw(kind: Callable[[bytes], Any], width: int) -> Decoder:
    def decode(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Any, int]:
        _charge(budget)
        after = pos + width
        if after > end:
            raise truncated(f"a value of {width} bytes")
        return kind(buf[pos:after]), after

    return decode


_UUID: Any = UUID
_set_int: Final = _UUID.int.__set__
_set_is_safe: Final = _UUID.is_safe.__set__
_SAFETY: Final = SafeUUID.unknown


def _uuid(raw: bytes) -> UUID:
    """UUID(bytes=raw) without its checks, in less than half the time: 65,536 of them fit into one
    frame, which is the slowest there is to read."""
    value = object.__new__(UUID)
    _set_int(value, int.from_bytes(raw, "big"))
    _set_is_safe(value, _SAFETY)
    return value


def _boolean(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[bool, int]:
    return boolean_of(buf, pos, end), pos + 1


def _char(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Char, int]:
    return Char(chr(code_point_of(buf, pos, end))), pos + 4


# --- variable width ----------------------------------------------------------------------------


def _binary8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[bytes, int]:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a binary")
    return buf[pos + 1 : after], after


def _binary32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[bytes, int]:
    after = size32(buf, pos, end, "a binary")
    return buf[pos + 4 : after], after


def _string8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[str, int]:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a string")
    return text_of(buf, pos + 1, after), after


def _string32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[str, int]:
    after = size32(buf, pos, end, "a string")
    return text_of(buf, pos + 4, after), after


_NO_NAME: Final = Symbol("")


def _symbol8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Symbol, int]:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a symbol")
    if after == pos + 1:
        return _NO_NAME, after  # One byte in an array, and a hundred as an object of its own.
    return Symbol(ascii_of(buf, pos + 1, after)), after


def _symbol32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Symbol, int]:
    after = size32(buf, pos, end, "a symbol")
    return Symbol(ascii_of(buf, pos + 4, after)), after


# --- compounds ---------------------------------------------------------------------------------


def _enter(budget: Budget) -> None:
    """Enter a compound or described value, which is an object of its own."""
    descend(budget)
    budget.items -= VALUE_COST
    if budget.items < 0:
        raise too_many()


def _list0(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[list[Any], int]:
    _enter(budget)
    budget.levels += 1
    return [], pos


def _list8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[list[Any], int]:
    count, pos, stop = counted8(buf, pos, end, budget)
    return _list_items(buf, pos, stop, count, budget), stop


def _list32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[list[Any], int]:
    count, pos, stop = counted32(buf, pos, end, budget)
    return _list_items(buf, pos, stop, count, budget), stop


def _list_items(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> list[Any]:
    _enter(budget)
    decoders = _DECODERS
    items: list[Any] = [None] * count  # Not one place more than there are items.
    for index in range(count):
        if pos >= stop:
            raise truncated("a list")
        items[index], pos = decoders[buf[pos]](buf, pos + 1, stop, budget)
    check_filled(pos, stop)
    budget.levels += 1
    return items


def _map8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[dict[Any, Any], int]:
    count, pos, stop = counted8(buf, pos, end, budget)
    return decode_map_items(buf, pos, stop, count, budget), stop


def _map32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[dict[Any, Any], int]:
    count, pos, stop = counted32(buf, pos, end, budget)
    return decode_map_items(buf, pos, stop, count, budget), stop


class KeyRefused(Exception):
    """A key has another constructor than decode_map_items() was told to take."""


def decode_map_items(
    buf: bytes, pos: int, stop: int, count: int, budget: Budget, key_codes: bytes | None = None
) -> dict[Any, Any]:
    """The entries of a map; KeyRefused unless its keys have one of the constructors given."""
    check_even(count)
    _enter(budget)
    decoders, items = _DECODERS, dict[Any, Any]()
    for _ in range(count >> 1):
        check_key(buf, pos, stop, budget)
        if key_codes is not None and buf[pos] not in key_codes:
            raise KeyRefused
        key, pos = decoders[buf[pos]](buf, pos + 1, stop, budget)
        if pos >= stop:
            raise truncated("a map")
        items[key], pos = decoders[buf[pos]](buf, pos + 1, stop, budget)
    # Keys of two types can be one key in Python (1 and 1.0, "a" and the symbol a): no one who
    # reads the map could tell them apart, so they count as the same key.
    if len(items) != count >> 1:
        refuse_repeated_key()
    check_filled(pos, stop)
    budget.levels += 1
    return items


def _array8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Array, int]:
    count, pos, stop = counted8(buf, pos, end, budget)
    return _array_items(buf, pos, stop, count, budget), stop


def _array32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Array, int]:
    count, pos, stop = counted32(buf, pos, end, budget)
    return _array_items(buf, pos, stop, count, budget), stop


def _array_items(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> Array:
    _enter(budget)
    if pos == stop and not count:  # The Azure SDK sends an empty array without a constructor.
        budget.levels += 1
        return Array(None, ())
    descriptor = _array_descriptor(buf, pos, stop, budget)
    pos, levels = skip_array_constructor(buf, pos, stop, count, budget)
    code = buf[pos - 1]
    decode = _DECODERS[code]
    items: list[Any] = [None] * count
    for index in range(count):
        items[index], pos = decode(buf, pos, stop, budget)
    check_filled(pos, stop)
    budget.levels += 1 + levels
    return Array(code, tuple(items), descriptor)


def _array_descriptor(buf: bytes, pos: int, stop: int, budget: Budget) -> Descriptor | None:
    if pos >= stop or buf[pos] != 0x00:
        return None
    skip_descriptor(buf, pos + 1, stop, budget)
    descriptor: Descriptor = decode_value(buf, pos + 1, stop, budget)[0]
    return descriptor


def _described(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Described, int]:
    _enter(budget)
    skip_descriptor(buf, pos, end, budget)
    descriptor, pos = _DECODERS[buf[pos]](buf, pos + 1, end, budget)
    value, pos = decode_value(buf, pos, end, budget)
    budget.levels += 1
    return Described(descriptor, value), pos


_DECODERS: Final[list[Decoder]] = [_unknown] * 256
"""By constructor byte. A decoder starts after the constructor, as array elements do."""

for _code, _decoder in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: _list0,
    0x50: _small(UByte, 0),
    0x51: _small(Byte, -128),
    0x52: _small(UInt, 0),
    0x53: _small(ULong, 0),
    0x54: _small(Int, -128),
    0x55: _small(Long, -128),
    0x56: _boolean,
    0x60: _number(UShort, ">H"),
    0x61: _number(Short, ">h"),
    0x70: _number(UInt, ">I"),
    0x71: _number(Int, ">i"),
    0x72: _number(Float32, ">f"),
    0x73: _char,
    0x74: _raw(Decimal32, 4),
    0x80: _number(ULong, ">Q"),
    0x81: _number(Long, ">q"),
    0x82: _number(float, ">d"),
    0x83: _number(Timestamp, ">q"),
    0x84: _raw(Decimal64, 8),
    0x94: _raw(Decimal128, 16),
    0x98: _raw(_uuid, 16),
    0xA0: _binary8,
    0xA1: _string8,
    0xA3: _symbol8,
    0xB0: _binary32,
    0xB1: _string32,
    0xB3: _symbol32,
    0xC0: _list8,
    0xC1: _map8,
    0xD0: _list32,
    0xD1: _map32,
    0xE0: _array8,
    0xF0: _array32,
}.items():
    _DECODERS[_code] = _decoder
