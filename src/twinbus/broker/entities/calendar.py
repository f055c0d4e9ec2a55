"""When a queue must look at the disk again: the next expiry and the next schedule.

Rule 1: a time is noted once its message is on disk, never before: a look that comes too early
        finds nothing and would not be repeated.
Rule 2: every look ends with a new time, either at once (nothing was found) or after the commit
        of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinbus.broker.entities.grace import PendingReads
from twinbus.broker.entities.requests import LoadDue, LoadExpired, Request
from twinbus.clock import Instant


class EngineTimers:
    """The times of one queue, and which scheduled messages have left the schedule."""

    def __init__(self, grace: PendingReads) -> None:
        self._grace = grace
        self._next_expiry_ms: int | None = None
        self._next_due_ms: int | None = None
        self._unscheduled: set[int] = set()

    def note_expiry(self, at_ms: int | None) -> None:
        self._next_expiry_ms = _earlier(self._next_expiry_ms, at_ms)

    def note_due(self, at_ms: int | None) -> None:
        self._next_due_ms = _earlier(self._next_due_ms, at_ms)

    def next_timer_s(self, now: Instant) -> float | None:
        """The earlier of both times, on the monotonic clock."""
        at_ms = _earlier(self._next_expiry_ms, self._next_due_ms)
        return None if at_ms is None else now.monotonic_s + (at_ms - now.wall_ms) / 1000

    def looks(self, now: Instant) -> list[Request]:
        """What to look for now."""
        requests: list[Request] = []
        if self._next_expiry_ms is not None and self._next_expiry_ms <= now.wall_ms:
            self._next_expiry_ms = None
            requests.append(LoadExpired(now.wall_ms))
        if self._next_due_ms is not None and self._next_due_ms <= now.wall_ms:
            self._next_due_ms = None
            requests.append(LoadDue(now.wall_ms))
        return requests

    # -- the schedule ---------------------------------------------------------------------

    def is_scheduled(self, seq: int) -> bool:
        """Whether a message that was read from the schedule is still in it."""
        return seq not in self._unscheduled

    def unschedule(self, seq: int) -> None:
        self._unscheduled.add(seq)

    def restore(self, seqs: Iterable[int]) -> None:
        """These stay scheduled after all."""
        self._unscheduled.difference_update(seqs)

    def commit_finished(self, seqs: Iterable[int]) -> None:
        """The disk knows that these are no longer scheduled."""
        gone = set(seqs)
        if gone:
            self._grace.after_reads(lambda: self._unscheduled.difference_update(gone))


def _earlier(known: int | None, other: int | None) -> int | None:
    if known is None or other is None:
        return other if known is None else known
    return min(known, other)
