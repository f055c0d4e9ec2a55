"""Event loops on threads of their own, and bounded concurrency on a loop.

An event loop on a thread of its own: a broker beside whatever else a process does.

An event loop in a thread of its own, for code that Spark calls without one.

Spark's calls are plain functions in processes that belong to Spark: a call may block, and between
two calls long polls and lock renewals must go on.

The same work for many, a few at a time.

Rule 1: all work on what lives there is done there; callers hand it over and wait for its end.
Rule 2: the thread is a daemon: a program that forgets to close it still ends.
Rule 3: a forked child does not have the thread. It can call nothing there, and closes nothing.
Rule 4: a process that only Spark started ends when Spark does. Killed with -9, the JVM leaves its
        Python processes behind, and one that waits for messages would lock some for nobody.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from twinbus.common import fork
from twinbus.errors import ConfigurationError

__all__ = ["LoopThread", "_engine_LoopThread", "bounded_gather"]

T = TypeVar("T")


class LoopThread:
    """Runs from the moment it is made until it is closed."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._generation = fork.generation
        fork.owns_loop(self._loop)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def is_inherited(self) -> bool:
        """Whether it runs in the process that this one was forked from."""
        return self._generation != fork.generation

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine over there and wait for it here."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigurationError(
                "a blocking call was made on the loop that would have to carry it out",
                hint="Await it there",
            )
        if self.is_inherited:
            work.close()
            raise ConfigurationError(
                "this broker runs in the process that this one was forked from",
                hint="Connect to it by its connection string, or start another one",
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def call_now(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Call a function over there and wait for it here."""

        async def run() -> T:
            return work()

        return self.call(run(), timeout_s=timeout_s)

    def close(self) -> None:
        """End the loop and its thread; what still runs there is dropped."""
        if self.is_inherited:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


PARENT_INTERVAL_S: Final = 1.0
JOIN_S_MAX: Final = 5.0
EXIT_ORPHANED: Final = 3

Result = TypeVar("Result")


class _engine_LoopThread:
    """A running loop. Used from any thread."""

    def __init__(self, name: str, *, dies_with_parent: bool = False) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        if dies_with_parent:
            self.start(_watch_parent(os.getppid()))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result], *, timeout_s: float | None = None) -> Result:
        """Do it there and wait for the result; TimeoutError after ``timeout_s``."""
        future = self.start(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Do it there, and go on here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call a plain function there, soon."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel what still runs and end the thread; may be called twice."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._wind_down(), self._loop)
        self._thread.join(JOIN_S_MAX)

    async def _wind_down(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows has no uvloop
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        await asyncio.sleep(PARENT_INTERVAL_S)
    # Nobody is left to whom an exception could be told.
    os._exit(EXIT_ORPHANED)


Item = TypeVar("Item")


async def bounded_gather(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], *, concurrency_max: int
) -> list[Result]:
    """The results in the order of the items; the first error ends it, and all that is under way."""
    turns = asyncio.Semaphore(concurrency_max)

    async def one(item: Item) -> Result:
        async with turns:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
