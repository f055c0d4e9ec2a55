"""Rates, sizes and counts as they are written on a command line."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from twinbus.errors import ConfigurationError

__all__ = ["RATE_PER_S_MIN", "count", "rate_between", "rate_per_s", "size_between", "size_bytes"]

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
