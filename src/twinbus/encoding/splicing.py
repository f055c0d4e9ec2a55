"""Changes encoded messages without encoding them again: section offsets, and header times.

The first sections of an encoded message are found by their positions. Nothing is decoded.

    header | delivery annot. | message annot. | properties | application properties | the rest
    0      [0]               [1]              [2]          [3]                      [4]

The time to live is in up to three places: the header's ttl, and the properties creation-time and
absolute-expiry-time, which SDKs derive from it and without which it is at most 49 days. This table
is common to alias and restore:

    sent                                          in the backlog        restored
    ttl, and expiry = creation + ttl              creation; ttl: long   all three
    ttl = 2^32-1, and expiry - creation > 49 d    creation; ttl: long   all three
    ttl, and creation without expiry              creation; ttl: uint   ttl and creation
    ttl, and any other times, or none             as sent; ttl: long    all as sent

Rule 1: a number is where a section ends and the next begins; a section that is missing is empty.
Rule 2: kept parts are copied byte for byte. Only heads (descriptors, sizes, counts) are rewritten.
Rule 3: the bytes may be hostile: functions here return a result or raise one of DAMAGE, and never
        trust a declared size without its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

from twinbus.amqp.codec.composites import SPECS, decode_fields
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.fixed_fields import BOOLEAN, UBYTE, UINT, decode_fixed_fields
from twinbus.amqp.codec.primitives import truncated, unpack_u32
from twinbus.amqp.codec.types import UInt
from twinbus.amqp.errors import CostlyValue, DecodeError
from twinbus.amqp.limits import UINT_MAX, Budget
from twinbus.amqp.message.properties import Header
from twinbus.amqp.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_at,
)

DAMAGE: Final = (DecodeError, IndexError, UnicodeDecodeError, struct.error)
"""The exceptions for bytes that are not a whole message."""

SectionEnds: TypeAlias = list[int]
"""Where the first five sections end."""

SECTION_HEAD_BYTES: Final = 3
_CODES: Final = (
    HEADER,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    APPLICATION_PROPERTIES,
)
_HEADS: Final = tuple(bytes((0x00, 0x53, code)) for code in _CODES)
_BARE_HEADS: Final = _HEADS[3:]
# What may follow the application properties: body, footer, and the delivery annotations that the
# Azure SDK writes at the end.
_REST_CODES: Final = b"\x75\x76\x77\x78\x71"

NULL: Final = b"\x40"
_COUNTED8: Final = struct.Struct(">BBB").pack
_COUNTED32: Final = struct.Struct(">BII").pack
_SIZE_COUNT: Final = struct.Struct(">II").unpack_from


def outline(encoded: bytes, bare_at: int = 0) -> tuple[bytes, SectionEnds]:
    """The message, and where its first five sections end.

    The message is returned unchanged, unless a section has a descriptor of an unusual form: it is
    replaced by the usual one. With ``bare_at``, where the properties begin, everything before it
    counts as one header.
    """
    stops = _stops(encoded, bare_at)
    if not _is_rest(encoded, stops[4]):
        encoded = encoded[:bare_at] + _with_usual_heads(encoded[bare_at:])
        stops = _stops(encoded, bare_at)
        if not _is_rest(encoded, stops[4]):
            raise DecodeError("The sections of a message are in a wrong order. Send them in order.")
    return encoded, stops


def _is_rest(buf: bytes, pos: int) -> bool:
    return pos == len(buf) or (buf[pos : pos + 2] == b"\x00\x53" and buf[pos + 2] in _REST_CODES)


def _stops(buf: bytes, pos: int) -> SectionEnds:
    stops = [pos, pos, pos] if pos else []
    for head in _BARE_HEADS if pos else _HEADS:
        if buf.startswith(head, pos):
            code = buf[pos + 3]
            if code == 0xC0 or code == 0xC1:
                pos += 5 + buf[pos + 4]
            elif code == 0xD0 or code == 0xD1:
                pos += 8 + unpack_u32(buf, pos + 4)[0]
            elif code == 0x45:
                pos += 4
            else:
                raise DecodeError("A section is neither a list nor a map. Check the message.")
        stops.append(pos)
    if pos > len(buf):
        raise truncated("a section")
    return stops


def _with_usual_heads(buf: bytes) -> bytes:
    """The message with short descriptors before the first sections, up to the body's first."""
    parts: list[bytes] = []
    pos, code, budget = 0, HEADER, Budget()
    while pos < len(buf) and code in _CODES:
        code, start = section_at(buf, pos, len(buf), budget)
        pos = after_value(buf, start)
        parts += (bytes((0x00, 0x53, code)), buf[start:pos])
    return b"".join((*parts, buf[pos:]))


