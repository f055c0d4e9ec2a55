"""The sessions of one queue: who holds which, which have messages, and who waits for one.

    free --accept--> held --release (close, detach, lost connection)--> free
                      |  ^ renew
                      +--+--its time runs out--> free, and what was in hand counts as tried

Rule 1: a session has one holder, and only the holder is handed its messages. A message lock
        lasts exactly as long as the session's (rules M2, M3).
Rule 2: whoever asks for the next session gets the one that has waited longest; a session that
        was let go with messages left queues up behind the others.
Rule 3: what came back keeps its place: nothing later is handed out while the delivery count of
        an earlier message is still on its way to disk.
Rule 4: memory grows with the sessions that have messages, never with the messages.
Rule 5: a state counts against the quota of its queue, as a message does.
Rule 6: thousands of runs go back, and thousands of receivers are told, in turns. Until all runs of
        a session are back nothing of it is handed out.
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

# As with message locks: a day of one-minute locks, against a holder that is stuck.
SESSION_RENEWALS_MAX = 1_440
# Times of locks and waiters that are over, kept before they are swept together.
TIMES_SPARE = 256
# Runs of messages that go back at once when a session is let go; more go back in turns.
RUNS_AT_ONCE = 128
# Locks and waiters whose time has run out that are looked at in one go.
OVER_AT_ONCE = 128
# Receivers that are told something in one go; each takes up to 50 microseconds.
TOLD_AT_ONCE = 16

News = Callable[[], None]


@dataclass(slots=True, eq=False)
class SessionLock:
    """One session in the hands of one receiver."""

    session: str
    stream: DeliveryStream
    owner: object
    """The connection it belongs to; only that one may renew it or touch its state."""
    lost: News
    """Told when its time has run out, by whoever runs the machine."""
    deadline_s: float
    locked_until_ms: int
    renewal_count: int = 0
    is_over: bool = False
    runs: dict[int, LockRun] = field(default_factory=dict)
    """What its holder has in hand."""


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody who wants the next session that has messages."""

    owner: object
    deadline_s: float
    granted: Callable[[SessionLock], None]
    timed_out: News
    lost: News
    is_over: bool = False


@dataclass(slots=True)
class _Book:
    """What is known of a session with messages, or with a holder."""

    active_count: int = 0
    last_seq: int = 0
    returning_count: int = 0
    """Failed attempts that are not on disk yet."""

    @property
    def is_empty(self) -> bool:
        return not self.active_count and not self.returning_count


def _state_size(session: str, state: bytes | None) -> int:
    return 0 if state is None else session_state_bytes(session, state)


