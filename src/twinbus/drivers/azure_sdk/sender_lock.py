"""One call at a time uses the SDK's sender, and the calls that wait for it can fail together.

    free --take--> taken --release--> the next call that waits, or free
                         --fail-----> every call that waits gets an error of its own

Rule 1: first come, first served.
Rule 2: if a link could not be opened for one call, it cannot be opened for the next: all calls that
        wait fail at once, instead of each trying for itself (P25).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class SenderLock:
    """The lock of a sender."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take the lock immediately, if it is free."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    async def wait(self) -> None:
        """Return when the caller has the lock; raises the error of fail()."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()  # It got the lock and cannot use it.
            raise

    def release(self) -> None:
        """The call that had the lock is over."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_taken = False

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Every call that waits now gets an error."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(make_error())
