"""What becomes of a message's time to live in the backlog."""

from __future__ import annotations

from enum import Enum

__all__ = ["TtlPolicy"]


class TtlPolicy(Enum):
    """What the time in the backlog does to a message's time to live (Y8)."""

    RESTART = "restart"
    """Nothing: the message gets its whole time again, as in the original."""
    ELAPSED = "elapsed"
    """It counts. What has expired goes home with a millisecond left, so that the destination's
    own rules for expired messages apply."""
    DEAD_LETTER = "dead-letter"
    """It counts, and what has expired stays in the backlog queue's dead-letter queue."""
