"""A clock for those who measure others on a machine that many use.

    clock = FairClock(lambda: [pid])
    began_s = clock(); ...; took_s = clock() - began_s

It stands while one of the processes, or this one, waits for a processor, as the kernel counts it
(``/proc/PID/task/*/schedstat``). Where the kernel does not count, it is an ordinary clock.

Rule 1: of the threads that waited since the last look, the one that waited longest counts. Waits of
        several that follow each other are excused in part only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


class FairClock:
    """Seconds in which the machine served those who are measured."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """``pids`` are asked for at every look: a process may have been started again."""
        self._pids = pids
        self._waited_ns = self._look()
        self._stood_s = 0.0

    def __call__(self) -> float:
        before, self._waited_ns = self._waited_ns, self._look()
        waits_ns = (ns - before.get(thread, ns) for thread, ns in self._waited_ns.items())
        self._stood_s += max(waits_ns, default=0) / 1e9
        return time.monotonic() - self._stood_s

    def _look(self) -> dict[str, int]:
        return {
            thread: waited_ns
            for pid in (*self._pids(), os.getpid())
            for thread, (_ran_ns, waited_ns) in run_times(pid).items()
        }


def run_times(pid: int) -> dict[str, tuple[int, int]]:
    """For each thread of a process the nanoseconds that it ran, and that it waited for a processor
    although it could have run; nothing where the kernel does not say."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            ran, waited, _count = map(int, path.read_text().split())
            found[path.parent.name] = ran, waited
    return found
