"""Moments as they are written on a command line."""

from __future__ import annotations

from datetime import UTC, datetime

from twinbus.errors import ConfigurationError

__all__ = ["moment"]


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
