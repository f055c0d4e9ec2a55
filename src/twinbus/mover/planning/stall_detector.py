"""Tells when messages wait and none moves: what an operator is paged for.

Rule 1: told once for each time it happens, and again only after something has moved.
Rule 2: this file reads no clock: ``now_s`` comes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["STALL_S", "StallDetector", "stall_reason"]

STALL_S: Final = 60.0
PATHS_SHOWN_MAX: Final = 5


class StallDetector:
    """Watches one count that should grow while another is above 0."""

    def __init__(self, *, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._moved = 0
        self._since_s: float | None = None
        self.is_stalled = False

    def update(self, *, waiting: int, moved: int, now_s: float) -> bool:
        """Whether this is the moment to tell it."""
        if waiting == 0 or moved != self._moved or self._since_s is None:
            self._moved, self.is_stalled = moved, False
            self._since_s = None if waiting == 0 else now_s
            return False
        if self.is_stalled or now_s - self._since_s < self._stall_s:
            return False
        self.is_stalled = True
        return True


def stall_reason(
    waiting: int, *, closed: Iterable[str], unread: Mapping[str, str], is_primary_unreachable: bool
) -> str:
    """A sentence for an operator; ``closed`` are the destinations that take nothing, ``unread`` the
    backlog queues that cannot be read, each with its reason."""
    if is_primary_unreachable:
        why = "nobody can be reached at the primary"
    elif queues := _shown(unread):
        why = f"these backlog queues cannot be read: {queues}"
        if reason := unread[min(unread)]:
            why += f" ({reason.rstrip('.')})"
    else:
        why = f"these destinations take nothing: {_shown(closed) or 'unknown'}"
    many = f"{waiting:,} messages" if waiting else "messages"
    return f"{many} wait and none has come home for a minute: {why}"


def _shown(paths: Iterable[str]) -> str:
    return ", ".join(sorted(path for path in paths if path)[:PATHS_SHOWN_MAX])
