"""Who has a turn on a thread of the store, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from twinbus.broker.namespace.store_access import StoreThread
from twinbus.common.steps import Steps


class Loop:
    """Hears what the thread posts."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, Exception | None]] = []

    def post(self, done: Callable[[Any, Any], None], result: Any, error: Any) -> None:
        done(result, error)

    def note(self, result: Any, error: Exception | None) -> None:
        self.heard.append((result, error))


def run(submit: Callable[[StoreThread, Loop], None]) -> list[tuple[Any, Exception | None]]:
    """What is heard of jobs that were all there when the thread began with them."""
    loop, gate = Loop(), threading.Event()
    thread = StoreThread("test", loop.post)
    thread.submit(gate.wait, lambda _result, _error: None)
    submit(thread, loop)
    gate.set()
    thread.stop()
    return loop.heard


def test_jobs_without_a_queue_are_done_in_order() -> None:
    """M8: commits are."""

    def submit(thread: StoreThread, loop: Loop) -> None:
        for number in range(50):
            thread.submit(lambda number=number: number, loop.note)

    assert [result for result, _error in run(submit)] == list(range(50))


def test_queues_take_turns() -> None:
    """M13: one with a hundred jobs does not keep another one's first waiting."""

    def submit(thread: StoreThread, loop: Loop) -> None:
        for number in range(100):
            thread.submit(lambda number=number: f"a{number}", loop.note, "a")
        thread.submit(lambda: "b0", loop.note, "b")
        thread.submit(lambda: "b1", loop.note, "b")

    results = [result for result, _error in run(submit)]
    assert results[:4] == ["a0", "b0", "a1", "b1"]
    assert len(results) == 102


def test_a_job_in_steps_lets_others_in_between() -> None:
    """M13: also those of its own queue."""
    seen: list[str] = []

    def look(count: int) -> Steps[str]:
        for number in range(count):
            seen.append(f"step {number}")
            yield
        return "looked"

    def submit(thread: StoreThread, loop: Loop) -> None:
        thread.submit(lambda: look(5), loop.note, "a")
        thread.submit(lambda: seen.append("same queue"), loop.note, "a")
        thread.submit(lambda: seen.append("other queue"), loop.note, "b")

    heard = run(submit)

    assert heard == [(None, None), (None, None), ("looked", None)]
    assert seen[:4] == ["step 0", "other queue", "same queue", "step 1"]
    assert seen[-1] == "step 4"


def test_a_step_that_fails_ends_the_job() -> None:
    """M8: whoever asked is told."""

    def fail() -> Steps[str]:
        yield
        raise OSError("the disk is gone")

    def submit(thread: StoreThread, loop: Loop) -> None:
        thread.submit(fail, loop.note, "a")
        thread.submit(lambda: "next", loop.note, "a")

    heard = run(submit)

    assert heard[0] == ("next", None)
    assert isinstance(heard[1][1], OSError) and len(heard) == 2


def test_stopping_finishes_what_was_begun() -> None:
    """M8."""

    def look() -> Steps[str]:
        for _ in range(1_000):
            yield
        return "whole"

    heard = run(lambda thread, loop: thread.submit(look, loop.note, "a"))
    assert heard == [("whole", None)]