# --- single values -----------------------------------------------------------------------------

# AMQP 1.0 section 1.2: the upper half of a constructor is the width of what follows.
_WIDTHS: Final = (0, 0, 0, 0, 1, 2, 3, 5, 9, 17, 0, 0, 0, 0, 0, 0)
"""The whole size of a value by that half; 0 where the size is in the bytes that follow."""


def after_value(buf: bytes, pos: int) -> int:
    """The position after the value at ``pos``, by its size alone."""
    while buf[pos] == 0x00:  # A descriptor, then what it describes.
        pos = after_value(buf, pos + 1) if buf[pos + 1] else _nested_descriptor()
    kind = buf[pos] >> 4
    if _WIDTHS[kind]:
        return pos + _WIDTHS[kind]
    if kind in (0xA, 0xC, 0xE):
        return pos + 2 + buf[pos + 1]
    if kind in (0xB, 0xD, 0xF):
        after: int = pos + 5 + unpack_u32(buf, pos + 1)[0]
        return after
    raise DecodeError(f"0x{buf[pos]:02x} is not a constructor of AMQP 1.0. Check the encoder.")


def _nested_descriptor() -> int:
    raise DecodeError("A descriptor is itself described. Use a ulong or a symbol.")


def value_at(buf: bytes, start: int, stop: int) -> Any:
    """The value in ``buf[start:stop]``."""
    if buf[start] == 0xA1:  # A short text, as nearly always.
        return buf[start + 2 : stop].decode()
    return decode_value(buf, start, stop, Budget())[0]


def counted(code8: int, count: int, body: bytes) -> bytes:
    """A list or map whose elements are encoded already, in the smaller form that fits."""
    size = len(body)
    if size < 255 and count <= 255:
        return _COUNTED8(code8, size + 1, count) + body
    return _COUNTED32(code8 + 0x10, size + 4, count) + body


def inside(buf: bytes, pos: int) -> tuple[int, int]:
    """(how many elements, where the first is) of the list or map at ``pos``."""
    code = buf[pos]
    if code == 0xC0 or code == 0xC1:
        return buf[pos + 2], pos + 3
    if code == 0xD0 or code == 0xD1:
        return _SIZE_COUNT(buf, pos + 1)[1], pos + 9
    return 0, pos + 1


# --- maps --------------------------------------------------------------------------------------


Pair: TypeAlias = tuple[bytes | None, int, int, int]
"""(key, where the pair begins, where its value does, where it ends). The key is the characters of
a string or symbol, and None for any other."""


PAIR_COUNT_MAX: Final = 4_096
"""Annotations or application properties of one message. Our broker accepts a quarter of it; other
services may accept as many as fit into 64 KB. Reading this number takes about a millisecond."""


def pairs_of(buf: bytes, start: int, stop: int) -> list[Pair]:
    """The entries of the map section in ``buf[start:stop]``, which may be empty."""
    if start == stop:
        return []
    count, pos = inside(buf, start + SECTION_HEAD_BYTES)
    if count & 1 or count > stop - pos:
        raise DecodeError("A map has a wrong number of elements. Correct its count.")
    if count > 2 * PAIR_COUNT_MAX:
        raise CostlyValue(
            f"A map of a message may have at most {PAIR_COUNT_MAX} entries, got {count >> 1}."
        )
    pairs: list[Pair] = []
    for _ in range(count >> 1):
        code = buf[pos]
        if code == 0xA1 or code == 0xA3:
            value_start = pos + 2 + buf[pos + 1]
            key: bytes | None = buf[pos + 2 : value_start]
        else:
            value_start = after_value(buf, pos)
            key = buf[pos + 5 : value_start] if code == 0xB1 or code == 0xB3 else None
        after = value_start + _WIDTHS[buf[value_start] >> 4]
        if after == value_start:
            after = after_value(buf, value_start)
        pairs.append((key, pos, value_start, after))
        pos = after
    if pos != stop:
        raise DecodeError("The size of a map differs from its elements. Correct its size.")
    return pairs


