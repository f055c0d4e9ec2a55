"""A time limit that holds, also over code that swallows its cancellation."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.drivers.azure_sdk.sdk_link import Watch

LONG_S = 60.0


class Dropped:
    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.event.set()


def later(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_what_takes_too_long_is_cancelled_and_its_connection_dropped() -> None:
    """F6: whichever timer was set before."""
    dropped = Dropped()
    watch = Watch(dropped)
    with watch.until(later(LONG_S)):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), watch.until(later(0.01)):
        await asyncio.sleep(LONG_S)
    assert dropped.count == 1
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    await asyncio.sleep(0)
    watch.stop()


async def test_a_cancellation_that_is_swallowed_ends_with_the_connection() -> None:
    """F6: the error that follows from that is a matter of time, not of the network."""
    dropped = Dropped()
    watch = Watch(dropped)

    async def stubborn() -> None:
        while not dropped.event.is_set():
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                continue
        raise ConnectionResetError

    with pytest.raises(TimeoutError), watch.until(later(0.01)):
        await stubborn()
    watch.stop()


async def test_a_call_that_ends_in_the_last_moment_has_its_result() -> None:
    watch = Watch(Dropped())
    with watch.until(later(0.01)):
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            result = "done"
    task = asyncio.current_task()
    assert result == "done" and task is not None and not task.cancelling()
    watch.stop()


async def test_the_callers_own_cancellation_stays_one() -> None:
    """P0: and drops nothing here; whoever was cancelled sees to that."""
    dropped = Dropped()
    watch = Watch(dropped)

    async def call() -> None:
        with watch.until(later(LONG_S)):
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dropped.count == 0
    watch.stop()


async def test_a_timer_that_rings_for_an_earlier_call_is_set_again() -> None:
    """P0: one timer for many calls, and each has its full time."""
    dropped = Dropped()
    watch = Watch(dropped)
    with watch.until(later(0.02)):
        await asyncio.sleep(0)
    with watch.until(later(LONG_S)):
        await asyncio.sleep(0.05)
    assert dropped.count == 0
    with pytest.raises(TimeoutError), watch.until(later(0.02)):
        await asyncio.sleep(LONG_S)
    assert dropped.count == 1
    watch.stop()
