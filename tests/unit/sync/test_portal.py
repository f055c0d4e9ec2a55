"""The door between blocking threads and the loop that works for them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from twinbus.errors import ConfigurationError
from twinbus.sync.blocking_portal import BlockingPortal


@pytest.fixture
def portal() -> BlockingPortal:
    return BlockingPortal("test-loop")


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_call_returns_what_the_coroutine_returns(portal: BlockingPortal) -> None:
    assert portal.call(doubled(21)) == 42


def test_a_call_raises_what_the_coroutine_raises(portal: BlockingPortal) -> None:
    async def failing() -> None:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        portal.call(failing())


def test_many_threads_share_one_loop(portal: BlockingPortal) -> None:
    async def where() -> int:
        return threading.get_ident()

    with ThreadPoolExecutor(8) as threads:
        seen = set(threads.map(lambda _: portal.call(where()), range(100)))
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_an_async_iterator_becomes_an_iterator(portal: BlockingPortal) -> None:
    async def counting() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    assert list(portal.iterate(counting())) == [0, 1, 2]


def test_a_blocking_call_on_the_loop_itself_is_refused_with_a_sentence(
    portal: BlockingPortal,
) -> None:
    async def confused() -> int:
        return portal.call(doubled(1))

    with pytest.raises(ConfigurationError, match=r"twinbus\.aio"):
        portal.call(confused())


def test_an_interrupted_caller_leaves_nothing_running(portal: BlockingPortal) -> None:
    cleaned: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("cleaned")

    portal.call(doubled(1))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    # Whoever starts the tests in the background has this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            portal.call(endless())
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned == ["cleaned"]
