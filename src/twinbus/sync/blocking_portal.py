"""The door between threads that block and the one event loop that works for them.

    any thread --call(coroutine)--> the loop's thread --result or error--> that thread

Rule 1: one loop serves all sync objects of a process; it starts with the first call and ends with
        the process. It is a daemon: a program that forgets to close something still ends.
Rule 2: a caller that is interrupted (Ctrl-C) cancels its call and waits until that has happened,
        so that nothing goes on behind its back.
Rule 3: a forked child has no loop thread: it gets a loop of its own on its first call, and what
        lived on the parent's loop is made anew there (Twin).
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
        fork.in_child(self._begin)

    def _begin(self) -> None:
        # A thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._loop = self._thread = None

    @property
    def thread_id(self) -> int | None:
        """The thread of the loop, on which nothing may block."""
        return None if self._thread is None else self._thread.ident

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to its end on the loop; its result, or its error raised here."""
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
            call.see_it_end()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one call each."""
        while True:
            try:
                yield self.call(_next(items))
            except StopAsyncIteration:
                return

    def run(self, action: Callable[[], T]) -> T:
        """Call a function on the loop's thread, where the objects that it touches live."""
        return self.call(_called(action))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self.check_thread()
        with self._lock:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def check_thread(self) -> None:
        """Refuse to wait for the loop on its own thread."""
        if self._thread is threading.current_thread():
            raise ConfigurationError(
                "a blocking call was made from a callback on the event loop",
                hint="Use twinbus.aio there, or hand the work to another thread",
            )

    def _start(self) -> None:
        self._loop = new_event_loop()
        fork.owns_loop(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()


class _Call(Generic[T]):
    """One coroutine on its way through the door."""

    __slots__ = ("_loop", "_task", "_work", "ended")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop, self._work = loop, work
        self._task: asyncio.Task[T] | None = None
        self.ended: Future[T] = Future()

    def begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._pass_on)

    def _pass_on(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.ended.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())

    def see_it_end(self) -> None:
        """For a caller that was interrupted; does nothing once the call has ended by itself."""
        if not self.ended.done():
            self._loop.call_soon_threadsafe(self._cancel)
            self.ended.exception()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _called(action: Callable[[], T]) -> T:
    return action()


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


PORTAL = BlockingPortal()
"""The one that everybody uses."""


class Twin(fork.Remade[T]):
    """What lives on the loop for an object that blocks; a forked child gets another one."""

    __slots__ = ()

    def _make_again(self) -> None:
        PORTAL.check_thread()  # Who makes it waits for the loop.
        super()._make_again()
