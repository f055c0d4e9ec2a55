"""A caller that keeps its books right, whatever it is told to do.

It stands for the broker: every method makes a random but allowed change and returns the ops for
it, counters included. Property tests and crash tests share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from twinbus.broker.storage.interface import (
    SEQ_MAX,
    ChunkRow,
    DeleteChunks,
    DeleteEntity,
    DeleteScheduled,
    EntityRow,
    ForgetSeen,
    Op,
    PutChunk,
    PutCounters,
    PutEntity,
    PutMeta,
    PutScheduled,
    PutSeen,
    PutSessionState,
    PutState,
    QueueCounters,
    Recovered,
    SeenRow,
    SetChunkExpiry,
    Store,
    Tombstone,
)
from verification.crash_consistency.builders import share_of, sheet_of

QUEUES_MAX = 4
CHUNK_MESSAGES_MAX = 12
SESSIONS = ("", "a", "é")


@dataclass
class QueueBooks:
    """What the caller knows about one queue."""

    queue_id: int
    next_seq: int = 1
    chunks: dict[int, set[int]] = field(default_factory=dict)
    """first_seq -> the messages that are not settled."""
    deferred: set[int] = field(default_factory=set)
    scheduled: set[int] = field(default_factory=set)
    seen_page: int = 0

    def take_seqs(self, count: int) -> int:
        first_seq, self.next_seq = self.next_seq, self.next_seq + count
        return first_seq

    def counters(self) -> PutCounters:
        messages = sum(map(len, self.chunks.values()))
        return PutCounters(
            QueueCounters(
                self.queue_id,
                self.next_seq,
                messages,
                messages * 10,
                len(self.deferred),
                len(self.scheduled),
            )
        )


class Workload:
    """Random work with right books."""

    def __init__(self, blob_bytes_max: int = 400) -> None:
        self._blob_bytes_max = blob_bytes_max
        self._next_queue_id = 1
        self.queues: dict[int, QueueBooks] = {}

    def anything(self, random: Random) -> list[Op]:
        """Ops of one commit: one to three changes of any kind."""
        ops: list[Op] = []
        for _ in range(random.randint(1, 3)):
            ops += random.choice(self._CHANGES)(self, random)
        return ops or self.put_meta(random)

    def create_queue(self, random: Random) -> list[Op]:
        if len(self.queues) >= QUEUES_MAX:
            return []
        queue_id = self._next_queue_id
        self._next_queue_id += random.randint(1, 3)
        self.queues[queue_id] = QueueBooks(queue_id)
        return [PutEntity(EntityRow(queue_id, f"queue/{queue_id}", "queue", "{}"))]

    def delete_queue(self, random: Random) -> list[Op]:
        if len(self.queues) < 2:
            return []
        queue_id = random.choice(sorted(self.queues))
        del self.queues[queue_id]
        return [DeleteEntity(queue_id)]

    def send(self, random: Random) -> list[Op]:
        books = self._any_queue(random)
        if books is None:
            return self.create_queue(random)
        count = random.randint(1, CHUNK_MESSAGES_MAX)
        first_seq = books.take_seqs(count)
        books.chunks[first_seq] = set(range(first_seq, first_seq + count))
        expires_ms = random.choice((None, random.randint(1, 50)))
        row = ChunkRow(
            books.queue_id,
            first_seq,
            count,
            random.randint(0, 99),
            expires_ms,
            self._blob(random),
            _session_in(books, random),
        )
        return [PutChunk(row), books.counters()]

    def publish(self, random: Random) -> list[Op]:
        """Several queues get a part of the same messages, or all of them."""
        records = [self._blob(random) for _ in range(random.randint(1, CHUNK_MESSAGES_MAX))]
        sheet = sheet_of(*records)
        ops: list[Op] = []
        for books in self.queues.values():
            if random.random() < 0.8:
                whole = range(len(records))
                some = random.sample(whole, random.randint(1, len(records)))
                places = whole if random.random() < 0.5 else some
                first_seq = books.take_seqs(len(places))
                books.chunks[first_seq] = set(range(first_seq, first_seq + len(places)))
                row = {"first_seq": first_seq, "queue_id": books.queue_id}
                put = share_of(sheet, records, places, **row)
                session = _session_in(books, random)
                ops += [replace(put, row=replace(put.row, session=session)), books.counters()]
        return ops

    def settle(self, random: Random) -> list[Op]:
        """Settle a run inside a chunk; the chunk goes with its last message."""
        books, first_seq = self._any_chunk(random)
        if books is None:
            return []
        left = books.chunks[first_seq]
        run = _run_in(left, random)
        left.difference_update(run)
        books.deferred.difference_update(run)
        if left:
            return [Tombstone(books.queue_id, run[0], run[-1]), books.counters()]
        del books.chunks[first_seq]
        return [DeleteChunks(books.queue_id, first_seq, first_seq), books.counters()]

    def settle_chunks(self, random: Random) -> list[Op]:
        """Settle everything up to a message, as a fast receiver does."""
        books, last_seq = self._any_chunk(random)
        if books is None:
            return []
        for first_seq in [seq for seq in books.chunks if seq <= last_seq]:
            books.deferred -= books.chunks.pop(first_seq)
        return [DeleteChunks(books.queue_id, 1, last_seq), books.counters()]

    def deliver(self, random: Random) -> list[Op]:
        """Raise a delivery count; sometimes defer the message or bring it back."""
        books, first_seq = self._any_chunk(random)
        if books is None:
            return []
        seq, deferred = random.choice(sorted(books.chunks[first_seq])), random.random() < 0.4
        books.deferred.discard(seq)
        if deferred:
            books.deferred.add(seq)
        state = PutState(books.queue_id, seq, random.randint(1, 9), deferred)
        return [state, books.counters()]

    def move_expiry(self, random: Random) -> list[Op]:
        books, first_seq = self._any_chunk(random)
        if books is None:
            return []
        expires_ms = random.choice((None, random.randint(1, 50)))
        return [SetChunkExpiry(books.queue_id, first_seq, expires_ms)]

    def schedule(self, random: Random) -> list[Op]:
        books = self._any_queue(random)
        if books is None:
            return []
        count = random.randint(1, 3)
        first_seq = books.take_seqs(count)
        seqs = range(first_seq, first_seq + count)
        books.scheduled.update(seqs)
        puts = [
            PutScheduled(books.queue_id, seq, random.randint(1, 50), self._blob(random))
            for seq in seqs
        ]
        return [*puts, books.counters()]

    def activate(self, random: Random) -> list[Op]:
        """A scheduled message becomes due, or is cancelled."""
        books = self._any_queue(random)
        if books is None or not books.scheduled:
            return []
        seq = random.choice(sorted(books.scheduled))
        books.scheduled.remove(seq)
        ops: list[Op] = [DeleteScheduled(books.queue_id, seq)]
        if random.random() < 0.7:
            first_seq = books.take_seqs(1)
            books.chunks[first_seq] = {first_seq}
            session = _session_in(books, random)
            row = ChunkRow(books.queue_id, first_seq, 1, 5, None, self._blob(random), session)
            ops.append(PutChunk(row))
        return [*ops, books.counters()]

    def remember(self, random: Random) -> list[Op]:
        """Note ids that were seen, and sometimes forget the oldest."""
        books = self._any_queue(random)
        if books is None:
            return []
        books.seen_page += 1
        row = SeenRow(books.queue_id, books.seen_page, random.randint(0, 99), random.randbytes(32))
        ops: list[Op] = [PutSeen(row)]
        if random.random() < 0.3:
            ops.append(ForgetSeen(books.queue_id, random.randint(1, books.seen_page)))
        return ops

    def note_session_state(self, random: Random) -> list[Op]:
        books = self._any_queue(random)
        if books is None:
            return []
        state = random.choice((None, self._blob(random)))
        session = random.choice(SESSIONS)
        return [PutSessionState(books.queue_id, session, state, random.randint(1, 50))]

    def put_meta(self, random: Random) -> list[Op]:
        return [PutMeta(random.choice("abc"), random.randint(0, 99))]

    _CHANGES = (
        create_queue, delete_queue, send, send, send, publish, publish, settle, settle,
        settle_chunks, deliver, deliver, move_expiry, schedule, activate, remember,
        note_session_state, put_meta,
    )  # fmt: skip

    def _blob(self, random: Random) -> bytes:
        return random.randbytes(random.randint(0, self._blob_bytes_max))

    def _any_queue(self, random: Random) -> QueueBooks | None:
        return self.queues[random.choice(sorted(self.queues))] if self.queues else None

    def _any_chunk(self, random: Random) -> tuple[QueueBooks | None, int]:
        filled = [books for books in self.queues.values() if books.chunks]
        if not filled:
            return None, 0
        books = random.choice(filled)
        return books, random.choice(sorted(books.chunks))


def _has_sessions(queue_id: int) -> bool:
    """Every third queue has them, and then every chunk has one."""
    return queue_id % 3 == 0


def _session_in(books: QueueBooks, random: Random) -> str | None:
    return random.choice(SESSIONS) if _has_sessions(books.queue_id) else None


def _run_in(seqs: set[int], random: Random) -> list[int]:
    """A random run of consecutive members."""
    run = [random.choice(sorted(seqs))]
    while run[-1] + 1 in seqs and random.random() < 0.7:
        run.append(run[-1] + 1)
    return run


def content(store: Store, recovered: Recovered) -> dict[str, Any]:
    """Everything that a store says about itself, ready to be compared."""
    queues = {
        entity.queue_id: (
            store.load_chunks(entity.queue_id, 0, 1 << 30, 1_000_000),
            store.load_scheduled(entity.queue_id, 0, 1_000_000),
            store.load_deferred_seqs(entity.queue_id, 0, 1_000_000),
            answers_about_sessions(store, entity.queue_id, 0),
        )
        for entity in recovered.entities
    }
    return {
        "entities": recovered.entities,
        "counters": recovered.counters,
        "meta": recovered.meta,
        "next_queue_id": recovered.next_queue_id,
        "seen": recovered.seen,
        "sessions": recovered.sessions,
        "state_bytes": recovered.state_bytes,
        "queues": queues,
    }


def answers_about_sessions(store: Store, queue_id: int, after_seq: int) -> Any:
    """What a store answers to the questions about sessions."""
    sessions = SESSIONS if _has_sessions(queue_id) else ()
    return (
        [store.load_chunks(queue_id, after_seq, 900, 9, session) for session in sessions],
        [store.load_session_state(queue_id, session) for session in SESSIONS],
        [store.load_sessions_updated(queue_id, 20, after, 2) for after in (None, *SESSIONS)],
    )


def answers_in_time(store: Store, queue_id: int, now_ms: int) -> Any:
    """What a store answers to the questions that depend on the time."""
    return (
        store.load_expired(queue_id, now_ms, 5),
        store.load_due(queue_id, now_ms, 5),
        store.next_expiry(queue_id),
        store.next_due(queue_id),
        [store.load_chunk_holding(queue_id, seq) for seq in (1, now_ms, SEQ_MAX)],
    )
