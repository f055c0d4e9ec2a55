"""CPU time of a piece of work, as it would be on the machine that the limits are meant for.

    cpu_s(work)                  of the whole work
    slowest_step_s(make_steps)   of the longest step of a generator, which may hold the loop

Rule 1: it is this thread's CPU time, and no garbage of other tests is collected meanwhile.
Rule 2: each piece counts with the least of some rounds. A maximum over hundreds of steps in one
        round would find the one step that was disturbed.
Rule 3: a machine that is slower at that moment has proportionally longer (verification/fuzz/speed).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from verification.fuzz import speed

ROUNDS = 3


def cpu_s(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The CPU time of this thread for the work, on the reference machine."""
    with no_collection():
        return min(_round_s(lambda: [_once_s(work)])[0] for _ in range(rounds))


def slowest_step_s(make_steps: Callable[[], Iterator[Any]], rounds: int = ROUNDS) -> float:
    """The CPU time of the longest step, on the reference machine; the steps are always the same."""
    with no_collection():
        seen = [_round_s(lambda: _steps_s(make_steps())) for _ in range(rounds)]
    return max(min(each) for each in zip(*seen, strict=True))


def is_quick(spent_s: float, work: Callable[[], object], limit_s: float) -> bool:
    """Whether a piece of work was within its time; one that was disturbed is done again. What it
    raises is no matter of time."""

    def again() -> None:
        with suppress(Exception):
            work()

    return spent_s < limit_s or cpu_s(again) < limit_s


@contextmanager
def no_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _round_s(work: Callable[[], list[float]]) -> list[float]:
    before = speed.slowness(1)
    spent_s = work()
    slowness = max(before, speed.slowness(1))
    return [each / slowness for each in spent_s]


def _once_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _steps_s(steps: Iterator[Any]) -> list[float]:
    spent_s = []
    is_over = False
    while not is_over:
        began = time.thread_time()
        is_over = next(steps, _OVER) is _OVER
        spent_s.append(time.thread_time() - began)
    return spent_s


_OVER = object()
