"""Who may have something looked up: the requests whose answers are read from the disk.

There is one reader's thread, and an answer has up to a megabyte, which is in memory several times
while it is read, built and encoded. So a few of them are under way at a time; the others wait as
requests, which are small.

Rule 1: the places are shared by key (shares.py). While all of them are taken, a connection of
        a key below its share has its turn at once; the others have theirs in order.
Rule 2: nothing is looked up for a connection that does not read the answers that it has.
Rule 3: what a connection asked for and did not wait for is not looked up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twinbus.broker.fairness.shares import Holder, SharedCapacity

# Under way at the same time in one namespace. Each builds a part of its answer, half a millisecond
# long, in every iteration of the loop.
LOOKUPS_MAX: Final = 4
# ... and of one connection.
LOOKUPS_OF_ONE_MAX: Final = 2
# Of those that wait, begun in one go: many are refused at once, and need no time of the reader.
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
        """Those that could begin, if there were a place."""

    def join(self, may_have_more: Callable[[], bool]) -> ReaderPlace:
        """A connection that may come to ask; the function says whether it reads its answers."""
        return ReaderPlace(self, self.shared.join(), may_have_more)

    def ended(self) -> None:
        """There is a place: whose turn is it?

        What is started may end at once, and then comes here again: no call in a call.
        """
        if self._is_choosing:
            return
        self._is_choosing = True
        try:
            for _ in range(BEGUN_AT_ONCE):
                if not self._is_anyone_next:
                    return
                place = self.waiting.popleft()
                place.is_listed = False
                if place.may_start:
                    place.start()
        finally:
            self._is_choosing = False
        if self._is_anyone_next:
            self._later(self.ended)

    @property
    def _is_anyone_next(self) -> bool:
        return bool(self.waiting) and self.shared.used < self.shared.capacity


class ReaderPlace:
    """One connection."""

    __slots__ = ("_is_looking", "_may_have_more", "_turns", "_wanted", "holder", "is_listed")

    def __init__(
        self, turns: ReaderTurns, holder: Holder, may_have_more: Callable[[], bool]
    ) -> None:
        self._turns = turns
        self._may_have_more = may_have_more
        self._wanted: deque[Callable[[], None]] = deque()
        self.holder = holder
        self.is_listed = False
        self._is_looking = False

    def begin(self, start: Callable[[], None]) -> bool:
        """Start now (True), or when it is this one's turn."""
        self._wanted.append(start)
        self.look()
        return not self._wanted

    @property
    def may_start(self) -> bool:
        return (
            bool(self._wanted) and self.holder.used < LOOKUPS_OF_ONE_MAX and self._may_have_more()
        )

    def look(self) -> None:
        """Something has changed: it asked, was answered, or has read its answers."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            while not self.is_listed and self.may_start:
                if self._turns.shared.has_room(self.holder.account):
                    self.start()
                else:
                    self.is_listed = True
                    self._turns.waiting.append(self)
        finally:
            self._is_looking = False

    def start(self) -> None:
        self._turns.shared.take(self.holder, 1)
        self._wanted.popleft()()

    def end(self) -> None:
        """An answer is there, or will never be."""
        self._turns.shared.give_back(self.holder, 1)
        self.look()
        self._turns.ended()

    def close(self) -> None:
        """The connection is gone; what is under way ends by itself."""
        self._wanted.clear()
        self._may_have_more = _never
        self._turns.shared.leave(self.holder)


def _never() -> bool:
    return False
