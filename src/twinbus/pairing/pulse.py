"""Wakes everybody who waits in a factory, whenever something has changed there."""

from __future__ import annotations

import asyncio


class ChangeNotifier:
    """Who waits asks again when it rings; nothing else is told."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Something has changed: look again."""
        # Each is woken once: many rings in a row, with many who wait, would be work for nothing.
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, timeout_s: float | None) -> None:
        """Return at the next ring, or when the time is up."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(max(timeout_s, 0.0), _wake, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
