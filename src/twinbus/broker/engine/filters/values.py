"""Comparing and calculating with the values of rules and messages.

A message can have AMQP's many number types; rules have one integer type, one float type and so on:

    bool  int  float  str  Timestamp  timedelta  UUID  bytes      None: null, or missing

Rule 1: ``plain`` turns a value of a message into one of these, by exact type, so that every
        comparison below can use ``type(a) is type(b)``. A value of another type is not changed:
        it exists, and every comparison with it is unknown.
Rule 2: None in, None out: the result with an unknown operand is unknown.
Rule 3: a comparison of values without a common type is unknown, for example text and numbers.
        Integers and floats are compared as floats, as in C#.
Rule 4: an int stays within 64 bits; beyond them there is a FilterError, never a wrong number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.codec.types import (
    Byte,
    Char,
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
from twinbus.broker.engine.filters.rule_values import (
    INT64_MAX,
    INT64_MIN,
    TEXT_CHARACTERS_MAX,
)
from twinbus.errors import FilterError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)

_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int, Long), int),
    Float32: float,
    Symbol: str,
    Char: str,
}
_ORDERED: Final = frozenset({int, float, str, Timestamp, timedelta})
_NUMBERS: Final = frozenset({int, float})


def plain(value: Any) -> Any:
    """A value of a message as rules see it."""
    convert = _PLAIN.get(type(value))
    if convert is not None:
        return convert(value)
    return to_timestamp(value) if type(value) is datetime else value


def to_timestamp(moment: datetime) -> Timestamp:
    """A time as an AMQP timestamp; one without a time zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Timestamp((moment - _EPOCH) // _MS)


# --- comparing -----------------------------------------------------------------------------------


def equal(left: Any, right: Any) -> bool | None:
    """Whether both are equal; None if that is unknown."""
    if left is None or right is None:
        return None
    if type(left) is type(right):
        return bool(left == right)
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return float(left) == float(right)
    return None


def differ(left: Any, right: Any) -> bool | None:
    """The opposite of ``equal``."""
    same = equal(left, right)
    return None if same is None else not same


def ordering(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    """A comparison such as ``operator.lt``, for values that have an order."""

    def compare(left: Any, right: Any) -> bool | None:
        kind = type(left)
        if kind is type(right):
            return holds(left, right) if kind in _ORDERED else None
        if kind in _NUMBERS and type(right) in _NUMBERS:
            return holds(float(left), float(right))
        return None

    return compare


# --- calculating ---------------------------------------------------------------------------------


def calculation(
    whole: Callable[[int, int], int], fraction: Callable[[float, float], float]
) -> Callable[[Any, Any], Any]:
    """An operation on two numbers, for integers and for floats."""

    def calculated(left: Any, right: Any) -> Any:
        kind = type(left)
        if kind is int and type(right) is int:
            result = whole(left, right)
            if INT64_MIN <= result <= INT64_MAX:
                return result
            raise FilterError("A calculation exceeds the range of 64-bit integers")
        if kind in _NUMBERS and type(right) in _NUMBERS:
            return fraction(float(left), float(right))
        return None

    return calculated


def add(left: Any, right: Any) -> Any:
    """The sum of numbers; if one side is text, the concatenation of both."""
    if type(left) is str or type(right) is str:
        return _concatenated(left, right)
    return _sum(left, right)


def negate(value: Any) -> Any:
    """The number with the other sign."""
    if type(value) is int:
        return subtract(0, value)
    return -value if type(value) is float else None


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise FilterError("A calculation divides an integer by zero")
    # C# rounds towards zero, Python rounds down.
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise FilterError("A calculation divides an integer by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _float_quotient(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _float_remainder(left: float, right: float) -> float:
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


_sum: Final = calculation(operator.add, operator.add)
subtract: Final = calculation(operator.sub, operator.sub)
multiply: Final = calculation(operator.mul, operator.mul)
divide: Final = calculation(_quotient, _float_quotient)
remainder: Final = calculation(_remainder, _float_remainder)


def _concatenated(left: Any, right: Any) -> str | None:
    first, second = text_of(left), text_of(right)
    if first is None or second is None:
        return None
    if len(first) + len(second) > TEXT_CHARACTERS_MAX:
        raise FilterError(
            f"An expression builds a text of more than {TEXT_CHARACTERS_MAX} characters"
        )
    return first + second


def text_of(value: Any) -> str | None:
    """A value as text, in C#'s form; None if it is unknown or has no such form."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is float:
        return _float_text(value)
    if kind is Timestamp:
        return _timestamp_text(value)
    return str(value) if kind in (bool, int, UUID) else None


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value).removesuffix(".0")
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _timestamp_text(value: Timestamp) -> str | None:
    try:
        moment = _EPOCH + int(value) * _MS
    except OverflowError:
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
