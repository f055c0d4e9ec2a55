"""Which claims a syphon lacks, as its requests show: each is reported once, and again when it is
missing after it was present (P18)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LISTEN", "SEND", "ClaimMonitor"]

LISTEN = "Listen"
SEND = "Send"


class ClaimMonitor:
    """Remembers which missing claims were reported."""

    def __init__(self) -> None:
        self._missing: set[tuple[str, str]] = set()

    def observe(self, *, listen: Iterable[str], send: Iterable[str]) -> list[tuple[str, str]]:
        """What is missing and was not before, as paths with their claims. ``listen`` are the
        backlog queues that refuse receivers now, ``send`` the destinations that refuse senders."""
        missing = {(path, LISTEN) for path in listen} | {(path, SEND) for path in send}
        news = sorted(missing - self._missing)
        self._missing = missing
        return news
