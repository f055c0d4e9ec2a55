"""How many messages may be on the primary and in the backlog at once.

    acquire(piece) --sent--> accepted --completed--> release(path, n)

A message that was sent and is not completed is there twice if the mover is killed now. All chunks
of all queues share one bound, so a kill repeats so many at most. A chunk goes through it in
pieces, a few at a time: while one is sent another is completed.

Rule 1: room is given to a whole piece, so that what lies together in the backlog is completed
        together, in one range. Who waits is served in turn.
Rule 2: no destination gets more than three quarters of the room. One that does not answer keeps
        what it has; the rest of a piece goes without it (Y4).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["InFlightLimit"]

# Pieces that are under way at once: one is received or planned, one sent, one completed, and one
# is left to others while a destination keeps the rest.
PIECES: Final = 4
# A destination that has not answered for this long is not waited for; usual are milliseconds.
STUCK_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _WaitingPiece:
    wanted: Mapping[str, int]
    admitted: asyncio.Future[list[str]]


class InFlightLimit:
    """The room for messages that were sent and not yet completed."""

    def __init__(self, count_max: int) -> None:
        self.piece_count_max = max(1, count_max // PIECES)
        """No more may be asked for at once."""
        self.count = 0
        """Messages that are in doubt if everything ended now."""
        self.failure_count = 0
        """How often the backlog could not be told that messages are home. What was received
        before may be somebody else's by now, and is not sent any more."""
        self._count_max = count_max
        self._share_max = max(1, count_max - self.piece_count_max)
        self._by_path: Counter[str] = Counter()
        self._moved_s: dict[str, float] = {}
        """When a destination with messages in flight last answered, or began."""
        self._waiters: list[_WaitingPiece] = []
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, wanted: Mapping[str, int]) -> list[str]:
        """Wait until a piece may be sent; the destinations whose messages may.

        That is all of them, unless one keeps more than its share and does not answer: it is left
        out then, and has to be asked for again.
        """
        assert sum(wanted.values()) <= self.piece_count_max, "a piece is a part of the room"
        waiter = _WaitingPiece(wanted, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._admit()
        try:
            return await waiter.admitted
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _WaitingPiece) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._admit()
        elif not waiter.admitted.cancelled():
            for path in waiter.admitted.result():
                self.release(path, waiter.wanted[path])

    def release(self, path: str, count: int) -> None:
        """So many to ``path`` are completed, or were never taken."""
        self.count -= count
        self._by_path[path] -= count
        self._moved_s[path] = asyncio.get_running_loop().time()
        if self._by_path[path] <= 0:
            del self._by_path[path], self._moved_s[path]
        self._admit()

    def _admit(self) -> None:
        now_s = asyncio.get_running_loop().time()
        sated: set[str] = set()
        for waiter in list(self._waiters):
            # Many wait for the same few destinations: each is looked at once.
            if not sated.isdisjoint(waiter.wanted):
                continue
            paths = self._admissible(waiter.wanted, now_s, sated)
            if not paths:
                continue
            count = sum(waiter.wanted[path] for path in paths)
            if self.count + count > self._count_max:
                break  # Nobody who needs less passes: a large piece would wait for ever.
            self._waiters.remove(waiter)
            self._take({path: waiter.wanted[path] for path in paths}, now_s)
            waiter.admitted.set_result(paths)
        self._look_again()

    def _take(self, taken: Mapping[str, int], now_s: float) -> None:
        self.count += sum(taken.values())
        for path, count in taken.items():
            if path not in self._by_path:
                self._moved_s[path] = now_s
            self._by_path[path] += count

    def _admissible(self, wanted: Mapping[str, int], now_s: float, sated: set[str]) -> list[str]:
        """All of them, or those that are left without one that is stuck; none: not yet.

        Those with their share that will soon have room again are noted in ``sated``.
        """
        by_path, share_max = self._by_path, self._share_max
        greedy = [path for path, count in wanted.items() if by_path[path] + count > share_max]
        waited_for = [path for path in greedy if now_s - self._moved_s[path] < STUCK_S]
        if waited_for:
            sated.update(waited_for)
            return []
        return [path for path in wanted if path not in greedy]

    def _look_again(self) -> None:
        """Nobody calls when a destination gets stuck."""
        if self._waiters and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STUCK_S, self._timer_ended)

    def _timer_ended(self) -> None:
        self._timer = None
        self._admit()