class Sessions:
    """Every session of a queue that somebody has, wants, or could be given."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._books: dict[str, _Book] = {}
        self._filled: dict[str, None] = {}
        """Sessions with messages, held or not, in the order in which they came to have some."""
        self._free: dict[str, None] = {}
        """Sessions with messages and without a holder, in the order in which they wait."""
        self._locks: dict[str, SessionLock] = {}
        self._waiters: dict[Waiter, None] = {}
        self._ready: dict[DeliveryStream, None] = {}
        self._times: list[tuple[float, int, SessionLock | Waiter]] = []
        self._ties = count()
        self._news: deque[News] = deque()
        self._leaving: deque[tuple[SessionLock, bool]] = deque()
        """Locks that are over, and have runs that are still to go back; whether as tried."""
        self._states: dict[str, NotedState] = {}
        """States that a read may not find on disk yet."""

    def recover(self, books: Iterable[SessionCounts], state_bytes: int = 0) -> None:
        """What the store holds, oldest session first."""
        self._queue.grow_states(state_bytes)
        for book in books:
            self._books[book.session] = _Book(book.active_count, book.last_seq)
            if book.active_count > 0:
                self._filled[book.session] = None
            self._offer(book.session)

    def tell_some(self) -> bool:
        """Tell receivers what they must be told, or some of them; whether others are left."""
        for _ in range(min(len(self._news), TOLD_AT_ONCE)):
            self._news.popleft()()
        return bool(self._news)

    def names(self, skip: int = 0, count_max: int | None = None) -> list[str]:
        """Sessions that have messages, in the order in which they came to have some."""
        return list(islice(self._filled, skip, None if count_max is None else skip + count_max))

    def __len__(self) -> int:
        return len(self._locks)

    # -- holding --------------------------------------------------------------------------

    def accept(self, session: str, owner: object, lost: News, now: Instant) -> SessionLock | None:
        """Take a session by name, whether it has messages or not; None when it is held."""
        self._end_if_over(session, now)
        return None if session in self._locks else self._lock(session, owner, lost, now)

    def wait(self, waiter: Waiter) -> None:
        """Take the next session that has messages, now or later."""
        self._waiters[waiter] = None
        self._note_time(waiter)

    def give_up(self, waiter: Waiter) -> None:
        """Nobody wants it any more."""
        waiter.is_over = True
        self._waiters.pop(waiter, None)

    def serve_waiters(self, now: Instant) -> None:
        """Give free sessions to those who wait, first come, first served; to a few at once."""
        while self._waiters and self._free:
            if len(self._news) >= TOLD_AT_ONCE:
                self._queue.has_more = True
                return
            waiter, session = next(iter(self._waiters)), next(iter(self._free))
            self.give_up(waiter)
            lock = self._lock(session, waiter.owner, waiter.lost, now)
            self._news.append(partial(waiter.granted, lock))

    def _lock(self, session: str, owner: object, lost: News, now: Instant) -> SessionLock:
        self._free.pop(session, None)
        book = self._books.setdefault(session, _Book())
        duration_ms = self._queue.description.lock_duration_ms
        lock = SessionLock(
            session,
            DeliveryStream(self._queue.chunk_cache, book.last_seq, session),
            owner,
            lost,
            now.monotonic_s + duration_ms / 1000,
            now.wall_ms + duration_ms,
        )
        self._locks[session] = lock
        self._note_time(lock)
        return lock

    def held_by(self, session: str, owner: object, now: Instant) -> SessionLock | None:
        """The lock on a session, if it is the owner's."""
        self._end_if_over(session, now)
        lock = self._locks.get(session)
        return lock if lock is not None and lock.owner is owner else None

    def renew(self, lock: SessionLock, now: Instant) -> bool:
        """Begin the lock's time anew; False when that has been done too often."""
        if lock.is_over or lock.renewal_count >= SESSION_RENEWALS_MAX:
            return False
        duration_ms = self._queue.description.lock_duration_ms
        lock.renewal_count += 1
        lock.deadline_s = now.monotonic_s + duration_ms / 1000
        lock.locked_until_ms = now.wall_ms + duration_ms
        return True

    def release(self, lock: SessionLock, *, is_failure: bool) -> None:
        """The holder is gone: what it had in hand goes back, as tried only if its time ran out."""
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
        """Messages of sessions that were let go are still to go back."""
        return bool(self._leaving)

    def return_some(self) -> None:
        """Have messages go back to their session, in the order in which locks ended."""
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
        """Every lock is lost, as if its time had run out."""
        for lock in list(self._locks.values()):
            self.release(lock, is_failure=True)
            self._news.append(lock.lost)

    # -- state ----------------------------------------------------------------------------

    def note_state(
        self, session: str, state: bytes | None, kept: bytes | None, ticket: CommitCallback
    ) -> bool:
        """Keep what the holder noted down; ``ticket`` hears when it is on disk.

        ``kept`` is what a read found on disk; what is known to be newer counts instead of it.
        False when the queue has no room for more.
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
        """A state that a read may not have seen, in a tuple; None when there is none."""
        noted = self._states.get(session)
        return None if noted is None else (noted.state,)

    def states_landed(self, states: dict[str, NotedState]) -> None:
        """These are on disk; who has begun to read may still find the one before."""
        if states:
            self._queue.chunk_cache.grace.after_reads(partial(self._forget_states, states))

    def states_refused(self, states: dict[str, NotedState]) -> None:
        """The store refused these: what it had before is still there."""
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

    # -- what the queue tells -------------------------------------------------------------

    def stream_of(self, session: str) -> DeliveryStream | None:
        lock = self._locks.get(session)
        return None if lock is None else lock.stream

    def mark_ready(self, lane: DeliveryStream) -> None:
        """There may be something to hand out."""
        self._ready[lane] = None

    def take_ready(self) -> list[DeliveryStream]:
        """The lanes to look at; one with a message still on its way back is not.

        A receiver may wake a lane whose session it has just lost, before it hears of that.
        """
        ready, self._ready = self._ready, {}
        books, lane_of = self._books, self.stream_of
        held = [lane for lane in ready if lane_of(lane.session or "") is lane]
        return [lane for lane in held if not books[lane.session or ""].returning_count]

    def arrived(self, chunk: Chunk) -> None:
        """A new chunk is on disk."""
        session = chunk.session or ""
        book = self._books.setdefault(session, _Book())
        book.active_count += chunk.count
        if book.active_count > 0:
            self._filled.setdefault(session)
        book.last_seq = chunk.last_seq
        lane = self.stream_of(session)
        if lane is None:
            self._queue.chunk_cache.put_back(chunk)
            self._offer(session)
        else:
            lane.append_committed(chunk)
            self.mark_ready(lane)

    def left(self, session: str, message_count: int) -> None:
        """So many messages are gone or put aside. They may be faster than their arrival."""
        book = self._books.setdefault(session, _Book())
        book.active_count -= message_count
        if book.active_count <= 0:
            self._filled.pop(session, None)
        self._offer(session)

    def returning(self, session: str) -> None:
        """Messages come back once their delivery count is on disk."""
        self._books.setdefault(session, _Book()).returning_count += 1

    def returned(self, session: str) -> None:
        """They are back."""
        self._books[session].returning_count -= 1
        lane = self.stream_of(session)
        if lane is not None:
            self.mark_ready(lane)
        self._offer(session)

    def _offer(self, session: str) -> None:
        """A free session waits while it has messages; an empty one is forgotten."""
        book = self._books[session]
        if session in self._locks:
            return
        if book.active_count > 0:
            self._free.setdefault(session)
            return
        self._free.pop(session, None)
        if book.is_empty:
            del self._books[session]

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
        """Whoever asks about one session need not wait until its turn has come to be ended."""
        lock = self._locks.get(session)
        if lock is not None and lock.deadline_s <= now.monotonic_s:
            self.release(lock, is_failure=True)
            self._news.append(lock.lost)

    def expire(self, now: Instant) -> None:
        """Locks that ran out are lost, and who waited long enough is told so.

        Of many, the rest comes with a timer: next_timer_s() is in the past then.
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
                self._news.append(timed.lost)
            else:
                self.give_up(timed)
                self._news.append(timed.timed_out)
