"""The store in memory: for tests, and for a broker whose messages end with its process.

SortedKeys         ascending keys, cheap at both ends
MemoryQueueRows    the rows of one queue, and the orders in which they are read
MemoryStore        the interface, with the same refusals and the same order as the durable driver;
                   the contract tests run over both

Rule 1: every change is a ``set_*`` that takes a key and a value (None: no row) and returns the
        previous value, so that undoing is setting it back.
Rule 2: indexes change only in here, together with their rows.
Rule 3: a commit that is refused half-way is undone step by step, so it is whole or nothing.
Rule 4: one lock replaces the separate connections of the two threads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar, assert_never

from twinbus.broker.storage.interface import (
    LOAD_MESSAGES_MAX,
    NO_BYTES_MAX,
    SEQ_MAX,
    ChunkRow,
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
    SeenRow,
    SessionCounts,
    SetChunkExpiry,
    SharedBodySelection,
    StoreStatistics,
    Tombstone,
    session_state_bytes,
)
from twinbus.broker.storage.operation_checks import KnownQueues, validate_operations
from twinbus.broker.storage.shared_bodies import pack_selection, select
from twinbus.errors import StoreFailed

Key = TypeVar("Key", int, tuple[int, int])


class SortedKeys(Generic[Key]):
    """A sorted set.

    Sequence numbers arrive in ascending order and leave mostly from the front, so a list with a
    moving head serves a queue of a million messages without moving a million references each time.
    """

    __slots__ = ("_head", "_keys")

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._keys) - self._head

    def __iter__(self) -> Iterator[Key]:
        return islice(self._keys, self._head, None)

    def add(self, key: Key) -> None:
        if not self._keys or self._keys[-1] < key:
            self._keys.append(key)
        else:
            insort(self._keys, key, self._head)

    def remove(self, key: Key) -> None:
        at = bisect_left(self._keys, key, self._head)
        if at > self._head:
            del self._keys[at]
            return
        self._head += 1
        # Half of the list is unused: the removals since have paid for the cost of freeing it.
        if self._head * 2 > len(self._keys):
            del self._keys[: self._head]
            self._head = 0

    def first(self) -> Key | None:
        return self._keys[self._head] if len(self) else None

    def starting(self, key: Key) -> Iterator[Key]:
        """The keys at or above ``key``, ascending; the set must not change meanwhile."""
        for at in range(bisect_left(self._keys, key, self._head), len(self._keys)):
            yield self._keys[at]

    def between(self, first: Key, last: Key) -> list[Key]:
        low = bisect_left(self._keys, first, self._head)
        high = bisect_left(self._keys, last, low)
        high += high < len(self._keys) and self._keys[high] == last
        return self._keys[low:high]

    def at_or_before(self, key: Key) -> Key | None:
        at = bisect_left(self._keys, key, self._head)
        if at < len(self._keys) and self._keys[at] == key:
            return key
        return self._keys[at - 1] if at > self._head else None


Run: TypeAlias = tuple[int, int]
State: TypeAlias = tuple[int, bool]
_Value = TypeVar("_Value")


class Undo:
    """The changes of one commit, so that it can be rolled back."""

    def __init__(self) -> None:
        self._done: list[tuple[Callable[[Any, Any], Any], Any, Any]] = []

    def change(self, setter: Callable[[Any, Any], Any], key: Any, value: Any) -> None:
        self._done.append((setter, key, setter(key, value)))

    def roll_back(self) -> None:
        for setter, key, previous in reversed(self._done):
            setter(key, previous)


class Table(Generic[_Value]):
    """A dictionary that can be undone."""

    def __init__(self) -> None:
        self.rows: dict[Any, _Value] = {}

    def set(self, key: Any, value: _Value | None) -> _Value | None:
        previous = self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = value
        return previous


class MemoryQueueRows:
    """All rows of one queue."""

    def __init__(self) -> None:
        self._chunks: dict[int, ChunkRow] = {}
        self._gone: dict[int, list[Run]] = {}
        self._shares: dict[int, SharedBodySelection] = {}
        self._states: dict[int, State] = {}
        self._scheduled: dict[int, ScheduledRow] = {}
        self._seen: dict[int, SeenRow] = {}
        self.session_states: dict[str, tuple[bytes, int]] = {}
        self._session_keys: dict[str, SortedKeys[int]] = {}
        self.chunk_keys: SortedKeys[int] = SortedKeys()
        self.expiry_keys: SortedKeys[tuple[int, int]] = SortedKeys()
        self.state_keys: SortedKeys[int] = SortedKeys()
        self.deferred_keys: SortedKeys[int] = SortedKeys()
        self.scheduled_keys: SortedKeys[int] = SortedKeys()
        self.due_keys: SortedKeys[tuple[int, int]] = SortedKeys()

    def set_chunk(self, first_seq: int, row: ChunkRow | None) -> ChunkRow | None:
        previous = self._chunks.pop(first_seq, None)
        if previous is not None:
            self.chunk_keys.remove(first_seq)
            if previous.session is not None:
                self._leave_session(previous.session, first_seq)
            if previous.expires_ms is not None:
                self.expiry_keys.remove((previous.expires_ms, first_seq))
        if row is not None:
            self._chunks[first_seq] = row
            self.chunk_keys.add(first_seq)
            if row.session is not None:
                self._session_keys.setdefault(row.session, SortedKeys()).add(first_seq)
            if row.expires_ms is not None:
                self.expiry_keys.add((row.expires_ms, first_seq))
        return previous

    def set_share(
        self, first_seq: int, share: SharedBodySelection | None
    ) -> SharedBodySelection | None:
        previous = self._shares.pop(first_seq, None)
        if share is not None:
            self._shares[first_seq] = share
        return previous

    def set_gone(self, first_seq: int, runs: list[Run] | None) -> list[Run] | None:
        previous = self._gone.pop(first_seq, None)
        if runs is not None:
            self._gone[first_seq] = runs
        return previous

    def set_state(self, seq: int, state: State | None) -> State | None:
        previous = self._states.pop(seq, None)
        if previous is not None:
            self.state_keys.remove(seq)
            if previous[1]:
                self.deferred_keys.remove(seq)
        if state is not None:
            self._states[seq] = state
            self.state_keys.add(seq)
            if state[1]:
                self.deferred_keys.add(seq)
        return previous

    def set_scheduled(self, seq: int, row: ScheduledRow | None) -> ScheduledRow | None:
        previous = self._scheduled.pop(seq, None)
        if previous is not None:
            self.scheduled_keys.remove(seq)
            self.due_keys.remove((previous.due_ms, seq))
        if row is not None:
            self._scheduled[seq] = row
            self.scheduled_keys.add(seq)
            self.due_keys.add((row.due_ms, seq))
        return previous

    def set_seen(self, page: int, row: SeenRow | None) -> SeenRow | None:
        previous = self._seen.pop(page, None)
        if row is not None:
            self._seen[page] = row
        return previous

    def set_session_state(
        self, session: str, state: tuple[bytes, int] | None
    ) -> tuple[bytes, int] | None:
        previous = self.session_states.pop(session, None)
        if state is not None:
            self.session_states[session] = state
        return previous

    def _leave_session(self, session: str, first_seq: int) -> None:
        keys = self._session_keys[session]
        keys.remove(first_seq)
        if not len(keys):
            del self._session_keys[session]

    def session_keys(self, session: str) -> SortedKeys[int]:
        return self._session_keys.get(session) or SortedKeys()

    def state_bytes(self) -> int:
        """The bytes that session states use of the queue's quota."""
        return sum(
            session_state_bytes(session, state)
            for session, (state, _at_ms) in self.session_states.items()
        )

    def session_counts(self) -> list[SessionCounts]:
        """The sessions with messages, in the order of their oldest chunk."""
        found: dict[str, SessionCounts] = {}
        for first_seq in self.chunk_keys.between(1, SEQ_MAX):
            row = self._chunks[first_seq]
            if row.session is None:
                continue
            gone = sum(last - first + 1 for first, last in self._gone.get(first_seq, ()))
            deferred = len(self.deferred_keys.between(first_seq, row.last_seq))
            known = found.get(row.session)
            active = row.count - gone - deferred + (0 if known is None else known.active_count)
            found[row.session] = SessionCounts(row.session, active, row.last_seq)
        return [counts for counts in found.values() if counts.active_count]

    def chunk_holding(self, seq: int) -> ChunkRow | None:
        first_seq = self.chunk_keys.at_or_before(seq)
        if first_seq is None or self._chunks[first_seq].last_seq < seq:
            return None
        return self._chunks[first_seq]

    def put_chunk(self, row: ChunkRow, share: SharedBodySelection | None, undo: Undo) -> None:
        nearest = self.chunk_keys.at_or_before(row.last_seq)
        if nearest is not None and self._chunks[nearest].last_seq >= row.first_seq:
            raise ValueError("a chunk overlaps a stored chunk")
        if share is not None:
            # The shared body is kept instead, once for all chunks that select from it.
            row = replace(row, blob=b"")
            undo.change(self.set_share, row.first_seq, share)
        undo.change(self.set_chunk, row.first_seq, row)

    def delete_chunks(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        for key in self.chunk_keys.between(first_seq, last_seq):
            self.clear_states(key, self._chunks[key].last_seq, undo)
            undo.change(self.set_gone, key, None)
            undo.change(self.set_share, key, None)
            undo.change(self.set_chunk, key, None)

    def add_tombstone(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        chunk = self.chunk_holding(first_seq)
        runs = [] if chunk is None else self._gone.get(chunk.first_seq, [])
        if chunk is None or chunk.last_seq < last_seq or _overlaps(runs, first_seq, last_seq):
            raise ValueError("a tombstone overlaps another one or is outside its chunk")
        undo.change(self.set_gone, chunk.first_seq, _merged([*runs, (first_seq, last_seq)]))
        self.clear_states(first_seq, last_seq, undo)

    def clear_states(self, first_seq: int, last_seq: int, undo: Undo) -> None:
        for seq in self.state_keys.between(first_seq, last_seq):
            undo.change(self.set_state, seq, None)

    def set_expiry(self, first_seq: int, expires_ms: int | None, undo: Undo) -> None:
        row = self._chunks.get(first_seq)
        if row is not None:
            undo.change(self.set_chunk, first_seq, replace(row, expires_ms=expires_ms))

    def put_scheduled(self, row: ScheduledRow, undo: Undo) -> None:
        if row.seq in self._scheduled:
            raise ValueError("a row already exists")
        undo.change(self.set_scheduled, row.seq, row)

    def put_seen(self, row: SeenRow, undo: Undo) -> None:
        if row.page in self._seen:
            raise ValueError("a row already exists")
        undo.change(self.set_seen, row.page, row)

    def forget_seen(self, through_page: int, undo: Undo) -> None:
        for page in [page for page in self._seen if page <= through_page]:
            undo.change(self.set_seen, page, None)

    def seen(self) -> list[SeenRow]:
        return [self._seen[page] for page in sorted(self._seen)]

    def loaded(self, first_seq: int) -> LoadedChunk:
        row = self._chunks[first_seq]
        share = self._shares.get(first_seq)
        if share is not None:
            sheet = share.sheet
            row = replace(row, blob=select(sheet.blob, sheet.count, pack_selection(share)))
        seqs = self.state_keys.between(first_seq, row.last_seq)
        states = {seq: self._states[seq] for seq in seqs}
        return LoadedChunk(row, list(self._gone.get(first_seq, ())), states)

    def scheduled(self, seq: int) -> ScheduledRow:
        return self._scheduled[seq]


def _overlaps(runs: list[Run], first_seq: int, last_seq: int) -> bool:
    at = bisect_left(runs, (last_seq + 1, 0))
    return at > 0 and runs[at - 1][1] >= first_seq


def _merged(runs: list[Run]) -> list[Run]:
    merged: list[Run] = []
    for first_seq, last_seq in sorted(runs):
        if merged and merged[-1][1] + 1 == first_seq:
            merged[-1] = (merged[-1][0], last_seq)
        else:
            merged.append((first_seq, last_seq))
    return merged


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
    """The store driver in memory; reopening one object finds what it contained."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_open = False
        self._commit_number = 0
        self._known_queues = KnownQueues()
        self._entities: Table[EntityRow] = Table()
        self._counters: Table[QueueCounters] = Table()
        self._meta: Table[MetaValue] = Table()
        self._queues: Table[MemoryQueueRows] = Table()

    def open(self) -> Recovered:
        if self._is_open:
            raise StoreFailed(path=":memory:", detail="the store is already open")
        self._is_open = True
        queues = self._queues.rows.items()
        entities = sorted(self._entities.rows.values(), key=lambda entity: entity.queue_id)
        return Recovered(
            entities,
            dict(self._counters.rows),
            dict(self._meta.rows),
            self._known_queues.queue_id_last + 1,
            {queue_id: seen for queue_id, queue in queues if (seen := queue.seen())},
            {queue_id: counts for queue_id, queue in queues if (counts := queue.session_counts())},
            {queue_id: size for queue_id, queue in queues if (size := queue.state_bytes())},
        )

    def commit(self, ops: Sequence[Op]) -> None:
        self._require_open()
        admitted, changes = validate_operations(ops, self._known_queues)
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
                self._known_queues.apply(changes)
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
                queue.add_tombstone(first_seq, last_seq, undo)
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
                value = None if state is None else (state, updated_ms)
                undo.change(queue.set_session_state, session, value)
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
            read = names[begin : begin + count_max]
            updated = [name for name in read if states[name][1] >= since_ms]
            return updated, read[-1] if len(read) == count_max else None

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
            raise StoreFailed(path=":memory:", detail="the store is not open")

    def _queue(self, queue_id: int) -> MemoryQueueRows:
        self._require_open()
        return self._queues.rows.get(queue_id) or MemoryQueueRows()
