"""What must not be forgotten yet, because a read that began earlier may still speak of it.

A read sees the disk as it was when it began. If the machine forgot a settled message at once,
such a read would bring the message back. So whatever the machine wants to forget waits until
every read that had begun by then has been answered. Reads are answered in the order in which
they began, because one thread does them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Grace:
    """The reads of one queue that are under way, and what waits for their end."""

    def __init__(self) -> None:
        self._begun = 0
        self._ended = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def begin_read(self) -> None:
        self._begun += 1

    def end_read(self) -> None:
        """The oldest read was answered, and its answer has been used."""
        self._ended += 1
        while self._waiting and self._waiting[0][0] <= self._ended:
            self._waiting.popleft()[1]()

    def after_reads(self, action: Callable[[], None]) -> None:
        """Run ``action`` once no read is under way that has begun by now."""
        if self._begun == self._ended:
            action()
        else:
            self._waiting.append((self._begun, action))
