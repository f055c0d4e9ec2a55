"""One attempt for many callers that wait (to connect, to send a token, to attach), and time limits.

Rule 1: while an attempt is under way, all callers that need its result wait for the same one.
Rule 2: a caller that is cancelled or times out stops waiting; the attempt continues for the others
        and is cancelled when the last of them has stopped waiting.
Rule 3: a failed attempt is discarded: the next call starts a new one.
Rule 4: no call outlives its time limit (rule 2 of the driver interface).
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
    """At most one attempt at a time."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting_count = 0

    async def result(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the attempt under way, or of a new one."""
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
        """All callers that wait get this error immediately."""
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
            result = await begin()
            if not outcome.done():
                outcome.set_result(result)
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
            outcome.exception()  # Perhaps no caller is left to retrieve it.


def _own(error: ServiceError) -> ServiceError:
    """A copy of the error for this call; see drivers/amqp/errors.py, rule 1."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


# A receive may wait long for messages. Opening its link gets at least and at most this much time.
OPEN_TIMEOUT_S_MIN: Final = 10.0
OPEN_TIMEOUT_S_MAX: Final = 30.0


@asynccontextmanager
async def time_limit(
    timeout_s: float,
    *,
    path: str,
    doing: str,
    on_timeout: Callable[[float], None] | None = None,
) -> AsyncIterator[None]:
    """Raise OperationTimeout after the time limit; ``on_timeout`` gets the start time."""
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except OperationTimeout:
        raise  # The service's own answer.
    except TimeoutError:
        if on_timeout is not None:
            on_timeout(began_s)
        raise timeout_error(timeout_s, path=path, doing=doing) from None


def timeout_error(
    timeout_s: float, *, path: str, doing: str, was_sent: bool = True
) -> OperationTimeout:
    """The error of a call that got no response."""
    error = OperationTimeout(
        f"{doing} {path!r} timed out after {timeout_s:g} s",
        path=path,
        hint="Check whether the service carried it out before you try again"
        if was_sent
        else "Try again; nothing was sent",
    )
    error.is_ambiguous = was_sent
    return error
