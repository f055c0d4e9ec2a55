"""AMQP 1.0 values for the benchmark client: a small encoder and decoder of its own.

Rule 1: independent of the broker's codec: a slip there must not be mirrored here.
Rule 2: the encoder covers what the client sends; the decoder covers whatever a peer may send,
        except decimals and char, which nothing here needs.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"


class Described(NamedTuple):
    """A value with its descriptor, for example a performative."""

    descriptor: object
    value: Any


def uint(number: int) -> bytes:
    return b"\x70" + struct.pack(">I", number)


def ulong(number: int) -> bytes:
    return b"\x80" + struct.pack(">Q", number)


def ubyte(number: int) -> bytes:
    return bytes([0x50, number])


def ushort(number: int) -> bytes:
    return b"\x60" + struct.pack(">H", number)


def timestamp(milliseconds: int) -> bytes:
    return b"\x83" + struct.pack(">q", milliseconds)


def _sized(short: int, long: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes([short, len(raw)]) + raw
    return bytes([long]) + struct.pack(">I", len(raw)) + raw


def binary(raw: bytes) -> bytes:
    return _sized(0xA0, 0xB0, raw)


def string(text: str) -> bytes:
    return _sized(0xA1, 0xB1, text.encode())


def symbol(text: str) -> bytes:
    return _sized(0xA3, 0xB3, text.encode("ascii"))


def _compound(code: int, items: tuple[bytes, ...]) -> bytes:
    body = struct.pack(">I", len(items)) + b"".join(items)
    return bytes([code]) + struct.pack(">I", len(body)) + body


def listed(*items: bytes) -> bytes:
    return _compound(0xD0, items)


def mapped(*items: bytes) -> bytes:
    """Keys and values in turn."""
    return _compound(0xD1, items)


def described(code: int, value: bytes) -> bytes:
    return bytes([0x00, 0x53, code]) + value


def _fixed(layout: str) -> Callable[[bytes, int], tuple[Any, int]]:
    form = struct.Struct(layout)
    return lambda data, at: (form.unpack_from(data, at)[0], at + form.size)


def _variable(width: int, make: Callable[[bytes], Any]) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "big")
        return make(data[start:end]), end

    return read


def _items(width: int) -> Callable[[bytes, int], tuple[list[Any], int]]:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        count = int.from_bytes(data[at + width : at + 2 * width], "big")
        items, at = [], at + 2 * width
        for _ in range(count):
            item, at = decode(data, at)
            items.append(item)
        return items, at

    return read


def _pairs(width: int) -> Callable[[bytes, int], tuple[dict[Any, Any], int]]:
    read_items = _items(width)

    def read(data: bytes, at: int) -> tuple[dict[Any, Any], int]:
        items, at = read_items(data, at)
        return dict(zip(items[::2], items[1::2], strict=True)), at

    return read


def _array(width: int) -> Callable[[bytes, int], tuple[list[Any], int]]:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        count = int.from_bytes(data[at + width : at + 2 * width], "big")
        read_item, at = DECODERS[data[at + 2 * width]], at + 2 * width + 1
        items = []
        for _ in range(count):
            item, at = read_item(data, at)
            items.append(item)
        return items, at

    return read


def _described(data: bytes, at: int) -> tuple[Described, int]:
    descriptor, at = decode(data, at)
    value, at = decode(data, at)
    return Described(descriptor, value), at


def _constant(value: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    return lambda _, at: (value, at)


def _text(raw: bytes) -> str:
    return raw.decode()


def _uuid(data: bytes, at: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=data[at : at + 16]), at + 16


DECODERS: Final[dict[int, Callable[[bytes, int], tuple[Any, int]]]] = {
    0x00: _described,
    0x40: _constant(None), 0x41: _constant(True), 0x42: _constant(False),
    0x43: _constant(0), 0x44: _constant(0), 0x45: _constant([]),
    0x50: _fixed(">B"), 0x51: _fixed(">b"), 0x52: _fixed(">B"), 0x53: _fixed(">B"),
    0x54: _fixed(">b"), 0x55: _fixed(">b"), 0x56: _fixed(">?"),
    0x60: _fixed(">H"), 0x61: _fixed(">h"), 0x70: _fixed(">I"), 0x71: _fixed(">i"),
    0x72: _fixed(">f"), 0x80: _fixed(">Q"), 0x81: _fixed(">q"), 0x82: _fixed(">d"),
    0x83: _fixed(">q"), 0x98: _uuid,
    0xA0: _variable(1, bytes), 0xB0: _variable(4, bytes),
    0xA1: _variable(1, _text), 0xB1: _variable(4, _text),
    0xA3: _variable(1, _text), 0xB3: _variable(4, _text),
    0xC0: _items(1), 0xD0: _items(4), 0xC1: _pairs(1), 0xD1: _pairs(4),
    0xE0: _array(1), 0xF0: _array(4),
}  # fmt: skip


def decode(data: bytes, at: int) -> tuple[Any, int]:
    """The value at ``at`` and the position behind it."""
    return DECODERS[data[at]](data, at + 1)
