"""Values on a command line: times, rates and NAME=VALUE.

Moments as they are written on a command line.

Rates, sizes and counts as they are written on a command line.

Names with values as they are written on a command line: ``colour=red``, ``count:=3``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from twinbus.errors import ConfigurationError

__all__ = [
    "RATE_PER_S_MIN",
    "count",
    "moment",
    "rate_between",
    "rate_per_s",
    "settings_in",
    "size_between",
    "size_bytes",
]


def moment(option: str, text: str | None, *, also: str = "") -> datetime | None:
    """``2026-11-16``, or with a time; UTC unless it says otherwise. ``also`` is another way to
    write it, for the hint."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        found.timestamp()  # A year that no clock shows is refused here.
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} {text!r:.40} is no time",
            hint=f"Write it as {also}2026-11-16 or 2026-11-16T12:00Z",
        ) from None
    return found


RATE_PER_S_MIN = 0.001
"""Slower is as good as never."""

# So many digits are enough for anything that can be asked.
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"
_RATE = re.compile(_NUMBER + r"([kM])?(?:/(s|m|h|d))?", re.ASCII)
_SIZE = re.compile(_NUMBER + r" ?([KM]?B)?", re.ASCII | re.IGNORECASE)
_COUNT = re.compile(_NUMBER + r"([kM])?", re.ASCII)
_TIMES = {None: 1, "k": 1_000, "M": 1_000_000}
_PER_S = {None: 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
# As the service's own steps of 64 KB are 65,536 bytes.
_BYTES = {"B": 1, "KB": 1024, "MB": 1024 * 1024}


def rate_per_s(text: str) -> Fraction:
    """``200/s``, ``12k/m``, ``5000/h``, or a plain number a second."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r:.40} is not a rate", hint="Write it as 200/s or 12k/h")
    return Fraction(match[1]) * _TIMES[match[2]] / _PER_S[match[3]]


def rate_between(option: str, text: str, least: float, most: float = math.inf) -> float:
    """A rate that an option has, within its bounds."""
    found = float(rate_per_s(text))
    if not least <= found <= most:
        upper = "" if most == math.inf else f" and at most {most:,}/s"
        raise ConfigurationError(
            f"{option} {text!r:.40} is out of range", hint=f"Use at least {least:g}/s{upper}"
        )
    return found


def size_between(option: str, text: str, least: int, most: int) -> int:
    """A size that an option has, within its bounds."""
    found = size_bytes(text)
    if not least <= found <= most:
        raise ConfigurationError(
            f"{option} {text!r:.40} is out of range", hint=f"Use {least}B to {most >> 20}MB"
        )
    return found


def size_bytes(text: str) -> int:
    """``300B``, ``2KB``, ``1.5MB``, or a plain number of bytes; part of a byte is one more."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r:.40} is not a size", hint="Write it as 300B or 2KB")
    return -int(-Fraction(match[1]) * _BYTES[(match[2] or "B").upper()] // 1)


def count(text: str) -> int:
    """``13M``, ``500k``, or a plain number."""
    match = _COUNT.fullmatch(text.strip())
    if match is None or (number := Fraction(match[1]) * _TIMES[match[2]]).denominator != 1:
        raise ConfigurationError(f"{text!r:.40} is not a count", hint="Write it as 5000 or 13M")
    return int(number)


def settings_in(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """``NAME=TEXT`` is a text, ``NAME:=3`` a number, ``NAME:=true`` a truth value."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_typed = name.endswith(":")
        name = name.removesuffix(":").strip()
        if not equals or not name:
            raise ConfigurationError(
                f"{option} {text!r:.60} has no name and value", hint="Write it as NAME=TEXT"
            )
        found[name] = _typed(option, text, value) if is_typed else value
    return found


def _typed(option: str, text: str, value: str) -> bool | int | float | str:
    try:
        told = json.loads(value)
    except ValueError:
        told = None
    if not isinstance(told, bool | int | float | str):
        raise ConfigurationError(
            f"{option} {text!r:.60} is no number, no truth value and no quoted text",
            hint="Write it as NAME:=3, NAME:=true, or NAME=TEXT",
        )
    return told
