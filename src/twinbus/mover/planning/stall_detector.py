"""Detects that messages wait and none is moved: an operator has to act.

Rule 1: a stall is reported once, and again only after a message was moved.
Rule 2: this module reads no clock: ``now_s`` comes in.
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
        """Whether a stall has to be reported now."""
        if waiting == 0 or moved != self._moved or self._since_s is None:
            self._moved, self.is_stalled = moved, False
            self._since_s = None if waiting == 0 else now_s
            return False
        if self.is_stalled or now_s - self._since_s < self._stall_s:
            return False
        self.is_stalled = True
        return True


def stall_reason(
    waiting: int,
    *,
    unavailable: Iterable[str],
    unread: Mapping[str, str],
    is_primary_unreachable: bool,
) -> str:
    """A text for an operator; ``unavailable`` are the destinations whose circuits are open,
    ``unread`` the backlog queues that cannot be read, each with its reason."""
    if is_primary_unreachable:
        cause = "The primary is unreachable"
    elif queues := _list(unread):
        cause = f"Backlog queues that cannot be read: {queues}"
        if reason := unread[min(unread)]:
            cause += f" ({reason.rstrip('.')})"
    else:
        cause = f"Unavailable destinations: {_list(unavailable) or 'unknown'}"
    count = f"; {waiting:,} {'is' if waiting == 1 else 'are'} waiting" if waiting else ""
    return f"No message was moved for {STALL_S:g} s{count}. {cause}."


def _list(paths: Iterable[str]) -> str:
    return ", ".join(sorted(path for path in paths if path)[:PATHS_SHOWN_MAX])
