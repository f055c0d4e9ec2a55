"""Sharing the reader: requests whose replies are read from the disk.

There is one reader thread, and a reply has up to a megabyte, which is in memory several times
while it is read, built and encoded. So a few of them are processed at a time; the others wait as
requests, which are small.

Rule 1: the places are shared by key (shares.py). While all of them are used, a connection of
        a key below its share starts at once; the others start in order.
Rule 2: nothing is read for a connection that does not read its replies.
Rule 3: requests of a closed connection are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twinbus.broker.fairness.shares import Holder, SharedCapacity

# Concurrent reads of one namespace. Each builds a part of its reply, half a millisecond long, in
# every iteration of the loop.
LOOKUPS_MAX: Final = 4
# ... and of one connection.
LOOKUPS_OF_ONE_MAX: Final = 2
# Waiting requests that start in one step: many are refused at once, and need no read.
BEGUN_AT_ONCE: Final = 32


class ReaderTurns:
    """The places of one namespace."""

    def __init__(
        self,
        count_max: int = LOOKUPS_MAX,
        *,
        later: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        """``later`` calls a function after others have had their turn."""
        self.shared = SharedCapacity(count_max)
        self._later = later
        self._is_choosing = False
        self.waiting: deque[ReaderPlace] = deque()
        """Connections with requests that wait for a place."""

    def join(self, may_have_more: Callable[[], bool]) -> ReaderPlace:
        """Register a connection; the function returns whether it reads its replies."""
        return ReaderPlace(self, self.shared.join(), may_have_more)

    def ended(self) -> None:
        """A place is free: start the next requests.

        A request may end at once and then calls this again: nested calls return immediately.
        """
        if self._is_choosing:
            return
        self._is_choosing = True
        try:
            for _ in range(BEGUN_AT_ONCE):
                if not self._can_start_next:
                    return
                place = self.waiting.popleft()
                place.is_listed = False
                if place.may_start:
                    place.start()
        finally:
            self._is_choosing = False
        if self._can_start_next:
            self._later(self.ended)

    @property
    def _can_start_next(self) -> bool:
        return bool(self.waiting) and self.shared.used < self.shared.capacity


class ReaderPlace:
    """The requests of one connection."""

    __slots__ = ("_is_starting", "_may_have_more", "_turns", "_wanted", "holder", "is_listed")

    def __init__(
        self, turns: ReaderTurns, holder: Holder, may_have_more: Callable[[], bool]
    ) -> None:
        self._turns = turns
        self._may_have_more = may_have_more
        self._wanted: deque[Callable[[], None]] = deque()
        self.holder = holder
        self.is_listed = False
        self._is_starting = False

    def begin(self, start: Callable[[], None]) -> bool:
        """Start now (True), or when it is the connection's turn."""
        self._wanted.append(start)
        self.start_waiting()
        return not self._wanted

    @property
    def may_start(self) -> bool:
        return (
            bool(self._wanted) and self.holder.used < LOOKUPS_OF_ONE_MAX and self._may_have_more()
        )

    def start_waiting(self) -> None:
        """Start waiting requests, after a request, a reply, or when replies were read."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while not self.is_listed and self.may_start:
                if self._turns.shared.has_room(self.holder.account):
                    self.start()
                else:
                    self.is_listed = True
                    self._turns.waiting.append(self)
        finally:
            self._is_starting = False

    def start(self) -> None:
        self._turns.shared.take(self.holder, 1)
        self._wanted.popleft()()

    def end(self) -> None:
        """The reply is complete, or was given up."""
        self._turns.shared.give_back(self.holder, 1)
        self.start_waiting()
        self._turns.ended()

    def close(self) -> None:
        """The connection is closed; requests that have started end by themselves."""
        self._wanted.clear()
        self._may_have_more = _never
        self._turns.shared.leave(self.holder)


def _never() -> bool:
    return False
