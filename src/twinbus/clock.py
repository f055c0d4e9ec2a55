"""Time as a value: the two clocks the broker needs, read in one place.

Locks and timers run on the monotonic clock, so that a jump of the wall clock can neither
free a locked message nor hold it for ever. What people see (enqueued time, time to live,
schedules) is wall time. Pure code receives an ``Instant`` and never reads a clock itself.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol


class Instant(NamedTuple):
    """One moment on both clocks."""

    monotonic_s: float
    wall_ms: int

    def later_s(self, at_ms: int) -> float:
        """When the monotonic clock will show what the wall clock calls ``at_ms``."""
        return self.monotonic_s + (at_ms - self.wall_ms) / 1000


class Clock(Protocol):
    """Whatever can say what time it is."""

    def now(self) -> Instant:
        """The current moment."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        return Instant(time.monotonic(), time.time_ns() // 1_000_000)
