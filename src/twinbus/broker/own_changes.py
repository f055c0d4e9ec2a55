"""Changes of a namespace that belong to no queue, who waits for them, and the loop they run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from twinbus.broker.entities.batch import Ticket
from twinbus.broker.store.port import Op


class OwnChange(NamedTuple):
    """A change that belongs to no queue's batch."""

    ops: list[Op]
    ticket: Ticket | None
    is_kept: bool
    """If the disk is full it is tried again, although its ticket is told so."""


class Loop(Protocol):
    """What a namespace needs of an event loop; a simulation brings its own."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...

    def create_future(self) -> asyncio.Future[Any]: ...


class FutureTicket:
    """A coroutine that waits for a change to be on disk."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def stored(self, seqs: range) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)
