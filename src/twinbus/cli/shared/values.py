"""Parses values of options: times, rates, sizes, counts, and ``colour=red`` or ``count:=3``."""

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
    "parse_settings",
    "rate_between",
    "rate_per_s",
    "size_between",
    "size_bytes",
]


def moment(option: str, text: str | None, *, also: str = "") -> datetime | None:
    """``2026-11-16``, or with a time; UTC unless it has an offset. ``also`` is another format, for
    the hint."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        found.timestamp()  # Refuses a year outside the range of the system clock.
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"Invalid value for {option}: {text!r:.40} is not a time",
            hint=f"Use for example {also}2026-11-16 or 2026-11-16T12:00Z",
        ) from None
    return found


RATE_PER_S_MIN = 0.001
"""A lower rate is practically a stop."""

# More digits than any useful value has.
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
        raise ConfigurationError(
            f"{text!r:.40} is not a rate", hint="Use for example 200/s or 12k/h"
        )
    return Fraction(match[1]) * _TIMES[match[2]] / _PER_S[match[3]]


def rate_between(option: str, text: str, least: float, most: float = math.inf) -> float:
    """The rate of an option, within its limits."""
    found = float(rate_per_s(text))
    if not least <= found <= most:
        upper = "" if most == math.inf else f" and at most {most:,}/s"
        raise ConfigurationError(
            f"Invalid value for {option}: {text!r:.40} is out of range",
            hint=f"Use at least {least:g}/s{upper}",
        )
    return found


def size_between(option: str, text: str, least: int, most: int) -> int:
    """The size of an option, within its limits."""
    found = size_bytes(text)
    if not least <= found <= most:
        raise ConfigurationError(
            f"Invalid value for {option}: {text!r:.40} is out of range",
            hint=f"Use {least}B to {most >> 20}MB",
        )
    return found


def size_bytes(text: str) -> int:
    """``300B``, ``2KB``, ``1.5MB``, or a plain number of bytes; rounded up to whole bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r:.40} is not a size", hint="Use for example 300B or 2KB")
    return -int(-Fraction(match[1]) * _BYTES[(match[2] or "B").upper()] // 1)


def count(text: str) -> int:
    """``13M``, ``500k``, or a plain number."""
    match = _COUNT.fullmatch(text.strip())
    if match is None or (number := Fraction(match[1]) * _TIMES[match[2]]).denominator != 1:
        raise ConfigurationError(f"{text!r:.40} is not a count", hint="Use for example 5000 or 13M")
    return int(number)


def parse_settings(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """``NAME=TEXT`` is a text, ``NAME:=3`` a number, ``NAME:=true`` a boolean."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_typed = name.endswith(":")
        name = name.removesuffix(":").strip()
        if not equals or not name:
            raise ConfigurationError(
                f"Invalid value for {option}: {text!r:.60}", hint="Use NAME=TEXT"
            )
        found[name] = _typed(option, text, value) if is_typed else value
    return found


def _typed(option: str, text: str, value: str) -> bool | int | float | str:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, bool | int | float | str):
        raise ConfigurationError(
            f"Invalid value for {option}: {text!r:.60} is not a number, a boolean or a quoted text",
            hint="Use NAME:=3, NAME:=true or NAME=TEXT",
        )
    return parsed
