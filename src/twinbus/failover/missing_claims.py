"""Which claims a syphon turns out to lack while it works: each is reported once, and once more
when it is missing again after it was there (P18)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LISTEN", "SEND", "ClaimMonitor"]

LISTEN = "Listen"
SEND = "Send"


class ClaimMonitor:
    """Remembers what was reported."""

    def __init__(self) -> None:
        self._missing: set[tuple[str, str]] = set()

    def observe(self, *, listen: Iterable[str], send: Iterable[str]) -> list[tuple[str, str]]:
        """What is missing and was not before, as paths with their claims. ``listen`` are the
        backlog queues that refuse receivers now, ``send`` the destinations that refuse senders."""
        missing = {(path, LISTEN) for path in listen} | {(path, SEND) for path in send}
        news = sorted(missing - self._missing)
        self._missing = missing
        return news
