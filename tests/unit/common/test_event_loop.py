"""A loop in a thread of its own, and a process that does not outlive whoever started it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from twinbus.common.event_loop import LoopThread


@pytest.fixture
def engine() -> Iterator[LoopThread]:
    made = LoopThread("engine under test")
    yield made
    made.close()


async def where() -> str:
    return threading.current_thread().name


async def nap(seconds: float, told: list[str] | None = None) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if told is not None:
            told.append("cancelled")
        raise
    return "rested"


def until(happened: Callable[[], object], timeout_s: float = 10.0) -> float:
    """How long it took."""
    began_s = time.monotonic()
    while not happened():
        assert time.monotonic() - began_s < timeout_s, "it never happened"
        time.sleep(0.02)
    return time.monotonic() - began_s


def test_work_is_done_on_the_engine_and_waited_for_here(engine: LoopThread) -> None:
    assert engine.run(where()) == "engine under test"
    assert threading.current_thread().name != "engine under test"


def test_started_work_goes_on_between_two_calls(engine: LoopThread) -> None:
    resting = engine.start(nap(0.05))
    assert not resting.done()
    assert engine.run(where()) and not resting.done()
    assert resting.result(5) == "rested"


def test_an_error_of_the_work_is_raised_here(engine: LoopThread) -> None:
    async def stumble() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        engine.run(stumble())
    assert engine.run(where())


def test_work_that_takes_too_long_is_cancelled(engine: LoopThread) -> None:
    told: list[str] = []
    with pytest.raises(TimeoutError):
        engine.run(nap(30, told), timeout_s=0.05)
    until(lambda: told == ["cancelled"])


def test_a_plain_function_is_called_there(engine: LoopThread) -> None:
    names: list[str] = []
    engine.call_soon(lambda: names.append(threading.current_thread().name))
    until(lambda: names == ["engine under test"])


def test_closing_cancels_what_runs_and_ends_the_thread() -> None:
    engine, told = LoopThread("short-lived"), list[str]()
    resting = engine.start(nap(30, told))
    engine.run(where())
    engine.close()
    engine.close()
    assert told == ["cancelled"] and resting.cancelled()
    assert "short-lived" not in {thread.name for thread in threading.enumerate()}


def test_many_threads_use_one_engine(engine: LoopThread) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(engine.run(nap(0.01)))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["rested"] * 20


# -- processes ----------------------------------------------------------------------------
