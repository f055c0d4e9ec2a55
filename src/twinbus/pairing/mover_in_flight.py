"""How many messages may be on the primary and in the backlog at once.

    room_for(path, n) --sent--> accepted --completed--> free(path, n)

A message that was sent and is not completed is there twice if the mover is killed now. All chunks
of all queues share one bound, so a kill repeats so many at most.

Rule 1: who waits is served in turn; but no destination gets more than three quarters of the room,
        because it may be a silent one.
Rule 2: when the room is what somebody waits for, all who hold some are told: they complete what
        was accepted now, instead of a little later in larger ranges.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["InFlight"]

# The room is given out in so many parts at least: one is on its way while another is completed.
BATCHES_MIN: Final = 4


@dataclass(slots=True, eq=False)
class _Waiter:
    path: str
    count: int
    admitted: asyncio.Future[None]


class InFlight:
    """The room for messages that were sent and not yet completed."""

    def __init__(self, count_max: int) -> None:
        self.batch_count_max = max(1, count_max // BATCHES_MIN)
        """No more may be asked for at once."""
        self._count_max = count_max
        self._share_max = max(1, count_max - self.batch_count_max)
        self.count = 0
        """Messages that are in doubt if everything ended now."""
        self._by_path: Counter[str] = Counter()
        self._waiters: list[_Waiter] = []
        self._holders: set[Callable[[], object]] = set()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiters)

    def tell(self, holder: Callable[[], object]) -> None:
        """Call ``holder`` whenever room is wanted, until forget()."""
        self._holders.add(holder)

    def forget(self, holder: Callable[[], object]) -> None:
        self._holders.discard(holder)

    async def room_for(self, path: str, count: int) -> None:
        """Return once ``count`` more may be sent to ``path``."""
        assert count <= self.batch_count_max, "a batch is a part of the room"
        waiter = _Waiter(path, count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._admit()
        for holder in list(self._holders) if self._waiters else ():
            holder()
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._admit()
            else:
                self.free(path, count)
            raise

    def free(self, path: str, count: int) -> None:
        """So many to ``path`` are completed, or were never taken."""
        self.count -= count
        self._by_path[path] -= count
        if self._by_path[path] <= 0:
            del self._by_path[path]
        self._admit()

    def _admit(self) -> None:
        while (waiter := self._next()) is not None and self._fits(waiter):
            self._waiters.remove(waiter)
            self.count += waiter.count
            self._by_path[waiter.path] += waiter.count
            waiter.admitted.set_result(None)

    def _next(self) -> _Waiter | None:
        """The first whose destination may have more; nobody who needs less passes it."""
        by_path, share_max = self._by_path, self._share_max
        return next(
            (each for each in self._waiters if by_path[each.path] + each.count <= share_max), None
        )

    def _fits(self, waiter: _Waiter) -> bool:
        return self.count + waiter.count <= self._count_max
