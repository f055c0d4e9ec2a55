"""A time limit that holds for the SDK, and costs next to nothing while it is kept.

    with watch.until(until_s):         TimeoutError when the time has passed
        await sender.send_messages(...)

Rule 1: when the time has passed the connection is dropped and the task cancelled. Cancelling
        alone is not enough: the SDK can swallow it (``wait_for`` before Python 3.12).
Rule 2: one timer serves all calls of a sender, which come one after the other: it is set again
        only when it rings, not for each message (P0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

_NEVER: Final = float("inf")


class Watch:
    """For one call at a time."""

    __slots__ = ("_cancelling", "_drop", "_has_rung", "_rings_s", "_task", "_timer", "_until_s")

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = _NEVER
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._until_s = 0.0
        self._has_rung = False

    def until(self, until_s: float) -> Watch:
        """Watch over what comes until then, a time of the loop."""
        self._until_s = until_s
        return self

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._has_rung = False
        if self._rings_s > self._until_s:
            self.stop()
            self._set()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        task, self._task = self._task, None
        if not self._has_rung or task is None:
            return
        is_ours = task.uncancel() <= self._cancelling
        if error is not None and (is_ours or not isinstance(error, asyncio.CancelledError)):
            raise TimeoutError from error

    def _set(self) -> None:
        self._rings_s = self._until_s
        self._timer = asyncio.get_running_loop().call_at(self._until_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_s = None, _NEVER
        if self._task is None:
            return
        if asyncio.get_running_loop().time() < self._until_s:
            self._set()
            return
        self._has_rung = True
        self._drop()
        self._cancelling = self._task.cancelling()
        self._task.cancel()

    def stop(self) -> None:
        """Take the timer down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._rings_s = None, _NEVER
