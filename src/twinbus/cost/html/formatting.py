"""Numbers, money, times and names as text for people.

Rule 1: money is rounded here and nowhere before; an amount above 0 is never shown as 0.
Rule 2: no locale is used: the same report gives the same page everywhere. Times are UTC.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

__all__ = [
    "clock_time",
    "count",
    "counted",
    "data_size",
    "day",
    "decimals_for",
    "duration",
    "each",
    "moment",
    "money",
    "period",
    "share",
    "short_number",
    "shorten",
]

NO_BREAK: Final = "\u00a0"
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# A million operations cost less than one of most currencies, so an entity's day can be 0.00004.
MONEY_DECIMALS: Final = (2, 8)
_SUFFIXES: Final = ((12, "T"), (9, "B"), (6, "M"), (3, "k"))
_SIZES: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_WIDE_LETTERS: Final = frozenset("@%MWmw")
_UNITS_OF_TIME: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decimals_for(largest: Decimal) -> int:
    """Two; for less than a tenth as many as three significant digits need."""
    fewest, most = MONEY_DECIMALS
    if abs(largest) >= Decimal("0.1") or not largest:
        return fewest
    return min(most, 2 - largest.adjusted())


def money(amount: Decimal, currency: str = "", decimals: int | None = None) -> str:
    """With these decimals; by default with as few as needed, and millions with none."""
    places = decimals_for(amount) if decimals is None else decimals
    if decimals is None and abs(amount) >= 1_000_000:
        places = 0
    least = Decimal(1).scaleb(-places)
    text = format(amount, f",.{places}f")
    if amount and abs(amount) < least / 2:
        text = f"<{NO_BREAK}{least:f}"
    elif decimals is None and places > MONEY_DECIMALS[0]:
        text = text.rstrip("0")
    return f"{text}{NO_BREAK}{currency}" if currency else text


def share(part: float) -> str:
    """A share of 1, in percent."""
    if 0 < part < 0.001:
        return f"<{NO_BREAK}0.1{NO_BREAK}%"
    if 0.999 < part < 1:
        return f">{NO_BREAK}99.9{NO_BREAK}%"
    return f"{part * 100:.1f}".removesuffix(".0") + f"{NO_BREAK}%"


def data_size(size_bytes: int) -> str:
    size, unit = float(size_bytes), _SIZES[0]
    for unit in _SIZES:
        if size < 1000 or unit == _SIZES[-1]:
            break
        size /= 1000
    shown = f"{size:,.0f}" if unit == "B" or size >= 100 else f"{size:.1f}"
    return f"{shown}{NO_BREAK}{unit}"


def short_number(number: Decimal) -> str:
    """A round number for an axis, in seven characters or fewer."""
    size = abs(number)
    for exponent, suffix in _SUFFIXES:
        if size >= Decimal(1).scaleb(exponent) and size >= 10_000:
            return _plain(number.scaleb(-exponent)) + suffix
    if size and size < Decimal("0.0001"):
        return f"{number:.0e}".replace("e-0", "e-")
    return f"{int(number):,}" if number == int(number) else _plain(number)


def _plain(number: Decimal) -> str:
    if abs(number) >= 1_000_000:
        return f"{number:.0e}".replace("e+", "e")
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock_time(at: datetime) -> str:
    return f"{at:%H:%M}"


def day(at: datetime, *, with_year: bool = False) -> str:
    year = f" {at.year}" if with_year else ""
    return f"{at.day} {MONTHS[at.month - 1]}{year}".replace(" ", NO_BREAK)


def moment(at: datetime) -> str:
    seconds = f":{at:%S}" if at.second else ""
    return f"{day(at, with_year=True)}, {clock_time(at)}{seconds}"


def duration(seconds: int) -> str:
    """In the largest unit that gives a whole number."""
    for unit_s, noun in _UNITS_OF_TIME:
        if seconds >= unit_s and seconds % unit_s == 0:
            return counted(seconds // unit_s, noun)
    return counted(seconds, "second")


def each(seconds: int) -> str:
    """``day``, ``10 minutes``: for use after the word per."""
    return duration(seconds).removeprefix("1 ")


def period(begins: datetime, ends: datetime) -> str:
    """From the beginning to the end; whole days are named as days, because the end is exclusive."""
    begins, ends = begins.astimezone(UTC), ends.astimezone(UTC)
    long = duration(round((ends - begins).total_seconds()))
    if clock_time(begins) == clock_time(ends) == "00:00" and ends > begins:
        last = ends - timedelta(days=1)
        if last.date() == begins.date():
            return f"{day(begins, with_year=True)} (UTC)"
        first = day(begins, with_year=begins.year != last.year)
        return f"{first} to {day(last, with_year=True)} ({long}, UTC)"
    end = clock_time(ends) if ends.date() == begins.date() else moment(ends)
    return f"{moment(begins)} to {end} ({long}, UTC)"


def shorten(name: str, columns: int) -> str:
    """Shorten in the middle, where paths differ least; wide letters count as two columns."""
    widths = [2 if _is_wide(letter) else 1 for letter in name]
    if sum(widths) <= columns:
        return name
    head, room = 0, (columns - 1) // 2
    while widths[head] <= room:
        room -= widths[head]
        head += 1
    tail, room = len(name), columns - 1 - (columns - 1) // 2
    while widths[tail - 1] <= room:
        tail -= 1
        room -= widths[tail]
    return f"{name[:head]}…{name[tail:]}"


def _is_wide(letter: str) -> bool:
    return letter in _WIDE_LETTERS or unicodedata.east_asian_width(letter) in "WF"