def map_section(code: int, count: int, pairs: bytes) -> bytes:
    """A section with ``count`` pairs; empty for no pairs."""
    if not count:
        return b""
    return bytes((0x00, 0x53, code)) + counted(0xC1, 2 * count, pairs)


def without(
    code: int,
    buf: bytes,
    start: int,
    stop: int,
    names: frozenset[bytes],
    added: Sequence[bytes] = (),
) -> bytes:
    """The map section in ``buf[start:stop]`` without some entries, perhaps with a few more."""
    kept = [
        buf[first:after] for key, first, _, after in pairs_of(buf, start, stop) if key not in names
    ]
    kept.extend(added)
    return map_section(code, len(kept), b"".join(kept))


# --- the properties list -----------------------------------------------------------------------

PROPERTY_COUNT_MAX: Final = 13


def property_starts(buf: bytes, start: int, stop: int) -> list[int]:
    """Where each field of the properties section begins, and, last, where they end."""
    if start == stop:
        return [stop]
    count, pos = inside(buf, start + SECTION_HEAD_BYTES)
    if count > PROPERTY_COUNT_MAX:
        raise DecodeError(f"The properties have {count} fields; AMQP has {PROPERTY_COUNT_MAX}.")
    starts: list[int] = []
    for left in range(count, 0, -1):
        if stop - pos == left:  # One byte each is left: most messages have an id and then nulls.
            starts.extend(range(pos, stop))
            pos = stop
            break
        starts.append(pos)
        code = buf[pos]
        if code == 0xA1 or code == 0xA3:
            pos += 2 + buf[pos + 1]
        elif code == 0x40:
            pos += 1
        else:
            pos = after_value(buf, pos)
    if pos != stop:
        raise DecodeError("The size of the properties differs from their fields. Correct it.")
    starts.append(stop)
    return starts


def with_properties(buf: bytes, starts: list[int], changes: dict[int, bytes]) -> bytes:
    """The properties section with some fields set to other values, already encoded."""
    count = max(len(starts) - 1, max(changes) + 1)
    fields = [buf[start:stop] for start, stop in pairwise(starts)]
    fields += [NULL] * (count - len(fields))
    for index, value in changes.items():
        fields[index] = value
    return _HEADS[3] + counted(0xC0, count, b"".join(fields))


EXPIRY_TIME, CREATION_TIME = 8, 9
TTL_MS_UNSPECIFIED: Final = UINT_MAX
"""The largest ttl of a header; with both times it means their difference."""
# The maximum of the Azure SDK, which it uses for a later expiry.
_EXPIRY_MS_MAX: Final = 253_402_243_199_000


_HEADER_CODES: Final = (BOOLEAN, UBYTE, UINT, BOOLEAN, UINT)


def header_at(buf: bytes, header_stop: int) -> Header:
    """The header of a message that begins with one."""
    values: list[Any] = [False, None, None, False, 0]
    if decode_fixed_fields(buf, SECTION_HEAD_BYTES, header_stop, _HEADER_CODES, values):
        return Header(*values)
    header: Header
    header, _stop = decode_fields(SPECS[Header], buf, SECTION_HEAD_BYTES, header_stop, Budget())
    return header


def header_section(
    *, priority: int | None, ttl_ms: int | None = None, durable: bool = False
) -> bytes:
    """The shortest header with these values; empty if there are none."""
    if priority is None and ttl_ms is None and not durable:
        return b""
    fields = b"\x41" if durable else NULL
    count = 1
    if priority is not None or ttl_ms is not None:
        fields += NULL if priority is None else bytes((0x50, priority))
        count = 2
    if ttl_ms is not None:
        fields += encode_value(UInt(ttl_ms))
        count = 3
    return b"\x00\x53\x70\xc0" + bytes((len(fields) + 1, count)) + fields


def expiry_ms(creation_ms: int, ttl_ms: int) -> int:
    return min(creation_ms + ttl_ms, _EXPIRY_MS_MAX)


def timestamp_at(buf: bytes, starts: list[int], index: int) -> int | None:
    if len(starts) <= index + 1 or buf[starts[index]] != 0x83:
        return None
    return int.from_bytes(buf[starts[index] + 1 : starts[index + 1]], "big", signed=True)
