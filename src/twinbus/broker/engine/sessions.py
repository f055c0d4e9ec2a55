"""The sessions of one queue: their locks, their states, and the receivers that wait for one.

    free --accept--> locked --release (close, detach, lost connection)--> free
                       |  ^ renew
                       +--+--lock expires--> free, and its unsettled deliveries count as failed

Rule 1: a session is locked by one receiver, and only that receiver gets its messages. A message
        lock lasts exactly as long as the session lock (rules M2, M3).
Rule 2: a receiver that asks for the next session gets the one that has waited longest; a session
        that was released with messages left waits behind the others.
Rule 3: returned messages keep their order: nothing later is delivered while the delivery count of
        an earlier message is still being written to disk.
Rule 4: memory grows with the sessions that have messages, never with the messages.
Rule 5: a session state counts against the quota of its queue, as a message does.
Rule 6: thousands of runs are returned, and thousands of receivers are notified, in turns. Until all
        runs of a session are returned, nothing of it is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING

from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.delivery_stream import DeliveryStream
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.write_batch import NotedState
from twinbus.broker.storage.interface import SessionCounts, session_state_bytes
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.engine.write_batch import CommitCallback

# As with message locks: a day of one-minute locks, in case a receiver is stuck.
SESSION_RENEWALS_MAX = 1_440
# Times of ended locks and waiters, kept before they are removed together.
TIMES_SPARE = 256
# Runs of messages that are returned at once when a session is released; more follow in turns.
RUNS_AT_ONCE = 128
# Expired locks and waiters that are handled in one step.
OVER_AT_ONCE = 128
# Receivers that are notified in one step; each takes up to 50 microseconds.
NOTIFIED_AT_ONCE = 16

Notification = Callable[[], None]


@dataclass(slots=True, eq=False)
class SessionLock:
    """The lock of one receiver on one session."""

    session: str
    stream: DeliveryStream
    owner: object
    """The connection of the receiver; only this one may renew it or use the session state."""
    lost: Notification
    """Called when the lock has expired, from notify_some()."""
    deadline_s: float
    locked_until_ms: int
    renewal_count: int = 0
    is_over: bool = False
    runs: dict[int, LockRun] = field(default_factory=dict)
    """The unsettled deliveries of its receiver."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A receiver that waits for the next session with messages."""

    owner: object
    deadline_s: float
    granted: Callable[[SessionLock], None]
    timed_out: Notification
    lost: Notification
    is_over: bool = False


@dataclass(slots=True)
class _ActiveCounts:
    """The counts of a session with messages, or with a lock."""

    active_count: int = 0
    last_seq: int = 0
    returning_count: int = 0
    """Failed deliveries that are not on disk yet."""

    @property
    def is_empty(self) -> bool:
        return not self.active_count and not self.returning_count


def _state_size(session: str, state: bytes | None) -> int:
    return 0 if state is None else session_state_bytes(session, state)


