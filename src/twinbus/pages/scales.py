"""Axes with round numbers, and times where a reader looks for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from twinbus.pages.figures import MONTHS, clock_time, day

__all__ = ["TimeTick", "ValueScale", "time_ticks", "value_scale"]

TICKS_MAX: Final = 5
TIME_TICKS_MAX: Final = 8
_ROUND: Final = (Decimal(1), Decimal(2), Decimal("2.5"), Decimal(5), Decimal(10))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_TIME_STEPS_S: Final = (
    *(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_S * days for days in (1, 2, 5, 7, 14)),
)
_MONTH_STEPS: Final = (1, 2, 3, 6, 12, 24, 60, 120)


@dataclass(frozen=True, slots=True)
class ValueScale:
    """From the lowest tick to the highest."""

    ticks: tuple[Decimal, ...]

    def height(self, value: Decimal) -> float:
        """How far up a value lies: 0 at the lowest tick, 1 at the highest."""
        low, high = self.ticks[0], self.ticks[-1]
        return float((value - low) / (high - low))


def value_scale(
    highest: Decimal, lowest: Decimal = Decimal(0), *, whole: bool = False
) -> ValueScale:
    """Round ticks from ``lowest`` (at most 0) to ``highest``; ``whole`` for what is counted."""
    step = _round_step((highest - lowest) / TICKS_MAX)
    if whole:
        step = Decimal(math.ceil(step))
    first = -math.ceil(-lowest / step)
    last = max(math.ceil(highest / step), first + 1)
    return ValueScale(tuple(step * number for number in range(first, last + 1)))


def _round_step(least: Decimal) -> Decimal:
    if least <= 0:
        return Decimal(1)
    power = Decimal(1).scaleb(least.adjusted())
    return next(power * factor for factor in _ROUND if power * factor >= least)


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A moment that has a label."""

    at: datetime
    label: str


def time_ticks(begins: datetime, ends: datetime, bar_s: int) -> list[TimeTick]:
    """Round times between the two, eight at most, none of them inside a bar."""
    span_s = (ends - begins).total_seconds()
    for step_s in _TIME_STEPS_S:
        if step_s >= bar_s and step_s % bar_s == 0 and span_s / step_s <= TIME_TICKS_MAX:
            return _even_ticks(begins, ends, step_s)
    months = span_s / (30.4 * _DAY_S)
    step = next((step for step in _MONTH_STEPS if months / step <= TIME_TICKS_MAX), None)
    return _month_ticks(begins, ends, step or math.ceil(months / TIME_TICKS_MAX))


def _even_ticks(begins: datetime, ends: datetime, step_s: int) -> list[TimeTick]:
    if step_s >= _DAY_S:
        at = begins
    else:
        at = datetime.fromtimestamp(math.ceil(begins.timestamp() / step_s) * step_s, UTC)
    found = []
    while at < ends:
        at_midnight = (at.hour, at.minute) == (0, 0)
        found.append(TimeTick(at, day(at) if at_midnight else clock_time(at)))
        at += timedelta(seconds=step_s)
    return found


def _month_ticks(begins: datetime, ends: datetime, step: int) -> list[TimeTick]:
    first = begins.year * 12 + begins.month - 1
    if begins.day > 1:
        first += 1
    last = ends.year * 12 + ends.month - 1
    found = []
    for number in range(first, last + 1):
        year, month = divmod(number, 12)
        at = datetime(year, month + 1, 1, tzinfo=UTC)
        if (number - first) % step == 0 and begins <= at < ends:
            is_new_year = month == 0 or step > 6
            found.append(TimeTick(at, f"{MONTHS[month]} {year}" if is_new_year else MONTHS[month]))
    return found
