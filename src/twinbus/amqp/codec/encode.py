"""Python values to AMQP 1.0 bytes, always in the smallest encoding.

Rule 1: the type of a value determines the encoding, by one table; a subclass that is not in the
        table (for example an enum) is encoded as its nearest base class that is.
Rule 2: a value without an AMQP type raises EncodeError, before a byte of it can be sent.
Rule 3: array elements are written in the encoding of their shared constructor, never smaller.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from twinbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
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
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.limits import DEFAULT_LIMITS

Encoder: TypeAlias = Callable[[bytearray, Any, int], None]
"""Appends one value; the last argument is its nesting level."""

# Our own decoder, and that of the SDK, refuse deeper values.
NESTING_MAX: Final = DEFAULT_LIMITS.nesting_max
SMALL_SIZE_MAX: Final = 255

_CODE_U8: Final = struct.Struct(">BB").pack
_CODE_U32: Final = struct.Struct(">BI").pack
_CODE_U64: Final = struct.Struct(">BQ").pack
_CODE_I8: Final = struct.Struct(">Bb").pack
_CODE_I32: Final = struct.Struct(">Bi").pack
_CODE_I64: Final = struct.Struct(">Bq").pack
_COUNTED8: Final = struct.Struct(">BBB").pack
_COUNTED32: Final = struct.Struct(">BII").pack


def encode_value(value: Any) -> bytes:
    """The value as AMQP bytes, constructor included."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append the value to ``out``; raise EncodeError if it has no AMQP type.

    After an error ``out`` may contain a part of the value: discard it.
    """
    try:
        _encode(out, value, 0)
    except (struct.error, OverflowError) as error:
        raise EncodeError(
            f"The {type(value).__name__} has a number outside the range of its AMQP type. "
            "Use a wider type."
        ) from error
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"The {type(value).__name__} has a character that its AMQP type cannot encode. "
            "Use ASCII in symbols, and no lone surrogates in strings."
        ) from error


def _encode(out: bytearray, value: Any, depth: int) -> None:
    encoder = ENCODERS.get(type(value))
    if encoder is None:
        encoder = _encoder_of_base(type(value))
    encoder(out, value, depth)


def _encoder_of_base(kind: type) -> Encoder:
    for base in kind.__mro__:
        if base in ENCODERS:
            return ENCODERS[base]
    raise EncodeError(f"{kind.__name__} has no AMQP type. Convert it to a type that has one.")


def _deeper(depth: int) -> int:
    if depth >= NESTING_MAX:
        raise EncodeError(f"Values are nested deeper than {NESTING_MAX} levels. Flatten them.")
    return depth + 1


# --- fixed width -------------------------------------------------------------------------------


def _null(out: bytearray, value: None, depth: int) -> None:
    out.append(0x40)


def _boolean(out: bytearray, value: bool, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _uint(out: bytearray, value: int, depth: int) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value <= SMALL_SIZE_MAX:
        out += _CODE_U8(0x52, value)
    else:
        out += _CODE_U32(0x70, value)


def _ulong(out: bytearray, value: int, depth: int) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value <= SMALL_SIZE_MAX:
        out += _CODE_U8(0x53, value)
    else:
        out += _CODE_U64(0x80, value)


def _int(out: bytearray, value: int, depth: int) -> None:
    if -128 <= value <= 127:
        out += _CODE_I8(0x54, value)
    else:
        out += _CODE_I32(0x71, value)


def _long(out: bytearray, value: int, depth: int) -> None:
    if -128 <= value <= 127:
        out += _CODE_I8(0x55, value)
    else:
        out += _CODE_I64(0x81, value)


def _packed(code: int, layout: str) -> Encoder:
    pack = struct.Struct(layout).pack

    def encode(out: bytearray, value: Any, depth: int) -> None:
        out.append(code)
        out += pack(value)

    return encode


def _raw(code: int, width: int) -> Encoder:
    def encode(out: bytearray, value: Any, depth: int) -> None:
        out.append(code)
        out += _raw_of(value, width)

    return encode


def _raw_of(value: Any, width: int) -> bytes:
    raw: bytes = value.bytes if isinstance(value, UUID) else value.raw
    if len(raw) != width:
        raise EncodeError(f"{type(value).__name__} must have {width} bytes, got {len(raw)}.")
    return raw


def _char(out: bytearray, value: str, depth: int) -> None:
    out.append(0x73)
    out += _utf32(value)


def _utf32(value: str) -> bytes:
    if len(value) != 1:
        raise EncodeError(f"A char must have one character, got {len(value)}.")
    return value.encode("utf-32-be")


# --- variable width ----------------------------------------------------------------------------


def _append_sized(out: bytearray, code8: int, raw: bytes) -> None:
    """``code8`` is the constructor of the short form; the long form is always 0x10 above it."""
    size = len(raw)
    out += _CODE_U8(code8, size) if size <= SMALL_SIZE_MAX else _CODE_U32(code8 + 0x10, size)
    out += raw


def _binary(out: bytearray, value: bytes, depth: int) -> None:
    _append_sized(out, 0xA0, value)


def _string(out: bytearray, value: str, depth: int) -> None:
    _append_sized(out, 0xA1, value.encode("utf-8"))


def _symbol(out: bytearray, value: str, depth: int) -> None:
    _append_sized(out, 0xA3, value.encode("ascii"))


# --- compounds ---------------------------------------------------------------------------------


def append_counted(out: bytearray, code8: int, count: int, body: bytes | bytearray) -> None:
    """Append a list, map or array whose elements are encoded in ``body`` already."""
    size = len(body)
    if size < SMALL_SIZE_MAX and count <= SMALL_SIZE_MAX:
        out += _COUNTED8(code8, size + 1, count)
    else:
        out += _COUNTED32(code8 + 0x10, size + 4, count)
    out += body


def _list(out: bytearray, value: list[Any], depth: int) -> None:
    inside = _deeper(depth)
    if not value:
        out.append(0x45)
        return
    body = bytearray()
    for item in value:
        _encode(body, item, inside)
    append_counted(out, 0xC0, len(value), body)


def _map(out: bytearray, value: dict[Any, Any], depth: int) -> None:
    inside = _deeper(depth)
    body = bytearray()
    for key, item in value.items():
        if key is None or isinstance(key, (Described, Array, tuple)):
            raise EncodeError(f"A map key cannot be {type(key).__name__}. Use a simple value.")
        _encode(body, key, inside)
        _encode(body, item, inside)
    append_counted(out, 0xC1, 2 * len(value), body)


def _described(out: bytearray, value: Described, depth: int) -> None:
    inside = _deeper(depth)
    out.append(0x00)
    _descriptor(out, value.descriptor)
    _encode(out, value.value, inside)


def _descriptor(out: bytearray, descriptor: Any) -> None:
    if isinstance(descriptor, str):
        _symbol(out, descriptor, 0)
    elif isinstance(descriptor, int):
        _ulong(out, descriptor, 0)
    else:
        raise EncodeError("A descriptor must be a ulong or a symbol.")


def _array(out: bytearray, value: Array, depth: int) -> None:
    inside = _deeper(depth)
    body = bytearray()
    if value.constructor is not None:
        _array_constructor(body, value)
        if value.descriptor is not None:
            inside = _deeper(inside)
        write = _element_encoder(value)
        for item in value.items:
            write(body, item, inside)
    elif value.items:
        raise EncodeError("An array with elements needs their constructor.")
    append_counted(out, 0xE0, len(value.items), body)


def _array_constructor(body: bytearray, value: Array) -> None:
    if value.descriptor is not None:
        body.append(0x00)
        _descriptor(body, value.descriptor)
    assert value.constructor is not None
    body.append(value.constructor)


# --- array elements: the value in the width of a given constructor, without the constructor ------


def _element_encoder(value: Array) -> Encoder:
    accepted, encoder = _ELEMENTS.get(value.constructor or 0, ((), None))
    if encoder is None:
        raise EncodeError(
            f"An array of elements with constructor 0x{value.constructor:02x} cannot be encoded. "
            "Use elements of at least one byte."
        )
    if not all(isinstance(item, accepted) for item in value.items):
        raise EncodeError("The elements of an array must all have the type of its constructor.")
    return encoder


def _element(layout: str) -> Encoder:
    pack = struct.Struct(layout).pack

    def encode(out: bytearray, value: Any, depth: int) -> None:
        out += pack(value)

    return encode


def _element_raw(width: int) -> Encoder:
    def encode(out: bytearray, value: Any, depth: int) -> None:
        out += _raw_of(value, width)

    return encode


def _element_sized(size_layout: str, to_bytes: Callable[[Any], bytes]) -> Encoder:
    pack = struct.Struct(size_layout).pack

    def encode(out: bytearray, value: Any, depth: int) -> None:
        raw = to_bytes(value)
        out += pack(len(raw))
        out += raw

    return encode


def _element_char(out: bytearray, value: str, depth: int) -> None:
    out += _utf32(value)


def _element_counted(head_layout: str) -> Encoder:
    """Encode the compound as usual, then replace its head by that of the shared constructor."""
    head = struct.Struct(head_layout)

    def encode(out: bytearray, value: Any, depth: int) -> None:
        whole = bytearray()
        _encode(whole, value, depth)
        count, body = _split_counted(whole)
        out += head.pack(len(body) + head.size // 2, count)
        out += body

    return encode


def _split_counted(whole: bytearray) -> tuple[int, bytes]:
    if whole[0] == 0x45:
        return 0, b""
    if whole[0] in (0xC0, 0xC1, 0xE0):
        return whole[2], bytes(whole[3:])
    return int.from_bytes(whole[5:9], "big"), bytes(whole[9:])


def _utf8(value: str) -> bytes:
    return value.encode("utf-8")


def _ascii(value: str) -> bytes:
    return value.encode("ascii")


_ELEMENTS: Final[dict[int, tuple[tuple[type, ...], Encoder]]] = {
    0x50: ((int,), _element(">B")),
    0x51: ((int,), _element(">b")),
    0x52: ((int,), _element(">B")),
    0x53: ((int,), _element(">B")),
    0x54: ((int,), _element(">b")),
    0x55: ((int,), _element(">b")),
    0x56: ((bool,), _element(">?")),
    0x60: ((int,), _element(">H")),
    0x61: ((int,), _element(">h")),
    0x70: ((int,), _element(">I")),
    0x71: ((int,), _element(">i")),
    0x72: ((float,), _element(">f")),
    0x73: ((str,), _element_char),
    0x74: ((Decimal32,), _element_raw(4)),
    0x80: ((int,), _element(">Q")),
    0x81: ((int,), _element(">q")),
    0x82: ((float,), _element(">d")),
    0x83: ((int,), _element(">q")),
    0x84: ((Decimal64,), _element_raw(8)),
    0x94: ((Decimal128,), _element_raw(16)),
    0x98: ((UUID,), _element_raw(16)),
    0xA0: ((bytes, bytearray), _element_sized(">B", bytes)),
    0xA1: ((str,), _element_sized(">B", _utf8)),
    0xA3: ((str,), _element_sized(">B", _ascii)),
    0xB0: ((bytes, bytearray), _element_sized(">I", bytes)),
    0xB1: ((str,), _element_sized(">I", _utf8)),
    0xB3: ((str,), _element_sized(">I", _ascii)),
    0xC0: ((list,), _element_counted(">BB")),
    0xC1: ((dict,), _element_counted(">BB")),
    0xD0: ((list,), _element_counted(">II")),
    0xD1: ((dict,), _element_counted(">II")),
    0xE0: ((Array,), _element_counted(">BB")),
    0xF0: ((Array,), _element_counted(">II")),
}

ENCODERS: Final[dict[type, Encoder]] = {
    type(None): _null,
    bool: _boolean,
    UByte: _packed(0x50, ">B"),
    UShort: _packed(0x60, ">H"),
    UInt: _uint,
    ULong: _ulong,
    Byte: _packed(0x51, ">b"),
    Short: _packed(0x61, ">h"),
    Int: _int,
    Long: _long,
    int: _long,
    Timestamp: _packed(0x83, ">q"),
    Float32: _packed(0x72, ">f"),
    float: _packed(0x82, ">d"),
    Char: _char,
    Decimal32: _raw(0x74, 4),
    Decimal64: _raw(0x84, 8),
    Decimal128: _raw(0x94, 16),
    UUID: _raw(0x98, 16),
    bytes: _binary,
    bytearray: _binary,
    Symbol: _symbol,
    str: _string,
    list: _list,
    dict: _map,
    Described: _described,
    Array: _array,
}
