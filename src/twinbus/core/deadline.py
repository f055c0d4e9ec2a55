"""How the time of one send is split between the primary and the backlog (P10).

    start ................................ primary_end ............ end
    |<---------- attempts at the primary ---------->|<-- reserve -->|

A quarter of the time, at least a second, is kept for the backlog, so that the send which finds
the outage still gets its message away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEND_TIMEOUT_S: Final = 60.0
"""How long a send may take when the caller says nothing (F6)."""
RESERVE_SHARE: Final = 0.25
RESERVE_S_MIN: Final = 1.0
# A caller with less than two seconds gets half for each: the whole of it for the backlog would
# mean that the primary is never tried.
RESERVE_SHARE_MAX: Final = 0.5


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of one send."""

    start_s: float
    end_s: float

    @classmethod
    def after(cls, now_s: float, timeout_s: float) -> Deadline:
        return cls(now_s, now_s + timeout_s)

    @property
    def timeout_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def reserve_s(self) -> float:
        """What the backlog is sure to get."""
        return reserve_s(self.timeout_s)

    @property
    def primary_end_s(self) -> float:
        return self.end_s - self.reserve_s

    def remaining_s(self, now_s: float) -> float:
        return self.end_s - now_s


def reserve_s(timeout_s: float) -> float:
    """What the backlog is sure to get of so much time."""
    return min(max(timeout_s * RESERVE_SHARE, RESERVE_S_MIN), timeout_s * RESERVE_SHARE_MAX)
