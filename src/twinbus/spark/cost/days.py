"""Days and minutes as the sums count them: since 1970, in UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

__all__ = [
    "MINUTES_AN_HOUR",
    "MINUTES_A_DAY",
    "MINUTE_MS",
    "NO_DAY",
    "day_named",
    "day_number",
    "moment_of_minute",
    "moment_of_ms",
]

MINUTE_MS: Final = 60_000
MINUTES_AN_HOUR: Final = 60
MINUTES_A_DAY: Final = 24 * MINUTES_AN_HOUR
NO_DAY: Final = -1
"""The day of a file whose name has none."""
_EPOCH: Final = date(1970, 1, 1)


def day_named(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).isoformat()


def day_number(name: str) -> int:
    return (date.fromisoformat(name) - _EPOCH).days


def moment_of_minute(number: int) -> datetime:
    return datetime.fromtimestamp(number * 60, UTC)


def moment_of_ms(number: int) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)
