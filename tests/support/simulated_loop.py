"""An event loop, its clock and store threads that do nothing until they are told to.

The namespace under test is the real one. What it leans on is here: an event loop whose time
stands still, and store threads whose jobs wait to be run and whose answers wait to be told.
Whoever drives them decides the order, so that one seed is one story. The loop carries real tasks
and futures, so that the calls of an administrator are the broker's own coroutines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from twinbus.broker.namespace import administrative_changes, namespace
from twinbus.broker.namespace.store_access import UNFINISHED, Job
from twinbus.common.clock import Instant
from twinbus.errors import StoreFull

WALL_MS = 1_700_000_000_000

TURNS = {
    namespace: (
        "FAN_OUT_TURN_S",
        "DELIVER_TURN_S",
        "SERVE_TURN_S",
        "ENOUGH_S",
        "STEP_S",
        "RECHECK_TURN_S",
    ),
    administrative_changes: ("PLANNING_TURN_S",),
}
"""How long the namespace does one thing by the clock of the machine."""


STEPS = {namespace: {"STEP_COST": 1.0, "CLOSED_COUNT": 1, "REPORTED_COUNT": 1}}
"""Steps so small that every transaction takes several."""


def without_turns() -> AbstractContextManager[None]:
    """How long something took does not decide what happens next: only costs do."""
    return _patched({(each, name): inf for each in TURNS for name in TURNS[each]})


def shortest_turns() -> AbstractContextManager[None]:
    """Everything that can be interrupted is, wherever it can be."""
    turns = {(each, name): -1.0 for each in TURNS for name in TURNS[each]}
    steps = {(each, name): STEPS[each][name] for each in STEPS for name in STEPS[each]}
    return _patched({**turns, **steps})


@contextmanager
def _patched(values: Mapping[tuple[Any, str], float]) -> Iterator[None]:
    before = {(each, name): getattr(each, name) for each, name in values}
    for (each, name), value in values.items():
        setattr(each, name, value)
    try:
        yield
    finally:
        for (each, name), value in before.items():
            setattr(each, name, value)


class Timer:
    """A callback that waits, as call_soon() and call_later() return it."""

    __slots__ = ("_args", "callback", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self._args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self) -> None:
        if not self.is_cancelled:
            self.callback(*self._args)


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

    # -- what futures, tasks and the namespace ask for ----------------------------------------

    def time(self) -> float:
        return self.now_s

    def call_soon(
        self, callback: Callable[..., object], /, *args: Any, context: object = None
    ) -> Timer:
        timer = Timer(callback, args)
        self._soon.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Any:
        timer = Timer(callback, args)
        heappush(self._timers, (self.now_s + delay, next(self._ties), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.Future(loop=self)  # type: ignore[arg-type]
        return future

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, _context: dict[str, Any]) -> None:
        """A refusal that nobody looked at is none of the loop's business."""

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a call; it runs with the next turns."""
        return asyncio.Task(work, loop=self)  # type: ignore[arg-type]

    # -- turns --------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return bool(self._soon)

    def turn(self) -> None:
        """One turn: timers that are due, then everything that was waiting."""
        while self._timers and self._timers[0][0] <= self.now_s:
            self._soon.append(heappop(self._timers)[2])
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            for _ in range(len(self._soon)):
                self._run(self._soon.popleft())
        finally:
            asyncio._set_running_loop(outer)

    def _run(self, timer: Timer) -> None:
        timer.run()

    def next_timer_s(self) -> float | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None


class SimThread:
    """A store thread: jobs run in order, and each answer is told some time later."""

    refusals: tuple[type[Exception], ...] = (StoreFull,)
    """What a job may raise; anything else is a mistake, and ends the simulation."""

    def __init__(
        self,
        name: str,
        post: Callable[..., object],
        housekeeping: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self._post = post
        self._jobs: deque[Job] = deque()
        self._answers: deque[tuple[Callable[..., None], Any, Exception | None]] = deque()

    def submit(
        self, job: Callable[[], Any], done: Callable[..., None], queue: object = None
    ) -> None:
        self._jobs.append(Job(job, done))

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def run(self) -> None:
        """Do a step of the oldest job; nobody hears of it yet."""
        job = self._jobs.popleft()
        try:
            result = job.step()
        except self.refusals as error:
            self._answers.append((job.done, None, error))
            return
        if result is UNFINISHED:
            self._jobs.append(job)
        else:
            self._answers.append((job.done, result, None))

    def tell(self) -> None:
        """Tell the loop about the oldest job that was done."""
        self._post(*self._answers.popleft())

    def stop(self) -> None:
        """Nothing runs by itself."""
