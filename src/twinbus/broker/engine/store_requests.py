"""Reads that a queue requests, and its timers for expired and scheduled messages.

The engine never reads the store. It returns requests; the namespace reads, and answers by calling
the method named in the request.

Rule 1: a time is set when its message is on disk, never before: a read that comes too early
        finds nothing and would not be repeated.
Rule 2: every read for due messages ends with a new time, either at once (nothing was found) or
        after the commit of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from twinbus.broker.engine.chunk import Chunk, PendingReads
from twinbus.broker.engine.delivery_stream import DeliveryStream
from twinbus.broker.storage.interface import ScheduledRow
from twinbus.common.clock import Instant


@dataclass(frozen=True, slots=True)
class LoadNext:
    """Read the chunks of a stream after ``after_seq``; answer with ``chunks_loaded``.

    A stream of a session needs only the chunks of that session.
    """

    stream: DeliveryStream
    after_seq: int
    through_seq: int


@dataclass(frozen=True, slots=True)
class LoadBlob:
    """Read one chunk again; answer with ``blob_loaded``."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class LoadExpired:
    """Read chunks with expired messages; answer with ``expired_loaded``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class LoadDue:
    """Read scheduled messages whose time has come; answer with ``due_loaded``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class FindTimes:
    """Read the next expiry and the next scheduled time; answer with ``times_found``."""


class ScheduledSize(NamedTuple):
    """What is needed to remove a scheduled message, without its bytes."""

    seq: int
    byte_count: int


def size_of(row: ScheduledRow) -> ScheduledSize:
    return ScheduledSize(row.seq, len(row.blob))


Request = LoadNext | LoadBlob | LoadExpired | LoadDue | FindTimes


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

    def due_requests(self, now: Instant) -> list[Request]:
        """The reads for what is due now."""
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
        """These stay scheduled."""
        self._unscheduled.difference_update(seqs)

    def commit_finished(self, seqs: Iterable[int]) -> None:
        """These are no longer scheduled on disk."""
        gone = set(seqs)
        if gone:
            self._grace.after_reads(lambda: self._unscheduled.difference_update(gone))


def _earlier(known: int | None, other: int | None) -> int | None:
    if known is None or other is None:
        return other if known is None else known
    return min(known, other)
