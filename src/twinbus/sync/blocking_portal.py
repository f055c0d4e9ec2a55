"""Runs coroutines on one event loop, for threads that block until they have ended.

    any thread --call(coroutine)--> the loop's thread --result or error--> that thread

Rule 1: one loop serves all sync objects of a process; it starts with the first call and ends with
        the process. Its thread is a daemon: a program that does not close its objects still ends.
Rule 2: a caller that is interrupted (Ctrl-C) cancels its call and waits until that has happened,
        so that nothing continues in the background.
Rule 3: a forked child has no loop thread: it gets its own loop with its first call, and the
        objects of the parent's loop are created again there (Twin).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from twinbus.common import fork
from twinbus.common.event_loop import new_event_loop
from twinbus.errors import ConfigurationError

T = TypeVar("T")


class BlockingPortal:
    """Runs coroutines on a loop in another thread."""

    def __init__(self, name: str = "twinbus-loop") -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._begin()
        fork.run_in_child(self._begin)

    def _begin(self) -> None:
        # A thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._loop = self._thread = None

    @property
    def thread_id(self) -> int | None:
        """The thread of the loop, on which nothing may block."""
        return None if self._thread is None else self._thread.ident

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; its result, or its error raised here."""
        try:
            loop = self._running_loop()
        except BaseException:
            work.close()
            raise
        call = _Call(loop, work)
        loop.call_soon_threadsafe(call.begin)
        try:
            return call.ended.result()
        except BaseException:
            call.cancel_and_wait()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one call each."""
        while True:
            try:
                yield self.call(_next(items))
            except StopAsyncIteration:
                return

    def run(self, action: Callable[[], T]) -> T:
        """Call a function on the loop's thread, to which the objects that it uses belong."""
        return self.call(_call_async(action))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self.check_thread()
        with self._lock:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def check_thread(self) -> None:
        """Raise ConfigurationError on the loop's own thread, which would wait for itself."""
        if self._thread is threading.current_thread():
            raise ConfigurationError(
                "a blocking call was made from a callback on the event loop",
                hint="Use twinbus.aio there, or call it from another thread",
            )

    def _start(self) -> None:
        self._loop = new_event_loop()
        fork.register_loop(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()


class _Call(Generic[T]):
    """One coroutine that a thread waits for."""

    __slots__ = ("_loop", "_task", "_work", "ended")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop, self._work = loop, work
        self._task: asyncio.Task[T] | None = None
        self.ended: Future[T] = Future()

    def begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._set_outcome)

    def _set_outcome(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.ended.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())

    def cancel_and_wait(self) -> None:
        """For a caller that was interrupted; does nothing if the call has ended."""
        if not self.ended.done():
            self._loop.call_soon_threadsafe(self._cancel)
            self.ended.exception()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _call_async(action: Callable[[], T]) -> T:
    return action()


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


PORTAL = BlockingPortal()
"""The portal of all sync objects of the process."""


class Twin(fork.PerProcess[T]):
    """The async counterpart of an object that blocks; a forked child creates another one."""

    __slots__ = ()

    def _make_again(self) -> None:
        PORTAL.check_thread()  # Creating it waits for the loop.
        super()._make_again()
