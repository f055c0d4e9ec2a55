"""Time, threads and a disk that do nothing until they are told to.

The namespace under test is the real one. What it leans on is here: an event loop whose time
stands still, store threads whose jobs wait to be run and whose answers wait to be told, and a
store that refuses when the disk is said to be full. Whoever drives them decides the order, so
that one seed is one story.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from twinbus.clock import Instant
from twinbus.errors import StoreFull

WALL_MS = 1_700_000_000_000


class Timer:
    """A callback at a time, as call_later() returns it."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self) -> None:
        if not self.is_cancelled:
            self._callback(*self._args)


class SimLoop:
    """An event loop that runs one turn when asked, and a clock that moves when asked."""

    def __init__(self, now_s: float = 1_000.0, skew_ms: int = 0) -> None:
        self.now_s = now_s
        self.skew_ms = skew_ms
        """How far the wall clock has jumped."""
        self._soon: deque[Timer] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._ties = count()

    def now(self) -> Instant:
        return Instant(self.now_s, WALL_MS + self.skew_ms + round(self.now_s * 1_000))

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> Timer:
        timer = Timer(callback, args)
        self._soon.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer:
        timer = Timer(callback, args)
        heappush(self._timers, (self.now_s + delay, next(self._ties), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        raise NotImplementedError("a simulation awaits nothing")

    @property
    def is_busy(self) -> bool:
        return bool(self._soon)

    def turn(self) -> None:
        """One turn: timers that are due, then everything that was waiting."""
        while self._timers and self._timers[0][0] <= self.now_s:
            self._soon.append(heappop(self._timers)[2])
        for _ in range(len(self._soon)):
            self._soon.popleft().run()

    def next_timer_s(self) -> float | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None


class SimThread:
    """A store thread: jobs run in order, and each answer is told some time later."""

    def __init__(
        self,
        name: str,
        post: Callable[..., object],
        housekeeping: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self._post = post
        self._jobs: deque[tuple[Callable[[], Any], Callable[..., None]]] = deque()
        self._answers: deque[tuple[Callable[..., None], Any, Exception | None]] = deque()

    def submit(self, job: Callable[[], Any], done: Callable[..., None]) -> None:
        self._jobs.append((job, done))

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def run(self) -> None:
        """Do the oldest job; nobody hears of it yet."""
        job, done = self._jobs.popleft()
        try:
            self._answers.append((done, job(), None))
        except StoreFull as error:
            self._answers.append((done, None, error))

    def tell(self) -> None:
        """Tell the loop about the oldest job that was done."""
        self._post(*self._answers.popleft())

    def stop(self) -> None:
        """Nothing runs by itself."""
