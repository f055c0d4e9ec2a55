"""Whether a factory still stands, and the calls that are inside it.

    OPEN --close--> CLOSED       sends that are under way may finish, other calls end at once
    OPEN --fault--> FAULTED      every call ends at once

Rule 1: after its end every new call is refused with a typed error, and so is every call that was
        waiting (L1): nothing hangs.
Rule 2: a call is ended by cancelling its task and taking the cancellation back, as a timeout
        does; a caller that was cancelled by somebody else stays cancelled.
Rule 3: in a forked child a factory of the parent is FAULTED, and its end touches nothing: the
        connections and the loop are the parent's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from twinbus.common import fork
from twinbus.errors import FactoryClosed, FactoryFaulted, PairingError

T = TypeVar("T")

# Threads that send for themselves do not wake the loop when they have finished.
DIRECT_LOOK_S: Final = 0.01


class DirectLink(Protocol):
    """What sends on a thread of its own."""

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
        """The tasks that are inside, each with whether we have ended it."""
        self._waits: dict[asyncio.Task[Any], bool] = {}
        self.direct: set[DirectLink] = set()
        """Links on which threads of their own send now (pairing/direct_sender.py)."""
        self._idle: asyncio.Event | None = None
        self.is_inherited = False
        """Whether it belongs to the process that this one was forked from."""
        _all.add(self)

    @property
    def is_open(self) -> bool:
        return not self._is_closed and self._fault is None

    @property
    def fault_reason(self) -> str | None:
        """Why the factory was given up, if it was."""
        return self._fault

    @property
    def sends_under_way(self) -> int:
        return len(self._sends)

    def check(self) -> None:
        """Raise what a call on a factory that is gone gets."""
        if self._is_closed or self._fault is not None:
            raise self._error()

    # -- calls --------------------------------------------------------------------------------

    def enter_send(self) -> asyncio.Task[Any]:
        """A send begins, which a close waits for; call leave_send() with the answer."""
        if self._is_closed or self._fault is not None:
            raise self._error()
        task = asyncio.current_task()
        assert task is not None
        self._sends[task] = False
        return task

    def resume_send(self) -> asyncio.Task[Any]:
        """A send that began on a thread of its own goes on here: it may finish although the
        factory was closed meanwhile, as long as a close waits for sends."""
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
        """What a call that is inside raises for a CancelledError: ours has a reason."""
        if (self._sends.get(task) or self._waits.get(task)) and task.uncancel() == 0:
            error = self._error()
            # A send that was cut short may have arrived, and its answer was not waited for.
            error.is_ambiguous = task in self._sends
            return error
        return asyncio.CancelledError()

    async def track(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call that a close ends: nothing is lost with a receive that has not returned."""
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
        """Fault: end every call now, also the last sends of a factory that is being closed."""
        if self._fault is None and (self._sends or self.direct or not self._is_closed):
            self._fault = reason
            self._end(self._waits)
            self._end(self._sends)
            self._end_direct()

    async def drain(self, *, wait_s: float) -> None:
        """Give sends ``wait_s`` to finish, then end them."""
        try:
            async with asyncio.timeout(wait_s):
                while self._sends or self.direct:
                    if self._sends:
                        self._idle = asyncio.Event()
                        await self._idle.wait()
                    else:
                        await asyncio.sleep(DIRECT_LOOK_S)
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

    def inherited(self) -> None:
        """This process was forked from the one whose factory it is."""
        self.is_inherited = True
        self._fault = "it belongs to the process that this one was forked from"

    def _error(self) -> PairingError:
        if self.is_inherited:
            return FactoryFaulted(
                f"the factory of {self._name} cannot be used here: {self._fault}",
                hint="Make a new one in this process; those of twinbus without asyncio do so "
                "by themselves",
            )
        if self._fault is not None:
            return FactoryFaulted(
                f"the factory of {self._name} was given up: {self._fault}",
                hint="Make a new factory; look at what ended its partner first",
            )
        return FactoryClosed(
            f"the factory of {self._name} is closed", hint="Make a new one to go on"
        )


_all: Final[WeakSet[CallTracker]] = WeakSet()


def _inherit() -> None:
    for calls in tuple(_all):
        calls.inherited()


fork.run_in_child(_inherit)
