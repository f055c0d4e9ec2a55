"""Checks that decoding and skipping share: sizes, counts, levels, text.

Rule 1: these functions return a number or raise DecodeError; they build no values.
Rule 2: every error text about malformed bytes is here or beside its type.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from twinbus.amqp.errors import CostlyValue, DecodeError
from twinbus.amqp.limits import Budget

unpack_u32: Final = struct.Struct(">I").unpack_from
unpack_u32_pair: Final = struct.Struct(">II").unpack_from

FIXED_WIDTHS: Final[dict[int, int]] = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x73, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
"""Bytes that follow a constructor whose values all have the same width."""

KEY_COST_NUMBER: Final = 1
KEY_COST_UUID: Final = 16
_KEY_REFUSED: Final = 255


def _key_costs() -> bytes:
    """What a key takes from the budget, by constructor: the more, the easier hashes collide.

    Strings, symbols, chars, binaries and decimals are hashed with a secret of the process, and
    numbers of one byte are too few to collide. The hash of other numbers is their value modulo
    2**61 - 1: a peer can choose keys that collide in a hash table, so that their cost grows with
    the square of their number. UUIDs are hashed in the same way and have 2**67 values of each
    hash, which are compared in Python, one by one.
    """
    costs = bytearray(256)
    # A key that is null, described or compound cannot be a dictionary key of a receiver.
    for code in (0x00, 0x40, 0x45, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0):
        costs[code] = _KEY_REFUSED
    for code in (0x60, 0x61, 0x70, 0x71, 0x72, 0x80, 0x81, 0x82, 0x83):
        costs[code] = KEY_COST_NUMBER
    costs[0x98] = KEY_COST_UUID
    return bytes(costs)


KEY_COSTS: Final = _key_costs()


def truncated(what: str) -> DecodeError:
    return DecodeError(f"The bytes end inside {what}. Send the whole value.")


def refuse_constructor(buf: bytes, pos: int) -> NoReturn:
    raise DecodeError(f"0x{buf[pos]:02x} is not a constructor of AMQP 1.0. Check the encoder.")


def size8(buf: bytes, pos: int, end: int, what: str) -> int:
    """The position after a value whose 1-byte size is at ``pos``."""
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated(what)
    return after


def size32(buf: bytes, pos: int, end: int, what: str) -> int:
    """The position after a value whose 4-byte size is at ``pos``."""
    if pos + 4 > end:
        raise truncated(what)
    after: int = pos + 4 + unpack_u32(buf, pos)[0]
    if after > end:
        raise truncated(what)
    return after


def counted8(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[int, int, int]:
    """(count, position of the elements, position after them) of a short compound at ``pos``."""
    start = pos + 2
    if start > end:
        raise truncated("the head of a compound")
    stop = pos + 1 + buf[pos]
    count = buf[pos + 1]
    if stop > end or count > stop - start:
        raise _not_filled(count, start, stop, end)
    budget.items -= count
    if budget.items < 0:
        raise too_many()
    return count, start, stop


def counted32(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[int, int, int]:
    """The same for a long compound."""
    start = pos + 8
    if start > end:
        raise truncated("the head of a compound")
    size, count = unpack_u32_pair(buf, pos)
    stop = pos + 4 + size
    if stop > end or count > stop - start:
        raise _not_filled(count, start, stop, end)
    budget.items -= count
    if budget.items < 0:
        raise too_many()
    return count, start, stop


def _not_filled(count: int, start: int, stop: int, end: int) -> DecodeError:
    """Every element of a list or map has a constructor, and every element of an accepted array has
    a width, so that a count above the number of remaining bytes is invalid."""
    if start <= stop <= end:
        return DecodeError(
            f"A compound declares {count} elements in {stop - start} bytes. Correct its count."
        )
    return truncated("a compound")


def too_many() -> DecodeError:
    return CostlyValue(
        "The lists, maps and arrays have too many elements together. Send smaller values."
    )


def descend(budget: Budget) -> None:
    """Enter a compound or described value; at its end the caller adds 1 to ``budget.levels``."""
    budget.levels -= 1
    if budget.levels < 0:
        raise DecodeError("Values are nested too deeply. Flatten them.")


def check_filled(pos: int, stop: int) -> None:
    if pos != stop:
        raise DecodeError("The size of a compound differs from its elements. Correct its size.")


def check_even(count: int) -> None:
    if count & 1:
        raise DecodeError(f"A map has {count} elements, so a key has no value. Send pairs.")


def check_key(buf: bytes, pos: int, stop: int, budget: Budget) -> None:
    """Check a key by its constructor, before its value is built."""
    if pos >= stop:
        raise truncated("a map")
    if cost := KEY_COSTS[buf[pos]]:
        charge_key(cost, budget)


def charge_key(cost: int, budget: Budget) -> None:
    """Take a key from the budget of keys whose hashes a peer can choose."""
    if cost == _KEY_REFUSED:
        raise DecodeError("A map key is null, described or compound. Use a simple value.")
    budget.keys -= cost
    if budget.keys < 0:
        raise CostlyValue(
            "The maps have too many keys that are numbers or UUIDs together. Use strings as keys."
        )


def refuse_repeated_key() -> NoReturn:
    raise DecodeError("A map has the same key twice. Send each key once.")


def check_element_code(code: int, count: int) -> None:
    """Refuse arrays whose elements have no bytes: ten bytes could declare billions of them."""
    if count and FIXED_WIDTHS.get(code) == 0:
        raise DecodeError(
            f"An array of {count} elements without a width (0x{code:02x}) is refused. "
            "Send a list, or elements of at least one byte."
        )


def text_of(buf: bytes, start: int, after: int) -> str:
    """The string in these bytes; overlong forms and surrogates are not UTF-8."""
    try:
        return buf[start:after].decode()
    except UnicodeDecodeError:
        raise DecodeError("A string is not valid UTF-8. Encode it as UTF-8.") from None


def ascii_of(buf: bytes, start: int, after: int) -> str:
    try:
        return buf[start:after].decode("ascii")
    except UnicodeDecodeError:
        raise DecodeError("A symbol has a character outside ASCII. Use a string.") from None


def boolean_of(buf: bytes, pos: int, end: int) -> bool:
    if pos >= end:
        raise truncated("a boolean")
    if buf[pos] > 1:
        raise DecodeError(f"A boolean is 0x{buf[pos]:02x}. Only 0x00 and 0x01 are booleans.")
    return buf[pos] == 1


def code_point_of(buf: bytes, pos: int, end: int) -> int:
    if pos + 4 > end:
        raise truncated("a char")
    code_point: int = unpack_u32(buf, pos)[0]
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise DecodeError(f"A char is 0x{code_point:x}, which is not a Unicode character.")
    return code_point
