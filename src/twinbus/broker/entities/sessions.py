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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING

from twinbus.broker.entities import fates
from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.lane import Lane
from twinbus.broker.entities.locks import LockRun
from twinbus.broker.store.port import SessionBook
from twinbus.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.entities.batch import Ticket
    from twinbus.broker.entities.queue import Queue

# As with message locks: a day of one-minute locks, against a holder that is stuck.
SESSION_RENEWALS_MAX = 1_440
# Times of locks and waiters that are over, kept before they are swept together.
TIMES_SPARE = 256

News = Callable[[], None]


@dataclass(slots=True, eq=False)
class SessionLock:
    """One session in the hands of one receiver."""

    session: str
    lane: Lane
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


class Sessions:
    """Every session of a queue that somebody has, wants, or could be given."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._books: dict[str, _Book] = {}
        self._free: dict[str, None] = {}
        """Sessions with messages and without a holder, in the order in which they wait."""
        self._locks: dict[str, SessionLock] = {}
        self._waiters: dict[Waiter, None] = {}
        self._ready: dict[Lane, None] = {}
        self._times: list[tuple[float, int, SessionLock | Waiter]] = []
        self._ties = count()
        self._news: list[News] = []

    def recover(self, books: Iterable[SessionBook]) -> None:
        """What the store holds, oldest session first."""
        for book in books:
            self._books[book.session] = _Book(book.active_count, book.last_seq)
            self._offer(book.session)

    def take_news(self) -> list[News]:
        """What receivers must be told now."""
        news, self._news = self._news, []
        return news

    def names(self, skip: int = 0, count_max: int | None = None) -> list[str]:
        """Sessions that have messages, in the order in which they came to have some."""
        filled = (name for name, book in self._books.items() if book.active_count > 0)
        return list(islice(filled, skip, None if count_max is None else skip + count_max))

    def __len__(self) -> int:
        return len(self._locks)

    # -- holding --------------------------------------------------------------------------

    def accept(self, session: str, owner: object, lost: News, now: Instant) -> SessionLock | None:
        """Take a session by name, whether it has messages or not; None when it is held."""
        self.expire(now)
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
        """Give free sessions to those who wait, first come, first served."""
        while self._waiters and self._free:
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
            Lane(self._queue.shelf, book.last_seq, session),
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
        self.expire(now)
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
        queue = self._queue
        del self._locks[lock.session]
        self._ready.pop(lock.lane, None)
        for run in list(lock.runs.values()):
            mask = run.unsettled
            queue.locks.release(run, mask)
            if is_failure:
                fates.fail_attempt(queue, run.chunk, mask)
            else:
                fates.restore_expiry(queue, run.chunk)
                fates.give_back(queue, run.chunk, mask)
        lock.lane.close()
        if lock.session in self._books:
            # Otherwise its last message has just gone to the dead letters, and it with it.
            self._offer(lock.session)

    def lose_all(self) -> None:
        """Every lock is lost, as if its time had run out."""
        for lock in list(self._locks.values()):
            self.release(lock, is_failure=True)
            self._news.append(lock.lost)

    # -- state ----------------------------------------------------------------------------

    def note_state(self, session: str, state: bytes | None, ticket: Ticket) -> None:
        """Keep what the holder noted down; ``ticket`` hears when it is on disk."""
        self._queue.batch.session_states[session] = state
        self._queue.batch.tickets.append(ticket)

    def noted_state(self, session: str) -> tuple[bytes | None] | None:
        """A state that is still on its way to disk, in a tuple; None when there is none."""
        for batch in (self._queue.batch, self._queue.in_flight):
            if batch is not None and session in batch.session_states:
                return (batch.session_states[session],)
        return None

    # -- what the queue tells -------------------------------------------------------------

    def lane_of(self, session: str) -> Lane | None:
        lock = self._locks.get(session)
        return None if lock is None else lock.lane

    def stir(self, lane: Lane) -> None:
        """There may be something to hand out."""
        self._ready[lane] = None

    def take_ready(self) -> list[Lane]:
        """The lanes to look at; one with a message still on its way back is not.

        A receiver may wake a lane whose session it has just lost, before it hears of that.
        """
        ready, self._ready = self._ready, {}
        books, lane_of = self._books, self.lane_of
        held = [lane for lane in ready if lane_of(lane.session or "") is lane]
        return [lane for lane in held if not books[lane.session or ""].returning_count]

    def arrived(self, chunk: Chunk) -> None:
        """A new chunk is on disk."""
        session = chunk.session or ""
        book = self._books.setdefault(session, _Book())
        book.active_count += chunk.count
        book.last_seq = chunk.last_seq
        lane = self.lane_of(session)
        if lane is None:
            self._queue.shelf.put_back(chunk)
            self._offer(session)
        else:
            lane.append_committed(chunk)
            self.stir(lane)

    def left(self, session: str, message_count: int) -> None:
        """So many messages are gone or put aside. They may be faster than their arrival."""
        book = self._books.setdefault(session, _Book())
        book.active_count -= message_count
        self._offer(session)

    def returning(self, session: str) -> None:
        """Messages come back once their delivery count is on disk."""
        self._books.setdefault(session, _Book()).returning_count += 1

    def returned(self, session: str) -> None:
        """They are back."""
        self._books[session].returning_count -= 1
        lane = self.lane_of(session)
        if lane is not None:
            self.stir(lane)
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
        while self._times and self._times[0][2].is_over:
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def expire(self, now: Instant) -> None:
        """Locks that ran out are lost, and who waited long enough is told so."""
        while self._times and self._times[0][0] <= now.monotonic_s:
            timed = heappop(self._times)[2]
            if timed.is_over:
                continue
            if timed.deadline_s > now.monotonic_s:
                self._note_time(timed)
            elif isinstance(timed, SessionLock):
                self.release(timed, is_failure=True)
                self._news.append(timed.lost)
            else:
                self.give_up(timed)
                self._news.append(timed.timed_out)
