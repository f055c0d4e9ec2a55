"""Durations as text.

    parse_duration_us, format_duration_us   ISO 8601, as in the service's XML: P1DT2H30M, PT0.5S
    seconds                                 the short form of options and variables: 30s, 5m, 1h

Rule 1: ISO 8601 durations have microseconds, as a ``timedelta`` has; finer digits are cut off.
Rule 2: years and months have no fixed length and are refused.
"""

from __future__ import annotations

import re
from typing import Final

from twinbus.errors import ConfigurationError

__all__ = [
    "DURATION_TEXT_LENGTH_MAX",
    "NEVER",
    "format_duration_us",
    "parse_duration_us",
    "seconds",
]

NEVER: Final = "P10675199DT2H48M5.4775807S"
"""The longest duration of .NET, which stands for "never"."""
# No valid value is longer, and its numbers are too short to take long to convert.
DURATION_TEXT_LENGTH_MAX: Final = 64

_ISO_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,10})W)?(?:(?P<days>[0-9]{1,10})D)?"
    r"(?:T(?:(?P<hours>[0-9]{1,10})H)?(?:(?P<minutes>[0-9]{1,10})M)?"
    r"(?:(?P<seconds>[0-9]{1,10})(?:\.(?P<fraction>[0-9]{1,10}))?S)?)?",
    re.ASCII,
)
_UNITS_S: Final = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def parse_duration_us(text: str) -> int | None:
    """Microseconds of a duration; None if the text is not a duration."""
    match = _ISO_DURATION.fullmatch(text) if len(text) <= DURATION_TEXT_LENGTH_MAX else None
    if match is None or text[-1] in "PT":
        return None
    total_s = sum(int(match[unit] or 0) * size_s for unit, size_s in _UNITS_S.items())
    return total_s * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0")[:6])


def format_duration_us(total_us: int) -> str:
    """The shortest text of a duration in microseconds."""
    seconds, fraction_us = divmod(total_us, 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if fraction_us:
        time += f"{seconds}.{fraction_us:06}".rstrip("0") + "S"
    elif seconds or not (date or time):
        time += f"{seconds}S"
    return f"P{date}T{time}" if time else f"P{date}"


_SHORT_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", re.ASCII)
# A hundred years: dates of longer durations do not fit into a datetime.
SECONDS_MAX = 36_500 * 86_400.0
_UNIT_S = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """``250ms``, ``30s``, ``5m``, ``1h``, ``2d``, or a plain number of seconds."""
    match = _SHORT_DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{text!r:.40} is not a time", hint="Use for example 30s, 5m or 1h"
        )
    found = float(match[1]) * _UNIT_S[match[2]]
    if found > SECONDS_MAX:
        raise ConfigurationError(f"{text!r:.40} is too long a time", hint="Use 36500d at most")
    return found
