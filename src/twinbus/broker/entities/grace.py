"""What must not be forgotten yet, because a read that began earlier may still speak of it.

A read sees the disk as it was when it began. If the machine forgot a settled message at once,
such a read would bring the message back. So whatever the machine wants to forget waits until
every read that had begun by then has been answered. A long read takes many turns, so that reads
may be answered in another order than they began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class PendingReads:
    """The reads of one queue that are under way, and what waits for their end."""

    def __init__(self) -> None:
        self._begun = 0
        self._open: dict[int, None] = {}
        """The reads under way, oldest first."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def begin_read(self) -> int:
        """A read begins; its number, for end_read()."""
        self._begun += 1
        self._open[self._begun] = None
        return self._begun

    def end_read(self, read: int) -> None:
        """The read was answered, and its answer has been used."""
        del self._open[read]
        oldest = next(iter(self._open), self._begun + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            self._waiting.popleft()[1]()

    def after_reads(self, action: Callable[[], None]) -> None:
        """Run ``action`` once no read is under way that has begun by now."""
        if not self._open:
            action()
        else:
            self._waiting.append((self._begun, action))
