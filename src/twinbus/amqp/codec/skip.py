"""Checks AMQP values as decoding does, without building them.

Rule 1: what skip_value accepts, decode_value accepts, but for map keys that are equal only after
        decoding ("a" as a short and as a long string): here keys are compared as bytes.
Rule 2: a binary of any size costs the same, so that bodies cost nothing.
Rule 3: checking takes at most a quarter of a microsecond a byte, so an event loop checks large
        values in steps of a limited size (skip_steps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from twinbus.amqp.codec.primitives import (
    FIXED_WIDTHS,
    ascii_of,
    boolean_of,
    check_element_code,
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
    truncated,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import Budget
from twinbus.common.steps import Steps

Skipper: TypeAlias = Callable[[bytes, int, int, Budget], int]

STEP_BYTES: Final = 4_096
"""A value that is not larger is one step, which takes up to 1 ms."""


def skip_value(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    """The position after the value that starts at ``pos``, which is valid."""
    if pos >= end:
        raise truncated("a value")
    return SKIPPERS[buf[pos]](buf, pos + 1, end, budget)


def _unknown(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    refuse_constructor(buf, pos - 1)


def _fixed(width: int) -> Skipper:
    def skip(buf: bytes, pos: int, end: int, budget: Budget) -> int:
        if pos + width > end:
            raise truncated(f"a value of {width} bytes")
        return pos + width

    return skip


def _boolean(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    boolean_of(buf, pos, end)
    return pos + 1


def _char(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    code_point_of(buf, pos, end)
    return pos + 4


def _binary8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a binary")
    return after


def _binary32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    return size32(buf, pos, end, "a binary")


def _string8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a string")
    if not buf[pos + 1 : after].isascii():
        text_of(buf, pos + 1, after)
    return after


def _string32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    after = size32(buf, pos, end, "a string")
    text_of(buf, pos + 4, after)
    return after


def _symbol8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    if pos >= end or (after := pos + 1 + buf[pos]) > end:
        raise truncated("a symbol")
    if not buf[pos + 1 : after].isascii():
        ascii_of(buf, pos + 1, after)
    return after


def _symbol32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    after = size32(buf, pos, end, "a symbol")
    ascii_of(buf, pos + 4, after)
    return after


def _list0(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    descend(budget)
    budget.levels += 1
    return pos


def _list8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted8(buf, pos, end, budget)
    return _list_items(buf, pos, stop, count, budget)


def _list32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted32(buf, pos, end, budget)
    return _list_items(buf, pos, stop, count, budget)


def _list_items(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> int:
    descend(budget)
    for _ in range(count):
        if pos >= stop:
            raise truncated("a list")
        pos = SKIPPERS[buf[pos]](buf, pos + 1, stop, budget)
    check_filled(pos, stop)
    budget.levels += 1
    return stop


def _map8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted8(buf, pos, end, budget)
    return _map_items(buf, pos, stop, count, budget)


def _map32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted32(buf, pos, end, budget)
    return _map_items(buf, pos, stop, count, budget)


def _map_items(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> int:
    check_even(count)
    descend(budget)
    keys = set()
    for _ in range(count >> 1):
        check_key(buf, pos, stop, budget)
        after = SKIPPERS[buf[pos]](buf, pos + 1, stop, budget)
        keys.add(buf[pos:after])
        pos = skip_value(buf, after, stop, budget)
    if len(keys) != count >> 1:
        refuse_repeated_key()
    check_filled(pos, stop)
    budget.levels += 1
    return stop


def _array8(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted8(buf, pos, end, budget)
    return _array_items(buf, pos, stop, count, budget)


def _array32(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    count, pos, stop = counted32(buf, pos, end, budget)
    return _array_items(buf, pos, stop, count, budget)


def _array_items(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> int:
    descend(budget)
    if pos < stop or count:
        pos, levels = skip_array_constructor(buf, pos, stop, count, budget)
        skip = SKIPPERS[buf[pos - 1]]
        for _ in range(count):
            pos = skip(buf, pos, stop, budget)
        budget.levels += levels
    check_filled(pos, stop)
    budget.levels += 1
    return stop


def skip_array_constructor(
    buf: bytes, pos: int, stop: int, count: int, budget: Budget
) -> tuple[int, int]:
    """(position after the element constructor, levels that a descriptor added)."""
    levels = 0
    if pos < stop and buf[pos] == 0x00:
        descend(budget)
        levels = 1
        pos = skip_descriptor(buf, pos + 1, stop, budget)
    if pos >= stop:
        raise truncated("an array")
    if buf[pos] == 0x00 or SKIPPERS[buf[pos]] is _unknown:
        refuse_constructor(buf, pos)
    check_element_code(buf[pos], count)
    return pos + 1, levels


def skip_descriptor(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    """The position after a descriptor: a ulong or a symbol, as AMQP defines."""
    if pos < end and buf[pos] in (0x44, 0x53, 0x80, 0xA3, 0xB3):
        return SKIPPERS[buf[pos]](buf, pos + 1, end, budget)
    raise DecodeError("A descriptor is neither a ulong nor a symbol. Use one of these.")


def _described(buf: bytes, pos: int, end: int, budget: Budget) -> int:
    descend(budget)
    pos = skip_descriptor(buf, pos, end, budget)
    pos = skip_value(buf, pos, end, budget)
    budget.levels += 1
    return pos


SKIPPERS: Final[list[Skipper]] = [_unknown] * 256
"""By constructor byte. A skipper starts after the constructor, as array elements do."""

for _code, _width in FIXED_WIDTHS.items():
    SKIPPERS[_code] = _fixed(_width)
for _code, _skipper in {
    0x00: _described,
    0x45: _list0,
    0x56: _boolean,
    0x73: _char,
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
    SKIPPERS[_code] = _skipper


# --- in steps ----------------------------------------------------------------------------------


def skip_steps(buf: bytes, pos: int, end: int, budget: Budget) -> Steps[int]:
    """The same as skip_value(), with a pause after about STEP_BYTES bytes of elements.

    The result is the position after the value.
    """
    if pos >= end:
        raise truncated("a value")
    return (yield from _steps(buf[pos], buf, pos + 1, end, budget))


def _steps(code: int, buf: bytes, pos: int, end: int, budget: Budget) -> Steps[int]:
    """Like a skipper, it starts after the constructor. Only large values are divided into steps."""
    if code == 0x00:
        descend(budget)
        pos = yield from skip_steps(buf, skip_descriptor(buf, pos, end, budget), end, budget)
        budget.levels += 1
        return pos
    divide = _LARGE.get(code)
    if divide is None or size32(buf, pos, end, "a compound") - pos <= STEP_BYTES:
        return SKIPPERS[code](buf, pos, end, budget)
    count, pos, stop = counted32(buf, pos, end, budget)
    descend(budget)
    pos = yield from divide(buf, pos, stop, count, budget)
    check_filled(pos, stop)
    budget.levels += 1
    return stop


def _list_steps(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> Steps[int]:
    pause_at = pos + STEP_BYTES
    for _ in range(count):
        if pos >= pause_at:
            yield
            pause_at = pos + STEP_BYTES
        if pos < stop and buf[pos] in _MAY_BE_LARGE:
            pos = yield from skip_steps(buf, pos, stop, budget)
        else:
            pos = skip_value(buf, pos, stop, budget)
    return pos


def _map_steps(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> Steps[int]:
    check_even(count)
    keys = set()
    pause_at = pos + STEP_BYTES
    for _ in range(count >> 1):
        if pos >= pause_at:
            yield
            pause_at = pos + STEP_BYTES
        check_key(buf, pos, stop, budget)
        after = SKIPPERS[buf[pos]](buf, pos + 1, stop, budget)
        keys.add(buf[pos:after])
        if after < stop and buf[after] in _MAY_BE_LARGE:
            pos = yield from skip_steps(buf, after, stop, budget)
        else:
            pos = skip_value(buf, after, stop, budget)
    if len(keys) != count >> 1:
        refuse_repeated_key()
    return pos


def _array_steps(buf: bytes, pos: int, stop: int, count: int, budget: Budget) -> Steps[int]:
    pos, levels = skip_array_constructor(buf, pos, stop, count, budget)
    code = buf[pos - 1]
    skip, may_be_large = SKIPPERS[code], code in _MAY_BE_LARGE
    pause_at = pos + STEP_BYTES
    for _ in range(count):
        if pos >= pause_at:
            yield
            pause_at = pos + STEP_BYTES
        if may_be_large:
            pos = yield from _steps(code, buf, pos, stop, budget)
        else:
            pos = skip(buf, pos, stop, budget)
    budget.levels += levels
    return pos


_LARGE: Final = {0xD0: _list_steps, 0xD1: _map_steps, 0xF0: _array_steps}
_MAY_BE_LARGE: Final = bytes((0x00, *_LARGE))
"""Constructors of values that can be larger than a step and are not skipped at once."""
