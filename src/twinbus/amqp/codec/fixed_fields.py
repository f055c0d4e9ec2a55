"""Lists of small fields, read without building anything but the values.

Rule 1: this code never raises an error. It returns 0 for everything unusual, and the general
        decoder (composites.py) decides and raises the error.
Rule 2: it and the general decoder return equal values; a test compares them.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from twinbus.amqp.codec.primitives import unpack_u32
from twinbus.amqp.delivery_states import Accepted

# The constructors that a plain field may have.
UINT: Final = b"\x43\x52\x70"
UBYTE: Final = b"\x50"
BOOLEAN: Final = b"\x41\x42\x56"
BINARY: Final = b"\xa0"
STATE: Final = b"\x00"
NOT_PLAIN: Final = b""
"""For a field that needs the general decoder for the whole list, unless it is null."""

_LONG_LIST: Final = struct.Struct(">II").unpack_from
_NULLS: Final = tuple(b"\x40" * count for count in range(14))
_ACCEPTED: Final = b"\x00\x53\x24\x45"
_ACCEPTED_LIST8: Final = b"\x00\x53\x24\xc0\x01\x00"


def decode_fixed_fields(
    buf: bytes, pos: int, end: int, codes: tuple[bytes, ...], values: list[Any]
) -> int:
    """Fill ``values`` from the list whose constructor is at ``pos``.

    Returns the position after the list, or 0 if it is not plain. Positions only grow, so that
    nothing was read beyond the stop if the last position is exactly the stop.
    """
    try:
        if buf[pos] == 0xC0:
            stop = pos + 2 + buf[pos + 1]
            count = buf[pos + 2]
            pos += 3
        elif buf[pos] == 0xD0:
            size, count = _LONG_LIST(buf, pos + 1)
            stop = pos + 5 + size
            pos += 9
        else:
            return 0
        if count > len(codes):
            return 0
        for index in range(count):
            code = buf[pos]
            if code == 0x40:
                if stop - pos == count - index and buf.startswith(_NULLS[stop - pos], pos):
                    pos = stop  # The Azure SDK ends every transfer with five nulls.
                    break
                pos += 1
            elif code not in codes[index]:
                return 0
            elif code == 0x52 or code == 0x50:
                values[index] = buf[pos + 1]
                pos += 2
            elif code == 0x70:
                values[index] = unpack_u32(buf, pos + 1)[0]
                pos += 5
            elif code == 0x43:
                values[index] = 0
                pos += 1
            elif code == 0xA0:
                start = pos + 2
                pos = start + buf[pos + 1]
                values[index] = buf[start:pos]
            elif code == 0x56:
                if buf[pos + 1] > 1:
                    return 0
                values[index] = buf[pos + 1] == 1
                pos += 2
            elif code == 0x00:
                if buf.startswith(_ACCEPTED, pos):
                    pos += 4
                elif buf.startswith(_ACCEPTED_LIST8, pos):
                    pos += 6
                else:
                    return 0
                values[index] = Accepted()
            else:
                values[index] = code == 0x41
                pos += 1
    except (IndexError, struct.error):
        return 0
    return stop if pos == stop <= end else 0
