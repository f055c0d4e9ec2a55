"""Event loops on threads of their own, and bounded concurrency on a loop.

    new_event_loop   the fastest loop that this platform has
    run              the main coroutine of a program, on such a loop
    LoopThread       a loop on its own thread: for a broker inside an application, and for code that
                     Spark calls without a loop, where long polls and lock renewals must continue
                     between two calls
    bounded_gather   the same work for many items, a few at a time

Rule 1: work on objects of a loop runs on that loop; callers pass it a coroutine and wait.
Rule 2: the thread is a daemon: a program that does not close it still ends.
Rule 3: a forked child does not have the thread. It can call nothing there, and closes nothing.
Rule 4: a process that Spark started ends when Spark does. A JVM that is killed with -9 does not end
        its Python processes, and one that waits for messages would lock some and never
        complete them.
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

__all__ = ["LoopThread", "bounded_gather", "new_event_loop", "run"]

Result = TypeVar("Result")
Item = TypeVar("Item")

PARENT_INTERVAL_S: Final = 1.0
JOIN_S_MAX: Final = 5.0
EXIT_ORPHANED: Final = 3


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, or of asyncio where there is no uvloop (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run the main coroutine of a program to its end."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class LoopThread:
    """A running loop, used from any other thread until it is closed."""

    def __init__(self, name: str, *, dies_with_parent: bool = False) -> None:
        self._loop = new_event_loop()
        self._generation = fork.generation
        fork.register_loop(self._loop)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        if dies_with_parent:
            self.start(_watch_parent(os.getppid()))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def is_inherited(self) -> bool:
        """Whether it runs in the process from which this one was forked."""
        return self._generation != fork.generation

    def run(self, work: Coroutine[Any, Any, Result], *, timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for it; TimeoutError after ``timeout_s``."""
        self._check_caller(work)
        future = self.start(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def run_function(
        self, function: Callable[[], Result], *, timeout_s: float | None = None
    ) -> Result:
        """Call a function on the loop and wait for it."""

        async def call() -> Result:
            return function()

        return self.run(call(), timeout_s=timeout_s)

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the loop and do not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop and do not wait for it."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel what still runs and end the thread; may be called twice."""
        if self.is_inherited or not self._thread.is_alive():
            return
        self.start(self._stop())
        self._thread.join(JOIN_S_MAX)

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()

    def _check_caller(self, work: Coroutine[Any, Any, object]) -> None:
        if threading.current_thread() is self._thread:
            work.close()
            raise ConfigurationError(
                "A blocking call was made on the event loop that must run it",
                hint="Use await on that loop",
            )
        if self.is_inherited:
            work.close()
            raise ConfigurationError(
                "This broker runs in the process from which this process was forked",
                hint="Connect to it by its connection string, or start another broker",
            )


async def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        await asyncio.sleep(PARENT_INTERVAL_S)
    # No caller is left that could receive an exception.
    os._exit(EXIT_ORPHANED)


async def bounded_gather(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], *, concurrency_max: int
) -> list[Result]:
    """The results in the order of the items; the first error cancels the rest and is raised."""
    slots = asyncio.Semaphore(concurrency_max)

    async def one(item: Item) -> Result:
        async with slots:
            return await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
