"""Whether a peer is read from, and whether what it sent is worked on.

Several things can stop a peer, each for its own reason and in any order. It is read from when
none of them does and when nothing of what was read is left.

Rule 1: what was read and cannot be worked on yet stays where it is; nothing more is read until
        it is done. So one read is the most that a peer can have waiting here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

# Why a peer is stopped; a bit for each.
STORING: Final = 1
"""Too much of it waits for the disk."""
OUTPUT: Final = 2
"""It does not read what it asked for."""
ASKING: Final = 4
"""Answers to its requests are being looked up."""
LEAVING: Final = 8
"""The broker stops."""
FROZEN: Final = 16
"""A fault holds up whatever it sends."""
ROOM: Final = 32
"""What it has begun takes its share of the memory for that (broker/fairness/buffered_bytes.py)."""


class _Turns(Protocol):
    """Where turns are had: see broker/fairness/loop_turns.py."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...


class ReadGate:
    """The way in for one peer."""

    def __init__(self, turns: _Turns, work: Callable[[], None]) -> None:
        self._turns = turns
        self._work = work
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._has_backlog = False
        self._is_scheduled = False
        self.reasons = 0
        """Nothing is worked on while there are any."""

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def has_backlog(self) -> bool:
        """Whether something was read that has not been worked on."""
        return self._has_backlog

    def stop(self, reason: int) -> None:
        self.reasons |= reason
        self._adjust()

    def go_on(self, reason: int) -> None:
        """One reason is gone; work that was left is taken up again in the next turn."""
        if self.reasons & reason:
            self.reasons &= ~reason
            self._schedule()
            self._adjust()

    def turn_ended(self, *, is_done: bool) -> None:
        """Work came to an end or had to stop; what is left is taken up in a later turn."""
        if self._has_backlog == is_done:
            self._has_backlog = not is_done
            self._adjust()
        self._schedule()

    def wait(self) -> None:
        """Something was read while others have their turn."""
        self.turn_ended(is_done=False)

    def close(self) -> None:
        """The peer is gone: nothing is worked on any more, and nothing of it is held."""
        self._has_backlog = False
        self._transport = None
        self._work = _nothing

    def throw_away(self) -> None:
        """Nothing of this peer counts any more: read it, so that it can hear our last words."""
        self.reasons, self._has_backlog = 0, False
        self._adjust()

    def _schedule(self) -> None:
        if self._has_backlog and not self.reasons and not self._is_scheduled:
            self._is_scheduled = True
            self._turns.call_soon(self._take_up)

    def _take_up(self) -> None:
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
