"""An event loop whose time is no machine's time: it stands still, or jumps to the next timer.

Sockets and threads are real. Time jumps only when every socket is quiet and no thread works for
the loop: an hour in which nothing happens then takes about as long as its heartbeats.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from twinbus.common.clock import Instant

# What was written to a socket of this machine can be read at once, nearly always.
FLIGHT_S = 0.000_5
# Between two turns of the loop. Sums of floats differ by less; without it, a timer that is woken
# too early by such a difference would be set again and again for the same moment.
TURN_S = 1e-9
# A thread that works for the loop is waited for in steps of real time.
WORK_STEP_S = 0.01


class JumpingSelector(selectors.BaseSelector):
    """Looks at the sockets, and moves time on when they have nothing to say."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0
        self.jump_count = 0
        self.is_working: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += TURN_S
        if timeout is not None and timeout <= 0:
            return self._real.select(0)
        while self.is_working() or timeout is None:
            if found := self._real.select(WORK_STEP_S):
                return found
        found = self._real.select(FLIGHT_S)
        if not found:
            self.now_s += timeout
            self.jump_count += 1
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Also a Clock, for a broker whose time shall be the same."""

    def __init__(self) -> None:
        self.virtual = JumpingSelector()
        self._jobs: set[asyncio.Future[Any]] = set()
        self._busy: list[Callable[[], bool]] = []
        self._began_ms = time.time_ns() // 1_000_000
        self.virtual.is_working = lambda: bool(self._jobs) or any(ask() for ask in self._busy)
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s

    def now(self) -> Instant:
        return Instant(self.time(), self._began_ms + round(self.time() * 1000))

    def wait_while(self, is_busy: Callable[[], bool]) -> None:
        """Time stands still as long as this says so."""
        self._busy.append(is_busy)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        job = super().run_in_executor(executor, func, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    def wall(self) -> SimpleNamespace:
        """In place of the module ``time``, for code that asks for Unix time."""
        return SimpleNamespace(time=lambda: self.now().wall_ms / 1000)
