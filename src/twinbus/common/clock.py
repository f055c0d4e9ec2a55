"""Time as a value: the two clocks the broker needs, read in one place.

Locks and timers run on the monotonic clock, so that a jump of the wall clock can neither
free a locked message nor hold it for ever. What people see (enqueued time, time to live,
schedules) is wall time. Pure code receives an ``Instant`` and never reads a clock itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from twinbus.errors import ConfigurationError

# Ten years at once: beyond that nothing is tested but the calendar.
ADVANCE_S_MAX: Final = 10 * 366 * 86_400.0


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


class AdjustableClock:
    """A clock that somebody can move: a test passes a quarter of an hour in a millisecond.

    It runs with the machine's clocks unless it ``is_manual``: then it stands still between two
    calls of advance(). It only ever goes forward. Whoever set a timer by it is told of a jump.
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
        """How far it was moved so far."""
        return self._advanced_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward, then tell everybody who listens."""
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= ADVANCE_S_MAX:
            raise ConfigurationError(
                f"a clock cannot be moved by {seconds!r:.40}",
                hint=f"Use seconds from 0 to {ADVANCE_S_MAX:g}: time only goes forward",
            )
        self._advanced_s += seconds
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Be told when the clock was moved, on the mover's thread; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
