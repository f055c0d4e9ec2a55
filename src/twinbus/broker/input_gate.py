"""Whether a peer is read from, and whether what it sent is worked on.

Several things can stop a peer, each for its own reason and in any order. It is read from when
none of them does and when nothing of what was read is left.

Rule 1: what was read and cannot be worked on yet stays where it is; nothing more is read until
        it is done. So one read is the most that a peer can have waiting here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

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


class InputGate:
    """The way in for one peer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        self._loop = loop
        self._work = work
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._has_backlog = False
        self._is_scheduled = False
        self.reasons = 0
        """Nothing is worked on while there are any."""

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport

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

    def throw_away(self) -> None:
        """Nothing of this peer counts any more: read it, so that it can hear our last words."""
        self.reasons, self._has_backlog = 0, False
        self._adjust()

    def _schedule(self) -> None:
        if self._has_backlog and not self.reasons and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_up)

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
