"""The store port in memory: for tests, and for a broker that may forget.

Same rules, same refusals, same order as the durable driver; the contract suite runs over both.

Rule 1: a commit that is refused half-way is undone step by step, so it is whole or nothing.
Rule 2: one lock stands for the two threads' separate connections.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from threading import Lock
from typing import TypeVar, assert_never

from twinbus.broker.store.arguments import KnownQueues, validate_operations
from twinbus.broker.store.port import (
    LOAD_MESSAGES_MAX,
    NO_BYTES_MAX,
    ClearState,
    DeleteChunks,
    DeleteEntity,
    DeleteScheduled,
    EntityRow,
    ForgetSeen,
    LoadedChunk,
    MetaValue,
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
    ScheduledRow,
    SetChunkExpiry,
    StoreStatistics,
    Tombstone,
)
from twinbus.broker.store.shelf import MemoryQueueRows, Table, Undo
from twinbus.errors import StoreFailed

_Row = TypeVar("_Row")


def _up_to(bytes_max: int, rows: Iterable[_Row], blob_of: Callable[[_Row], bytes]) -> list[_Row]:
    """The rows up to the one with which their blobs reach ``bytes_max``."""
    found: list[_Row] = []
    for row in rows:
        found.append(row)
        bytes_max -= len(blob_of(row))
        if bytes_max <= 0:
            break
    return found


class MemoryStore:
    """The forgetful driver of the store port; reopening one object finds what it held."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_open = False
        self._commit_number = 0
        self._roster = KnownQueues()
        self._entities: Table[EntityRow] = Table()
        self._counters: Table[QueueCounters] = Table()
        self._meta: Table[MetaValue] = Table()
        self._queues: Table[MemoryQueueRows] = Table()

    def open(self) -> Recovered:
        if self._is_open:
            raise StoreFailed(path=":memory:", detail="it is open already")
        self._is_open = True
        queues = self._queues.rows.items()
        entities = sorted(self._entities.rows.values(), key=lambda entity: entity.queue_id)
        return Recovered(
            entities,
            dict(self._counters.rows),
            dict(self._meta.rows),
            self._roster.queue_id_last + 1,
            {queue_id: seen for queue_id, queue in queues if (seen := queue.seen())},
            {queue_id: books for queue_id, queue in queues if (books := queue.session_books())},
            {queue_id: size for queue_id, queue in queues if (size := queue.state_bytes())},
        )

    def commit(self, ops: Sequence[Op]) -> None:
        self._require_open()
        admitted, changes = validate_operations(ops, self._roster)
        if not admitted:
            return
        undo = Undo()
        with self._lock:
            try:
                for op in admitted:
                    self._apply(op, undo)
            except BaseException:
                undo.roll_back()
                raise
            if changes is not None:
                self._roster.apply(changes)
            self._commit_number += 1

    def _apply(self, op: Op, undo: Undo) -> None:
        match op:
            case PutEntity(entity):
                if entity.queue_id not in self._queues.rows:
                    undo.change(self._queues.set, entity.queue_id, MemoryQueueRows())
                undo.change(self._entities.set, entity.queue_id, entity)
            case DeleteEntity(queue_id):
                undo.change(self._queues.set, queue_id, None)
                undo.change(self._entities.set, queue_id, None)
                undo.change(self._counters.set, queue_id, None)
            case PutCounters(counters):
                undo.change(self._counters.set, counters.queue_id, counters)
            case PutMeta(key, value):
                undo.change(self._meta.set, key, value)
            case PutChunk(row, share):
                self._queues.rows[row.queue_id].put_chunk(row, share, undo)
            case PutSeen(seen):
                self._queues.rows[seen.queue_id].put_seen(seen, undo)
            case _:
                self._apply_to_queue(op, self._queues.rows[op.queue_id], undo)

    def _apply_to_queue(
        self,
        op: DeleteChunks
        | Tombstone
        | PutState
        | ClearState
        | SetChunkExpiry
        | PutScheduled
        | DeleteScheduled
        | ForgetSeen
        | PutSessionState,
        queue: MemoryQueueRows,
        undo: Undo,
    ) -> None:
        match op:
            case DeleteChunks(_, first_seq, last_seq):
                queue.delete_chunks(first_seq, last_seq, undo)
            case Tombstone(_, first_seq, last_seq):
                queue.bury(first_seq, last_seq, undo)
            case PutState(_, seq, delivery_count, deferred):
                undo.change(queue.set_state, seq, (delivery_count, bool(deferred)))
            case ClearState(_, first_seq, last_seq):
                queue.clear_states(first_seq, last_seq, undo)
            case SetChunkExpiry(_, first_seq, expires_ms):
                queue.set_expiry(first_seq, expires_ms, undo)
            case PutScheduled(queue_id, seq, due_ms, blob):
                queue.put_scheduled(ScheduledRow(queue_id, seq, due_ms, blob), undo)
            case DeleteScheduled(_, seq):
                undo.change(queue.set_scheduled, seq, None)
            case ForgetSeen(_, through_page):
                queue.forget_seen(through_page, undo)
            case PutSessionState(_, session, state, updated_ms):
                noted = None if state is None else (state, updated_ms)
                undo.change(queue.set_session_state, session, noted)
            case _:
                assert_never(op)

    def load_chunks(
        self,
        queue_id: int,
        after_seq: int,
        bytes_max: int,
        count_max: int,
        session: str | None = None,
    ) -> list[LoadedChunk]:
        chunks: list[LoadedChunk] = []
        messages_max = LOAD_MESSAGES_MAX
        with self._lock:
            queue = self._queue(queue_id)
            keys = queue.chunk_keys if session is None else queue.session_keys(session)
            for first_seq in islice(keys.starting(after_seq + 1), count_max):
                chunks.append(queue.loaded(first_seq))
                bytes_max -= len(chunks[-1].row.blob)
                messages_max -= chunks[-1].row.count
                if bytes_max <= 0 or messages_max <= 0:
                    break
        return chunks

    def load_chunk_holding(self, queue_id: int, seq: int) -> LoadedChunk | None:
        with self._lock:
            queue = self._queue(queue_id)
            row = queue.chunk_holding(seq)
            return None if row is None else queue.loaded(row.first_seq)

    def load_expired(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[LoadedChunk]:
        with self._lock:
            queue = self._queue(queue_id)
            expired = takewhile(lambda key: key[0] <= now_ms, queue.expiry_keys)
            found = (queue.loaded(first_seq) for _, first_seq in islice(expired, count_max))
            return _up_to(bytes_max, found, lambda chunk: chunk.row.blob)

    def next_expiry(self, queue_id: int) -> int | None:
        with self._lock:
            first = self._queue(queue_id).expiry_keys.first()
            return None if first is None else first[0]

    def load_due(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        with self._lock:
            queue = self._queue(queue_id)
            due = takewhile(lambda key: key[0] <= now_ms, queue.due_keys)
            found = (queue.scheduled(seq) for _, seq in islice(due, count_max))
            return _up_to(bytes_max, found, lambda row: row.blob)

    def next_due(self, queue_id: int) -> int | None:
        with self._lock:
            first = self._queue(queue_id).due_keys.first()
            return None if first is None else first[0]

    def load_scheduled(
        self, queue_id: int, after_seq: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        with self._lock:
            queue = self._queue(queue_id)
            seqs = islice(queue.scheduled_keys.starting(after_seq + 1), count_max)
            return _up_to(bytes_max, map(queue.scheduled, seqs), lambda row: row.blob)

    def load_deferred_seqs(self, queue_id: int, after_seq: int, count_max: int) -> list[int]:
        with self._lock:
            keys = self._queue(queue_id).deferred_keys
            return list(islice(keys.starting(after_seq + 1), count_max))

    def load_session_state(self, queue_id: int, session: str) -> bytes | None:
        with self._lock:
            return self._queue(queue_id).session_states.get(session, (None, 0))[0]

    def load_sessions_updated(
        self, queue_id: int, since_ms: int, after: str | None, count_max: int
    ) -> tuple[list[str], str | None]:
        with self._lock:
            states = self._queue(queue_id).session_states
            # As UTF-8, like the durable driver.
            names = sorted(states, key=str.encode)
            begin = 0 if after is None else bisect_right(names, after.encode(), key=str.encode)
            looked_at = names[begin : begin + count_max]
            updated = [name for name in looked_at if states[name][1] >= since_ms]
            return updated, looked_at[-1] if len(looked_at) == count_max else None

    def maintain(self) -> bool:
        self._require_open()
        return False

    def verify_all(self) -> None:
        self._require_open()

    def statistics(self) -> StoreStatistics:
        self._require_open()
        return StoreStatistics(0, 0, 0, 0, self._commit_number, "memory")

    def close(self) -> None:
        self._is_open = False

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreFailed(path=":memory:", detail="it is not open")

    def _queue(self, queue_id: int) -> MemoryQueueRows:
        self._require_open()
        return self._queues.rows.get(queue_id) or MemoryQueueRows()
