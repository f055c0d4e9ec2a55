"""The header and the times of a message: what alias and restore must agree on.

The time to live travels in up to three places: the header's ttl, and the properties creation-time
and absolute-expiry-time, which SDKs derive from it and which alone can say more than 49 days.

    sent                                          in the backlog        home again
    ttl, and expiry = creation + ttl              creation; ttl: long   all three
    ttl = 2^32-1, and expiry - creation > 49 d    creation; ttl: long   all three
    ttl, and creation without expiry              creation; ttl: uint   ttl and creation
    ttl, and any other times, or none             as sent; ttl: long    all as sent
"""

from __future__ import annotations

from typing import Any, Final

from twinbus.amqp.composites import SPECS, decode_fields
from twinbus.amqp.encode import encode_value
from twinbus.amqp.limits import Budget
from twinbus.amqp.plain import BOOLEAN, UBYTE, UINT, decode_fixed_fields
from twinbus.amqp.properties import Header
from twinbus.amqp.types import UInt
from twinbus.core.envelope_layout import NULL, SECTION_HEAD_BYTES

EXPIRY_TIME, CREATION_TIME = 8, 9
TTL_MS_UNSPECIFIED: Final = 0xFFFFFFFF
"""The largest ttl of a header; with both times it means their difference."""
# The Azure SDK's own last moment, to which it cuts an expiry that lies behind it.
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
    """The shortest header that says this; none at all if it says nothing."""
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