class Sessions:
    """Every session of a queue that is locked, has messages, or is waited for."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._counts: dict[str, _ActiveCounts] = {}
        self._filled: dict[str, None] = {}
        """Sessions with messages, locked or not, in the order in which they got their first."""
        self._free: dict[str, None] = {}
        """Sessions with messages and without a lock, in the order in which they wait."""
        self._locks: dict[str, SessionLock] = {}
        self._waiters: dict[Waiter, None] = {}
        self._ready: dict[DeliveryStream, None] = {}
        self._times: list[tuple[float, int, SessionLock | Waiter]] = []
        self._ties = count()
        self._notifications: deque[Notification] = deque()
        self._leaving: deque[tuple[SessionLock, bool]] = deque()
        """Ended locks with runs that are still to be returned; whether they count as failed."""
        self._states: dict[str, NotedState] = {}
        """States that may not be on disk yet."""

    def recover(self, rows: Iterable[SessionCounts], state_bytes: int = 0) -> None:
        """Load the sessions of the store, oldest first."""
        self._queue.grow_states(state_bytes)
        for row in rows:
            self._counts[row.session] = _ActiveCounts(row.active_count, row.last_seq)
            if row.active_count > 0:
                self._filled[row.session] = None
            self._offer(row.session)

    def notify_some(self) -> bool:
        """Send some of the notifications to receivers; returns whether there are more."""
        for _ in range(min(len(self._notifications), NOTIFIED_AT_ONCE)):
            self._notifications.popleft()()
        return bool(self._notifications)

    def names(self, skip: int = 0, count_max: int | None = None) -> list[str]:
        """Sessions with messages, in the order in which they got their first."""
        return list(islice(self._filled, skip, None if count_max is None else skip + count_max))

    def __len__(self) -> int:
        return len(self._locks)

    # -- locks ----------------------------------------------------------------------------

    def accept(
        self, session: str, owner: object, lost: Notification, now: Instant
    ) -> SessionLock | None:
        """Lock a session by name, whether it has messages or not; None if it is locked."""
        self._end_if_over(session, now)
        return None if session in self._locks else self._lock(session, owner, lost, now)

    def wait(self, waiter: Waiter) -> None:
        """Wait for the next session with messages."""
        self._waiters[waiter] = None
        self._note_time(waiter)

    def give_up(self, waiter: Waiter) -> None:
        """The receiver does not wait any more."""
        waiter.is_over = True
        self._waiters.pop(waiter, None)

    def serve_waiters(self, now: Instant) -> None:
        """Give free sessions to waiting receivers, in their order, a few in each call."""
        while self._waiters and self._free:
            if len(self._notifications) >= NOTIFIED_AT_ONCE:
                self._queue.has_more = True
                return
            waiter, session = next(iter(self._waiters)), next(iter(self._free))
            self.give_up(waiter)
            lock = self._lock(session, waiter.owner, waiter.lost, now)
            self._notifications.append(partial(waiter.granted, lock))

    def _lock(self, session: str, owner: object, lost: Notification, now: Instant) -> SessionLock:
        self._free.pop(session, None)
        counts = self._counts.setdefault(session, _ActiveCounts())
        duration_ms = self._queue.description.lock_duration_ms
        lock = SessionLock(
            session,
            DeliveryStream(self._queue.chunk_cache, counts.last_seq, session),
            owner,
            lost,
            now.monotonic_s + duration_ms / 1000,
            now.wall_ms + duration_ms,
        )
        self._locks[session] = lock
        self._note_time(lock)
        return lock

    def held_by(self, session: str, owner: object, now: Instant) -> SessionLock | None:
        """The lock on a session, if it belongs to the owner."""
        self._end_if_over(session, now)
        lock = self._locks.get(session)
        return lock if lock is not None and lock.owner is owner else None

    def renew(self, lock: SessionLock, now: Instant) -> bool:
        """Restart the lock's duration; False if it was renewed too often."""
        if lock.is_over or lock.renewal_count >= SESSION_RENEWALS_MAX:
            return False
        duration_ms = self._queue.description.lock_duration_ms
        lock.renewal_count += 1
        lock.deadline_s = now.monotonic_s + duration_ms / 1000
        lock.locked_until_ms = now.wall_ms + duration_ms
        return True

    def release(self, lock: SessionLock, *, is_failure: bool) -> None:
        """End the lock: its unsettled messages are returned; they count as failed deliveries only
        if the lock has expired."""
        if lock.is_over:
            return
        lock.is_over = True
        del self._locks[lock.session]
        self._ready.pop(lock.stream, None)
        lock.stream.close()
        self.returning(lock.session)
        self._leaving.append((lock, is_failure))
        if len(lock.runs) <= RUNS_AT_ONCE and len(self._leaving) == 1:
            self.return_some()

    @property
    def has_returning(self) -> bool:
        """Messages of released sessions are still to be returned."""
        return bool(self._leaving)

    def return_some(self) -> None:
        """Return messages to their session, in the order in which the locks ended."""
        lock, is_failure = self._leaving[0]
        queue = self._queue
        for run in list(islice(lock.runs.values(), RUNS_AT_ONCE)):
            mask = run.unsettled
            queue.locks.release(run, mask)
            if is_failure:
                message_transitions.count_failed_delivery(queue, run.chunk, mask)
            else:
                message_transitions.restore_expiry(queue, run.chunk)
                message_transitions.return_to_queue(queue, run.chunk, mask)
        if not lock.runs:
            self._leaving.popleft()
            self.returned(lock.session)

    def lose_all(self) -> None:
        """End every lock as if it had expired."""
        for lock in list(self._locks.values()):
            self.release(lock, is_failure=True)
            self._notifications.append(lock.lost)

    # -- state ----------------------------------------------------------------------------

    def note_state(
        self, session: str, state: bytes | None, kept: bytes | None, ticket: CommitCallback
    ) -> bool:
        """Set the state of a session; ``ticket`` is called when it is on disk.

        ``kept`` is what a read found on disk; a newer state in memory has precedence.
        False if the quota of the queue has no room for it.
        """
        queue, recent = self._queue, self._states.get(session)
        before = _state_size(session, kept) if recent is None else recent.size
        size = _state_size(session, state)
        if size > before and not queue.has_room_for(size - before):
            return False
        queue.grow_states(size - before)
        pending = queue.batch.session_states.get(session)
        noted = NotedState(state, size, before if pending is None else pending.size_before)
        self._states[session] = queue.batch.session_states[session] = noted
        queue.batch.tickets.append(ticket)
        return True

    def noted_state(self, session: str) -> tuple[bytes | None] | None:
        """A state that may not be on disk yet, in a tuple; None if there is none."""
        noted = self._states.get(session)
        return None if noted is None else (noted.state,)

    def states_committed(self, states: dict[str, NotedState]) -> None:
        """These are on disk; a read that began before may still find the previous ones."""
        if states:
            self._queue.chunk_cache.grace.after_reads(partial(self._forget_states, states))

    def states_refused(self, states: dict[str, NotedState]) -> None:
        """The store refused these: the previous states are still valid."""
        later = self._queue.batch.session_states
        for session, noted in states.items():
            following = later.get(session)
            if following is None:
                self._queue.grow_states(noted.size_before - noted.size)
                self._states.pop(session, None)
            else:
                following = following._replace(size_before=noted.size_before)
                self._states[session] = later[session] = following

    def _forget_states(self, states: dict[str, NotedState]) -> None:
        for session, noted in states.items():
            if self._states.get(session) is noted:
                del self._states[session]

    # -- events of the queue --------------------------------------------------------------

    def stream_of(self, session: str) -> DeliveryStream | None:
        lock = self._locks.get(session)
        return None if lock is None else lock.stream

    def mark_ready(self, stream: DeliveryStream) -> None:
        """There may be messages to deliver."""
        self._ready[stream] = None

    def take_ready(self) -> list[DeliveryStream]:
        """The streams to deliver from; not those with messages that are still being returned.

        A receiver may mark the stream of a session that it has just lost, before it is notified.
        """
        ready, self._ready = self._ready, {}
        counts, stream_of = self._counts, self.stream_of
        locked = [stream for stream in ready if stream_of(stream.session or "") is stream]
        return [stream for stream in locked if not counts[stream.session or ""].returning_count]

    def arrived(self, chunk: Chunk) -> None:
        """A new chunk is on disk."""
        session = chunk.session or ""
        counts = self._counts.setdefault(session, _ActiveCounts())
        counts.active_count += chunk.count
        if counts.active_count > 0:
            self._filled.setdefault(session)
        counts.last_seq = chunk.last_seq
        stream = self.stream_of(session)
        if stream is None:
            self._queue.chunk_cache.put_back(chunk)
            self._offer(session)
        else:
            stream.append_committed(chunk)
            self.mark_ready(stream)

    def left(self, session: str, message_count: int) -> None:
        """Count messages that were removed or deferred, possibly before arrived() counted them."""
        counts = self._counts.setdefault(session, _ActiveCounts())
        counts.active_count -= message_count
        if counts.active_count <= 0:
            self._filled.pop(session, None)
        self._offer(session)

    def returning(self, session: str) -> None:
        """Messages will be returned when their delivery count is on disk."""
        self._counts.setdefault(session, _ActiveCounts()).returning_count += 1

    def returned(self, session: str) -> None:
        """The messages are returned."""
        self._counts[session].returning_count -= 1
        stream = self.stream_of(session)
        if stream is not None:
            self.mark_ready(stream)
        self._offer(session)

    def _offer(self, session: str) -> None:
        """A free session waits while it has messages; an empty one is removed."""
        counts = self._counts[session]
        if session in self._locks:
            return
        if counts.active_count > 0:
            self._free.setdefault(session)
            return
        self._free.pop(session, None)
        if counts.is_empty:
            del self._counts[session]

    # -- time -----------------------------------------------------------------------------

    def _note_time(self, timed: SessionLock | Waiter) -> None:
        if len(self._times) > 2 * (len(self._locks) + len(self._waiters)) + TIMES_SPARE:
            self._times = [entry for entry in self._times if not entry[2].is_over]
            heapify(self._times)
        heappush(self._times, (timed.deadline_s, next(self._ties), timed))

    def next_timer_s(self) -> float | None:
        """When expire() may have something to do."""
        for _ in range(OVER_AT_ONCE):
            if not self._times or not self._times[0][2].is_over:
                break
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def _end_if_over(self, session: str, now: Instant) -> None:
        """End an expired lock at once when its session is asked for."""
        lock = self._locks.get(session)
        if lock is not None and lock.deadline_s <= now.monotonic_s:
            self.release(lock, is_failure=True)
            self._notifications.append(lock.lost)

    def expire(self, now: Instant) -> None:
        """End expired locks, and notify receivers that have waited too long.

        Of many, the rest follows with a timer: next_timer_s() is in the past then.
        """
        left = OVER_AT_ONCE
        while left > 0 and self._times and self._times[0][0] <= now.monotonic_s:
            timed = heappop(self._times)[2]
            left -= 1
            if timed.is_over:
                continue
            if timed.deadline_s > now.monotonic_s:
                self._note_time(timed)
            elif isinstance(timed, SessionLock):
                left -= len(timed.runs)
                self.release(timed, is_failure=True)
                self._notifications.append(timed.lost)
            else:
                self.give_up(timed)
                self._notifications.append(timed.timed_out)
