"""The monotonic clock and the wall clock, read together.

Locks and timers use the monotonic clock, so that a jump of the wall clock can neither end a lock
early nor keep it for ever. Times that users see (enqueued time, time to live, schedules) are wall
time. Pure code receives an ``Instant`` and never reads a clock itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from twinbus.errors import ConfigurationError

# Ten years at once: more than any duration of the broker.
ADVANCE_S_MAX: Final = 10 * 366 * 86_400.0


class Instant(NamedTuple):
    """One point in time on both clocks."""

    monotonic_s: float
    wall_ms: int

    def later_s(self, at_ms: int) -> float:
        """The monotonic time that corresponds to the wall time ``at_ms``."""
        return self.monotonic_s + (at_ms - self.wall_ms) / 1000


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> Instant:
        """The current time."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        return Instant(time.monotonic(), time.time_ns() // 1_000_000)


class AdjustableClock:
    """A clock that can be moved forward, so that a test need not wait.

    It runs with the machine's clocks unless it ``is_manual``: then its time changes only by
    advance(). It never goes back. Subscribers are called after each advance().
    """

    def __init__(self, start: Instant | None = None, *, is_manual: bool = False) -> None:
        self._system = SystemClock()
        self._start = start or self._system.now()
        self._is_manual = is_manual
        self._began = self._system.now()
        self._advanced_s = 0.0
        self._listeners: list[Callable[[], object]] = []

    def now(self) -> Instant:
        elapsed_s = self._advanced_s
        if not self._is_manual:
            elapsed_s += self._system.now().monotonic_s - self._began.monotonic_s
        return Instant(
            self._start.monotonic_s + elapsed_s, self._start.wall_ms + round(elapsed_s * 1000)
        )

    @property
    def advanced_s(self) -> float:
        """The sum of all advances, in seconds."""
        return self._advanced_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward, then call the subscribers."""
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= ADVANCE_S_MAX:
            raise ConfigurationError(
                f"a clock cannot be advanced by {seconds!r:.40}",
                hint=f"Use a number of seconds from 0 to {ADVANCE_S_MAX:g}",
            )
        self._advanced_s += seconds
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener`` after each advance(), on the caller's thread; returns a function that
        ends the subscription."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
