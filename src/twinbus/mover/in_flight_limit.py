"""How many messages may be on the primary and in the backlog at the same time.

    acquire(piece) --sent--> accepted --completed--> release(path, n)

A message that was sent and is not completed exists twice if the mover is killed now. All chunks
of all queues share one limit, so a kill duplicates at most that many. A chunk passes it in pieces,
a few at a time: while one is sent another is completed.

Rule 1: a piece is admitted as a whole, so that consecutive messages of the backlog are completed
        together, in one range. Waiting pieces are admitted in their order.
Rule 2: no destination gets more than three quarters of the limit. One that does not respond keeps
        what it has; the rest of a piece is sent without it (Y4).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["InFlightLimit"]

# Pieces in progress at the same time: one is received or planned, one sent, one completed, and one
# is left for other destinations while one keeps the rest.
PIECES: Final = 4
# A destination that has not responded for this long is not waited for; milliseconds are usual.
STUCK_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _WaitingPiece:
    wanted: Mapping[str, int]
    admitted: asyncio.Future[list[str]]


class InFlightLimit:
    """The limit for messages that were sent and are not yet completed."""

    def __init__(self, count_max: int) -> None:
        self.piece_count_max = max(1, count_max // PIECES)
        """The largest piece that acquire() admits."""
        self.count = 0
        """Messages that are ambiguous if the process ended now."""
        self.failure_count = 0
        """How often messages that the primary accepted could not be completed in the backlog.
        What was received before may be locked by another receiver now, and is not sent."""
        self._count_max = count_max
        self._share_max = max(1, count_max - self.piece_count_max)
        self._by_path: Counter[str] = Counter()
        self._moved_s: dict[str, float] = {}
        """When a destination with messages in flight last responded, or began."""
        self._waiters: list[_WaitingPiece] = []
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, wanted: Mapping[str, int]) -> list[str]:
        """Wait until a piece may be sent; returns the destinations whose messages may be sent.

        These are all of them, unless one exceeds its share and does not respond: it is left out
        then, and has to be acquired again.
        """
        assert sum(wanted.values()) <= self.piece_count_max, "a piece is a part of the limit"
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
        """``count`` messages to ``path`` are completed, or were not sent."""
        self.count -= count
        self._by_path[path] -= count
        self._moved_s[path] = asyncio.get_running_loop().time()
        if self._by_path[path] <= 0:
            del self._by_path[path], self._moved_s[path]
        self._admit()

    def _admit(self) -> None:
        now_s = asyncio.get_running_loop().time()
        at_share: set[str] = set()
        for waiter in list(self._waiters):
            # Many wait for the same few destinations: each is checked once.
            if not at_share.isdisjoint(waiter.wanted):
                continue
            paths = self._admissible(waiter.wanted, now_s, at_share)
            if not paths:
                continue
            count = sum(waiter.wanted[path] for path in paths)
            if self.count + count > self._count_max:
                break  # No smaller piece is admitted first: a large one would wait for ever.
            self._waiters.remove(waiter)
            self._take({path: waiter.wanted[path] for path in paths}, now_s)
            waiter.admitted.set_result(paths)
        self._start_timer()

    def _take(self, taken: Mapping[str, int], now_s: float) -> None:
        self.count += sum(taken.values())
        for path, count in taken.items():
            if path not in self._by_path:
                self._moved_s[path] = now_s
            self._by_path[path] += count

    def _admissible(self, wanted: Mapping[str, int], now_s: float, at_share: set[str]) -> list[str]:
        """All destinations, or those that are left without one that is stuck; none: not yet.

        Those that have used up their share and still respond are added to ``at_share``.
        """
        by_path, share_max = self._by_path, self._share_max
        over_share = [path for path, count in wanted.items() if by_path[path] + count > share_max]
        responding = [path for path in over_share if now_s - self._moved_s[path] < STUCK_S]
        if responding:
            at_share.update(responding)
            return []
        return [path for path in wanted if path not in over_share]

    def _start_timer(self) -> None:
        """Check again later: there is no call when a destination gets stuck."""
        if self._waiters and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STUCK_S, self._timer_ended)

    def _timer_ended(self) -> None:
        self._timer = None
        self._admit()
