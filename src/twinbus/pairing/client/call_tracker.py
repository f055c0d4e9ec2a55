"""Whether a factory is open, closed or faulted, and the calls that are in progress.

    OPEN --close--> CLOSED       sends in progress may finish, other calls end at once
    OPEN --fault--> FAULTED      every call ends at once

Rule 1: after the factory has ended, every new call and every waiting call raises a typed error
        (L1): no call hangs.
Rule 2: a call is ended by cancelling its task and undoing the cancellation, as a timeout does; a
        task that the application has cancelled stays cancelled.
Rule 3: in a forked child a factory of the parent is FAULTED, and closing it has no effect: the
        connections and the loop belong to the parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from twinbus.common import fork
from twinbus.errors import FactoryClosed, FactoryFaulted, PairingError

T = TypeVar("T")

# Threads that send without the loop do not wake it when they have finished.
DIRECT_POLL_S: Final = 0.01


class DirectLink(Protocol):
    """A link on which a thread sends without the event loop."""

    def interrupt(self) -> None:
        """End the send that is waiting, if there is one; from any thread."""


class CallTracker:
    """Open, closed or faulted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closed = False
        self._is_drained = False
        self._fault: str | None = None
        self._sends: dict[asyncio.Task[Any], bool] = {}
        """The tasks of calls in progress, each with whether we have cancelled it."""
        self._waits: dict[asyncio.Task[Any], bool] = {}
        self.direct: set[DirectLink] = set()
        """Links on which threads send now without the loop (pairing/direct_sender.py)."""
        self._idle: asyncio.Event | None = None
        self.is_inherited = False
        """Whether the factory belongs to the process that this one was forked from."""
        _all.add(self)

    @property
    def is_open(self) -> bool:
        return not self._is_closed and self._fault is None

    @property
    def fault_reason(self) -> str | None:
        """Why the factory has faulted; None if it has not."""
        return self._fault

    @property
    def sends_under_way(self) -> int:
        return len(self._sends)

    def check(self) -> None:
        """Raise FactoryClosed or FactoryFaulted unless the factory is open."""
        if self._is_closed or self._fault is not None:
            raise self._error()

    # -- calls --------------------------------------------------------------------------------

    def enter_send(self) -> asyncio.Task[Any]:
        """Begin a send, for which close() waits; pass the returned task to leave_send()."""
        if self._is_closed or self._fault is not None:
            raise self._error()
        task = asyncio.current_task()
        assert task is not None
        self._sends[task] = False
        return task

    def resume_send(self) -> asyncio.Task[Any]:
        """Continue a send that began on a caller's thread: it may finish even if the factory
        was closed in the meantime, as long as close() waits for sends."""
        if self._fault is not None or self._is_drained:
            raise self._error()
        task = asyncio.current_task()
        assert task is not None
        self._sends[task] = False
        return task

    def leave_send(self, task: asyncio.Task[Any]) -> None:
        del self._sends[task]
        if self._idle is not None and not self._sends:
            self._idle.set()

    def cancellation_error(self, task: asyncio.Task[Any]) -> BaseException:
        """The error that a call in progress raises for a CancelledError: a typed one if we caused
        the cancellation."""
        if (self._sends.get(task) or self._waits.get(task)) and task.uncancel() == 0:
            error = self._error()
            # The service may have accepted an interrupted send: its answer was not awaited.
            error.is_ambiguous = task in self._sends
            return error
        return asyncio.CancelledError()

    async def track(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call that close() ends: a receive that has not returned loses no message."""
        if self._is_closed or self._fault is not None:
            call.close()
            raise self._error()
        task = asyncio.current_task()
        assert task is not None
        self._waits[task] = False
        try:
            return await call
        except asyncio.CancelledError:
            raise self.cancellation_error(task) from None
        finally:
            del self._waits[task]

    # -- ends ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close: refuse new calls, and end those that only wait."""
        if self.is_open:
            self._is_closed = True
            self._end(self._waits)

    def fault(self, reason: str) -> None:
        """Fault: end every call now, including the last sends of a factory that is closing."""
        if self._fault is None and (self._sends or self.direct or not self._is_closed):
            self._fault = reason
            self._end(self._waits)
            self._end(self._sends)
            self._end_direct()

    async def drain(self, *, wait_s: float) -> None:
        """Wait up to ``wait_s`` for sends to finish, then end them."""
        try:
            async with asyncio.timeout(wait_s):
                while self._sends or self.direct:
                    if self._sends:
                        self._idle = asyncio.Event()
                        await self._idle.wait()
                    else:
                        await asyncio.sleep(DIRECT_POLL_S)
        except TimeoutError:
            self._end(self._sends)
            self._end_direct()
        finally:
            self._is_drained = True

    def _end_direct(self) -> None:
        for link in tuple(self.direct):
            link.interrupt()

    def _end(self, calls: dict[asyncio.Task[Any], bool]) -> None:
        for task, is_ended in calls.items():
            if not is_ended and task is not asyncio.current_task():
                calls[task] = True
                task.cancel()

    def mark_inherited(self) -> None:
        """This process was forked from the process that owns the factory."""
        self.is_inherited = True
        self._fault = "it belongs to the process that this one was forked from"

    def _error(self) -> PairingError:
        if self.is_inherited:
            return FactoryFaulted(
                f"MessagingFactory for {self._name} cannot be used in this process: {self._fault}",
                hint="Create a new factory in this process; the blocking API of twinbus does so "
                "automatically",
            )
        if self._fault is not None:
            return FactoryFaulted(
                f"MessagingFactory for {self._name} has faulted: {self._fault}",
                hint="Find out why its partner has ended, then create a new factory",
            )
        return FactoryClosed(
            f"MessagingFactory for {self._name} is closed", hint="Create a new factory"
        )


_all: Final[WeakSet[CallTracker]] = WeakSet()


def _inherit() -> None:
    for calls in tuple(_all):
        calls.mark_inherited()


fork.run_in_child(_inherit)
