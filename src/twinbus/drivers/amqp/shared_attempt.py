"""One attempt for many who wait, and how long calls wait.

One try that many calls wait for: to connect, to show a token, to attach.

How long calls wait (rule 2 of the port).

Rule 1: while a try is under way, everybody who needs its result waits for the same one.
Rule 2: a cancelled or impatient caller leaves; the try goes on for the others and is given up when
        the last of them has left, so that nothing runs for nobody.
Rule 3: a failed try is forgotten: the next call begins a new one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from twinbus.errors import OperationTimeout, ServiceError

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
    """An error of this call's own; see errors.py, rule 1."""
    mine = copy.copy(error)
    mine.__cause__ = error.__cause__
    return mine


# The wait of a receive is for messages: its link has at least so long to open, and at most.
OPEN_TIMEOUT_S_MIN: Final = 10.0
OPEN_TIMEOUT_S_MAX: Final = 30.0


@asynccontextmanager
async def in_time(
    timeout_s: float,
    *,
    path: str,
    doing: str,
    on_timeout: Callable[[float], None] | None = None,
) -> AsyncIterator[None]:
    """What takes longer ends with OperationTimeout; ``on_timeout`` is told when it had begun."""
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except OperationTimeout:
        raise  # The service's own answer.
    except TimeoutError:
        if on_timeout is not None:
            on_timeout(began_s)
        raise timed_out(timeout_s, path=path, doing=doing) from None


def timed_out(
    timeout_s: float, *, path: str, doing: str, was_sent: bool = True
) -> OperationTimeout:
    """The error of a call that got no answer."""
    error = OperationTimeout(
        f"{doing} {path!r} took longer than {timeout_s:g} s",
        path=path,
        hint="It may have been carried out" if was_sent else "Nothing was sent",
    )
    error.is_ambiguous = was_sent
    return error
