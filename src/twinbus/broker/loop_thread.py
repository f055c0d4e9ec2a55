"""An event loop on a thread of its own: a broker beside whatever else a process does.

Rule 1: all work on what lives there is done there; callers hand it over and wait for its end.
Rule 2: the thread is a daemon: a program that forgets to close it still ends.
Rule 3: a forked child does not have the thread. It can call nothing there, and closes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twinbus import fork
from twinbus.errors import ConfigurationError

__all__ = ["LoopThread"]

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
