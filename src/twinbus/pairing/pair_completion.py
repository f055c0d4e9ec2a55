"""Completes a pair whose secondary was unreachable when it was created (P19).

    the secondary responds    the pair is complete: queues, links, pings, the hosted syphon
    it is unreachable         tried again soon: after 1 s, doubling to 5 s
    it refuses                reported, and tried again later: its operator may correct that

Rule 1: an error ends only its attempt; stop() ends all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Generic, TypeVar

from twinbus.errors import TwinbusError

__all__ = ["Completion"]

T = TypeVar("T")

# Soon enough for an application whose primary fails next, rare enough for a namespace that starts
# again while a thousand processes wait for it.
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 5.0
# A wrong key is still wrong a second later.
REFUSED_PAUSE_S: Final = 30.0
JITTER: Final = 0.2


class Completion(Generic[T]):
    """Tries until the secondary responds, in a task of its own."""

    def __init__(
        self,
        discover: Callable[[], Awaitable[T]],
        complete: Callable[[T], None],
        report: Callable[[BaseException], None],
        rng: Random,
    ) -> None:
        """``report`` is called with the error of every failed attempt."""
        self._discover, self._complete, self._report = discover, complete, report
        self._rng = rng
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="twinbus-completion")

    async def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            await asyncio.sleep(pause_s * self._rng.uniform(1 - JITTER, 1 + JITTER))
            try:
                self._complete(await self._discover())
                return
            except Exception as error:
                self._report(error)
                is_transient = isinstance(error, TwinbusError) and error.is_transient
                pause_s = min(pause_s * 2, PAUSE_S_MAX) if is_transient else REFUSED_PAUSE_S
