"""Durations, times, numbers and flags as the administration protocol spells them.

Rule 1: a value is read one way or refused with a sentence that names its element.
Rule 2: the longest duration of .NET means "never", which is None here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from twinbus.broker.entities.description import DURATION_MS_MAX
from twinbus.errors import ConfigurationError
from twinbus.iso_duration import NEVER, format_duration_us, parse_duration_us

__all__ = [
    "duration_ms",
    "duration_text",
    "duration_us",
    "flag",
    "flag_text",
    "lifetime_ms",
    "lifetime_text",
    "time_text",
    "whole_number",
]

# What an error repeats of a value that it refuses.
VALUE_SHOWN_LENGTH_MAX: Final = 64

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What the service says for a time that has not come about yet.
_NO_TIME: Final = "0001-01-01T00:00:00Z"
# Until the end of year 9999, which calendars can still show.
_TIME_MS_MAX: Final = 253_402_300_799_999


def duration_us(text: str, name: str) -> int:
    """Microseconds of an ISO 8601 duration; what is finer is cut off."""
    total_us = parse_duration_us(text)
    if total_us is None:
        raise ConfigurationError(
            f"{name} is not a duration: {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Write days, hours, minutes and seconds as in P1DT2H30M or PT30S",
        )
    return total_us


def duration_ms(text: str, name: str) -> int:
    """Milliseconds of a duration that .NET could hold too."""
    total_ms = duration_us(text, name) // 1_000
    # The stock client rounds the longest duration up by less than a millisecond.
    if total_ms > DURATION_MS_MAX + 1:
        raise ConfigurationError(
            f"{name} is longer than any duration may be", hint=f"Use {NEVER} for 'never'"
        )
    return min(total_ms, DURATION_MS_MAX)


def duration_text(total_ms: int) -> str:
    """The shortest spelling of a duration in milliseconds."""
    return format_duration_us(total_ms * 1_000)


def lifetime_ms(text: str, name: str) -> int | None:
    """A duration that may be "never"."""
    total_ms = duration_ms(text, name)
    return None if total_ms >= DURATION_MS_MAX else total_ms


def lifetime_text(total_ms: int | None) -> str:
    return NEVER if total_ms is None else duration_text(total_ms)


def time_text(wall_ms: int) -> str:
    """A moment in UTC; 0 is one that has not come about yet."""
    if not 0 < wall_ms <= _TIME_MS_MAX:
        return _NO_TIME
    moment = _EPOCH + timedelta(milliseconds=wall_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1_000:03}Z"


def whole_number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ConfigurationError(
            f"{name} is not a whole number: {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Use digits only",
        )
    return int(text)


def flag(text: str, name: str) -> bool:
    value = _FLAGS.get(text.lower())
    if value is None:
        raise ConfigurationError(
            f"{name} is neither true nor false: {text[:VALUE_SHOWN_LENGTH_MAX]!a}",
            hint="Write true or false",
        )
    return value


def flag_text(value: bool) -> str:
    return "true" if value else "false"
