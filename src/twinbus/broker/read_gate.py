"""Whether a connection is read from, and whether its input is processed.

A connection can be stopped for several reasons at the same time. It is read from while there is
no reason to stop it and no unprocessed input.

Rule 1: nothing more is read until all input is processed. So a connection has at most one
        unprocessed read in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

# The reasons to stop a connection; a bit for each.
STORING: Final = 1
"""Too many of its bytes wait for the disk."""
OUTPUT: Final = 2
"""The client does not read its output."""
ASKING: Final = 4
"""Requests of it are waiting for the store."""
LEAVING: Final = 8
"""The broker stops."""
FROZEN: Final = 16
"""A fault delays its input."""
ROOM: Final = 32
"""Its incomplete input uses its share of the memory (broker/fairness/buffered_bytes.py)."""


class _Turns(Protocol):
    """Calls a function in the connection's next turn: see broker/fairness/loop_turns.py."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class ReadGate:
    """The input of one connection."""

    def __init__(self, turns: _Turns, work: Callable[[], None]) -> None:
        self._turns = turns
        self._work = work
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._has_backlog = False
        self._is_scheduled = False
        self.reasons = 0
        """Bits of the reasons above; input is processed while this is 0."""

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def has_backlog(self) -> bool:
        """Whether there is unprocessed input."""
        return self._has_backlog

    def stop(self, reason: int) -> None:
        self.reasons |= reason
        self._adjust()

    def go_on(self, reason: int) -> None:
        """One reason has ended; processing continues in the next turn."""
        if self.reasons & reason:
            self.reasons &= ~reason
            self._schedule()
            self._adjust()

    def turn_ended(self, *, is_done: bool) -> None:
        """Processing is done, or was interrupted and continues in a later turn."""
        if self._has_backlog == is_done:
            self._has_backlog = not is_done
            self._adjust()
        self._schedule()

    def wait(self) -> None:
        """There is new input while other connections have their turn."""
        self.turn_ended(is_done=False)

    def close(self) -> None:
        """The connection is closed: nothing more is processed, and all references are dropped."""
        self._has_backlog = False
        self._transport = None
        self._work = _nothing

    def throw_away(self) -> None:
        """Read and ignore further input, so that the client can receive the close frame."""
        self.reasons, self._has_backlog = 0, False
        self._adjust()

    def _schedule(self) -> None:
        if self._has_backlog and not self.reasons and not self._is_scheduled:
            self._is_scheduled = True
            self._turns.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if self._has_backlog and not self.reasons:
            self._work()

    def _adjust(self) -> None:
        wanted = not self.reasons and not self._has_backlog
        if wanted is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


def _nothing() -> None:
    pass
