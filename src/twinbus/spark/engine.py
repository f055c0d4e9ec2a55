"""An event loop in a thread of its own, for code that Spark calls without one.

Spark's calls are plain functions in processes that belong to Spark: a call may block, and between
two calls long polls and lock renewals must go on.

Rule 1: a process that only Spark started ends when Spark does. Killed with -9, the JVM leaves its
        Python processes behind, and one that waits for messages would lock some for nobody.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

__all__ = ["LoopThread"]

PARENT_INTERVAL_S: Final = 1.0
JOIN_S_MAX: Final = 5.0
EXIT_ORPHANED: Final = 3

Result = TypeVar("Result")


class LoopThread:
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
