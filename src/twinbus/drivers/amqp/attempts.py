"""One try that many calls wait for: to connect, to show a token, to attach.

Rule 1: while a try is under way, everybody who needs its result waits for the same one.
Rule 2: a cancelled or impatient caller leaves; the try goes on for the others and is given up when
        the last of them has left, so that nothing runs for nobody.
Rule 3: a failed try is forgotten: the next call begins a new one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twinbus.service_errors import ServiceError

T = TypeVar("T")


class SharedAttempt(Generic[T]):
    """A place for one try at a time."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting_count = 0

    async def result(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the try under way, or of a new one."""
        if self._outcome is None:
            self._begin(begin)
        outcome = self._outcome
        assert outcome is not None
        self._waiting_count += 1
        try:
            return await asyncio.shield(outcome)
        except ServiceError as error:
            raise _own(error) from error.__cause__
        finally:
            if outcome is self._outcome:
                self._waiting_count -= 1
                if not self._waiting_count:
                    self._forget()

    def fail(self, error: ServiceError) -> None:
        """Everybody who waits gets this error at once."""
        outcome = self._outcome
        if outcome is not None and not outcome.done():
            outcome.set_exception(error)
        self._forget()

    def _begin(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._outcome = asyncio.get_running_loop().create_future()
        self._waiting_count = 0
        self._task = asyncio.create_task(self._run(begin, self._outcome))

    async def _run(
        self, begin: Callable[[], Coroutine[Any, Any, T]], outcome: asyncio.Future[T]
    ) -> None:
        try:
            made = await begin()
            if not outcome.done():
                outcome.set_result(made)
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            if outcome is self._outcome:
                self._outcome = self._task = None

    def _forget(self) -> None:
        outcome, self._outcome = self._outcome, None
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
        if outcome is not None and outcome.done() and not outcome.cancelled():
            outcome.exception()  # Nobody may be left to look at it.


def _own(error: ServiceError) -> ServiceError:
    """An error of this call's own; see refusals.py, rule 1."""
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine
