"""Loading rows through the read-only connection; every row is checked against its checksum.

Rule 1: a load is one read transaction (a single statement is one by itself), so a chunk and its
        tombstones are of the same commit.
Rule 2: a load is short: an open read transaction keeps the writer from reusing its log, and the
        other queues wait for it. It ends with the row that reaches its number of bytes, and no
        row after that one is fetched.
Rule 3: a row that fails its checksum stops the load; skipping it would lose it silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import (
    LOAD_MESSAGES_MAX,
    NO_BYTES_MAX,
    SEQ_BITS,
    SEQ_MAX,
    ChunkRow,
    LoadedChunk,
    ScheduledRow,
)
from twinbus.broker.storage.shared_bodies import encode_reference, select
from twinbus.broker.storage.sqlite_connection import translate_read_errors
from twinbus.errors import StoreCorrupt

_CHUNK_COLUMNS: Final = (
    "SELECT chunk.id, count, enqueued_ms, chunk.crc, blob, expires_ms, expiry.crc,"
    " session, session_chunk.crc"
)
_FROM_CHUNK: Final = (
    " FROM chunk LEFT JOIN expiry ON expiry.id = chunk.id"
    " LEFT JOIN session_chunk ON session_chunk.id = chunk.id"
)
_AFTER: Final = (
    _CHUNK_COLUMNS + _FROM_CHUNK + " WHERE chunk.id > ? AND chunk.id <= ? ORDER BY chunk.id LIMIT ?"
)
_HOLDING: Final = (
    _CHUNK_COLUMNS
    + _FROM_CHUNK
    + " WHERE chunk.id >= ? AND chunk.id <= ? ORDER BY chunk.id DESC LIMIT 1"
)
_OF_SESSION: Final = (
    _CHUNK_COLUMNS + " FROM session_chunk LEFT JOIN chunk ON chunk.id = session_chunk.id"
    " LEFT JOIN expiry ON expiry.id = session_chunk.id"
    " WHERE session_chunk.id >> 40 = ? AND session = ? AND session_chunk.id > ?"
    " ORDER BY session_chunk.id LIMIT ?"
)
_EXPIRED: Final = (
    _CHUNK_COLUMNS + " FROM expiry LEFT JOIN chunk ON chunk.id = expiry.id"
    " LEFT JOIN session_chunk ON session_chunk.id = expiry.id"
    " WHERE expiry.id >> 40 = ? AND expires_ms <= ? ORDER BY expires_ms, expiry.id LIMIT ?"
)
_SHARE: Final = "SELECT sheet_id, crc, selection FROM share WHERE id = ?"
_SHEET: Final = "SELECT count, crc, blob FROM sheet WHERE id = ?"
_EVERY_SHEET: Final = "SELECT id, count, crc, blob FROM sheet WHERE id > ? ORDER BY id"
_NEXT_EXPIRY: Final = "SELECT MIN(expires_ms) FROM expiry WHERE id >> 40 = ?"
_TOMBSTONES: Final = "SELECT id, last_id, crc FROM tombstone WHERE id BETWEEN ? AND ? ORDER BY id"
_STATES: Final = (
    "SELECT id, delivery_count, deferred, crc FROM state WHERE id BETWEEN ? AND ? ORDER BY id"
)
_DUE: Final = (
    "SELECT id, due_ms, crc, blob FROM scheduled"
    " WHERE id >> 40 = ? AND due_ms <= ? ORDER BY due_ms, id LIMIT ?"
)
_NEXT_DUE: Final = "SELECT MIN(due_ms) FROM scheduled WHERE id >> 40 = ?"
_SCHEDULED: Final = (
    "SELECT id, due_ms, crc, blob FROM scheduled WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
)
_DEFERRED: Final = (
    "SELECT id FROM state INDEXED BY state_deferred"
    " WHERE deferred = 1 AND id > ? AND id <= ? ORDER BY id LIMIT ?"
)
_SESSION_STATE: Final = (
    "SELECT id, session, updated_ms, crc, blob FROM session_state"
    " WHERE id >> 40 = ? AND session = ?"
)
_SESSION_STATES: Final = (
    "SELECT id, session, updated_ms, crc, blob FROM session_state WHERE id BETWEEN ? AND ?"
)
_SESSIONS: Final = (
    "SELECT id, session, updated_ms FROM session_state WHERE id >> 40 = ? AND session > ?"
    " ORDER BY session LIMIT ?"
)
_FIRST_SESSIONS: Final = _SESSIONS.replace("session > ?", "session >= ?")

_Detail = TypeVar("_Detail")

# The subscriptions of a topic are often read at about the same pace: each shared body is read once
# for all of them. A shared body has up to 256 KB.
SHARED_BODIES_CACHED_MAX: Final = 8
# Session states that are only checked, not returned, are read up to this size at once.
_CHECKED_BYTES_MAX: Final = 1 << 20


class RowReader:
    """The reading half of the interface over one connection."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._sheets: dict[int, tuple[bytes, int]] = {}
        """The shared bodies that were read last. Ids are never reused, so none of them is stale."""

    def load_chunks(
        self,
        queue_id: int,
        after_seq: int,
        bytes_max: int,
        count_max: int,
        session: str | None = None,
    ) -> list[LoadedChunk]:
        if session is not None:
            return self._load_session(queue_id, session, after_seq, bytes_max, count_max)
        after, last = queue_id << SEQ_BITS | after_seq, queue_id << SEQ_BITS | SEQ_MAX
        rows: list[ChunkRow] = []
        messages_max = LOAD_MESSAGES_MAX
        with self._snapshot() as cursor:
            for values in cursor.execute(_AFTER, (after, last, count_max)):
                row = self._chunk(*values)
                rows.append(row)
                bytes_max -= len(row.blob)
                messages_max -= row.count
                if bytes_max <= 0 or messages_max <= 0:
                    break
            return self._with_details(cursor, rows)

    def _load_session(
        self, queue_id: int, session: str, after_seq: int, bytes_max: int, count_max: int
    ) -> list[LoadedChunk]:
        after = queue_id << SEQ_BITS | after_seq
        messages_max = LOAD_MESSAGES_MAX
        rows: list[ChunkRow] = []
        with self._snapshot() as cursor:
            for values in cursor.execute(_OF_SESSION, (queue_id, session, after, count_max)):
                row = self._chunk(*values)
                rows.append(row)
                bytes_max -= len(row.blob)
                messages_max -= row.count
                if bytes_max <= 0 or messages_max <= 0:
                    break
            # Between two chunks of a session there may be many of other sessions.
            return [self._with_details(cursor, [row])[0] for row in rows]

    def load_session_state(self, queue_id: int, session: str) -> bytes | None:
        with translate_read_errors(self._path):
            found = self._connection.execute(_SESSION_STATE, (queue_id, session))
            for values in found:
                return self._session_state(*values)
        return None

    def load_sessions_updated(
        self, queue_id: int, since_ms: int, after: str | None, count_max: int
    ) -> tuple[list[str], str | None]:
        updated: list[str] = []
        checked_bytes = 0
        with translate_read_errors(self._path):
            sql, begin = (_FIRST_SESSIONS, "") if after is None else (_SESSIONS, after)
            rows: list[Any] = self._connection.execute(sql, (queue_id, begin, count_max)).fetchall()
            for row_id, session, updated_ms in rows:
                if updated_ms >= since_ms:
                    updated.append(session)
                    continue
                checked_bytes += self._check_session_state(row_id)
                if checked_bytes >= _CHECKED_BYTES_MAX:
                    return updated, session
        return updated, rows[-1][1] if len(rows) == count_max else None

    def _check_session_state(self, row_id: int) -> int:
        """A session must not be skipped because of a damaged time. Returns the bytes read."""
        states = self._connection.execute(_SESSION_STATES, (row_id, row_id))
        return sum(len(self._session_state(*values)) for values in states)

    def _session_state(
        self, row_id: int, session: str, updated_ms: int, crc: int, state: bytes
    ) -> bytes:
        if row_checksum.of_session_state(row_id >> SEQ_BITS, session, updated_ms, state) != crc:
            raise self._damaged(row_id, 1, "the state of a session does not match its checksum")
        return state

    def load_chunk_holding(self, queue_id: int, seq: int) -> LoadedChunk | None:
        queue = queue_id << SEQ_BITS
        with self._snapshot() as cursor:
            for values in list(cursor.execute(_HOLDING, (queue, queue | seq))):
                row = self._chunk(*values)
                if seq <= row.last_seq:
                    return self._with_details(cursor, [row])[0]
        return None

    def load_expired(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[LoadedChunk]:
        rows: list[ChunkRow] = []
        with self._snapshot() as cursor:
            for values in cursor.execute(_EXPIRED, (queue_id, now_ms, count_max)):
                rows.append(self._chunk(*values))
                bytes_max -= len(rows[-1].blob)
                if bytes_max <= 0:
                    break
            return [self._with_details(cursor, [row])[0] for row in rows]

    def next_expiry(self, queue_id: int) -> int | None:
        return self._number(_NEXT_EXPIRY, queue_id)

    def load_due(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        return self._scheduled_rows(_DUE, (queue_id, now_ms, count_max), bytes_max)

    def next_due(self, queue_id: int) -> int | None:
        return self._number(_NEXT_DUE, queue_id)

    def load_scheduled(
        self, queue_id: int, after_seq: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        queue = queue_id << SEQ_BITS
        limits = (queue | after_seq, queue | SEQ_MAX, count_max)
        return self._scheduled_rows(_SCHEDULED, limits, bytes_max)

    def _scheduled_rows(
        self, sql: str, limits: tuple[int, int, int], bytes_max: int
    ) -> list[ScheduledRow]:
        rows: list[ScheduledRow] = []
        with translate_read_errors(self._path):
            cursor = self._connection.cursor()
            try:
                for values in cursor.execute(sql, limits):
                    rows.append(self._scheduled(*values))
                    bytes_max -= len(rows[-1].blob)
                    if bytes_max <= 0:
                        break
            finally:
                # Otherwise its transaction would last until the next read.
                cursor.close(True)
        return rows

    def load_deferred_seqs(self, queue_id: int, after_seq: int, count_max: int) -> list[int]:
        queue = queue_id << SEQ_BITS
        limits = (queue | after_seq, queue | SEQ_MAX, count_max)
        with translate_read_errors(self._path):
            found = self._connection.execute(_DEFERRED, limits)
            return [row_id & SEQ_MAX for (row_id,) in found]

    def check_every_row(self, garbage: Iterable[int]) -> None:
        """Read everything that a load could read; the first damage raises StoreCorrupt.

        Chunks of deleted queues are left out: their selections are deleted before them.
        """
        deleted = frozenset(garbage)
        with self._snapshot() as cursor:
            everything = (-1, (1 << 63) - 1, -1)
            for values in cursor.execute(_AFTER, everything):
                if values[0] >> SEQ_BITS not in deleted:
                    self._chunk(*values)
            for values in cursor.execute(_SCHEDULED, everything):
                self._scheduled(*values)
            for sheet_id, count, crc, blob in cursor.execute(_EVERY_SHEET, everything[:1]):
                if row_checksum.of_blob(sheet_id, count, 0, blob) != crc:
                    detail = "a shared body does not match its checksum"
                    raise StoreCorrupt(path=self._path, detail=detail)
            for _ in self._tombstones(cursor, *everything[:2]):
                pass
            for _ in self._states(cursor, *everything[:2]):
                pass
            for values in cursor.execute(_SESSION_STATES, everything[:2]):
                self._session_state(*values)

    @contextmanager
    def _snapshot(self) -> Iterator[apsw.Cursor]:
        with translate_read_errors(self._path):
            cursor = self._connection.cursor()
            cursor.execute("BEGIN")
            try:
                yield cursor
            finally:
                cursor.close(True)
                self._connection.execute("ROLLBACK")

    def _number(self, sql: str, queue_id: int) -> int | None:
        with translate_read_errors(self._path):
            value: int | None = self._connection.execute(sql, (queue_id,)).get
            return value

    def _chunk(
        self,
        row_id: int | None,
        count: int,
        enqueued_ms: int,
        crc: int,
        blob: bytes,
        expires_ms: int | None,
        expiry_crc: int | None,
        session: str | None,
        session_crc: int | None,
    ) -> ChunkRow:
        if row_id is None:
            detail = "an expiry or a session refers to a chunk that does not exist"
            raise StoreCorrupt(path=self._path, detail=detail)
        if row_checksum.of_blob(row_id, count, enqueued_ms, blob) != crc:
            if blob:
                raise self._damaged(row_id, count, "a chunk does not match its checksum")
            blob = self._read_shared(row_id, count, enqueued_ms, crc)
        if expires_ms is not None and row_checksum.of_pair(row_id, expires_ms) != expiry_crc:
            raise self._damaged(row_id, count, "an expiry does not match its checksum")
        if session is not None and row_checksum.of_values(row_id, session) != session_crc:
            raise self._damaged(row_id, count, "the session of a chunk does not match its checksum")
        queue_id, first_seq = row_id >> SEQ_BITS, row_id & SEQ_MAX
        return ChunkRow(queue_id, first_seq, count, enqueued_ms, expires_ms, blob, session)

    def _read_shared(self, row_id: int, count: int, enqueued_ms: int, crc: int) -> bytes:
        """The bytes of a chunk that refers to a shared body."""
        found: list[Any] = self._connection.execute(_SHARE, (row_id,)).fetchall()
        for sheet_id, share_crc, selection in found:
            reference = encode_reference(row_id, count, enqueued_ms, sheet_id, selection)
            if (
                row_checksum.of_blob(row_id, sheet_id, 0, selection) != share_crc
                or row_checksum.of_bytes(reference) != crc
            ):
                break
            try:
                return select(*self._sheet(sheet_id, row_id, count), selection)
            except ValueError as error:
                raise self._damaged(row_id, count, str(error)) from error
        raise self._damaged(row_id, count, "a chunk does not match its checksum")

    def _sheet(self, sheet_id: int, row_id: int, count: int) -> tuple[bytes, int]:
        """A shared body and its number of messages; adjacent chunks often refer to the same one."""
        known = self._sheets.pop(sheet_id, None)
        if known is None:
            found: list[Any] = self._connection.execute(_SHEET, (sheet_id,)).fetchall()
            for sheet_count, crc, blob in found:
                if row_checksum.of_blob(sheet_id, sheet_count, 0, blob) == crc:
                    known = blob, sheet_count
        if known is None:
            detail = "the shared body of a chunk is missing or does not match its checksum"
            raise self._damaged(row_id, count, detail)
        self._sheets[sheet_id] = known
        if len(self._sheets) > SHARED_BODIES_CACHED_MAX:
            del self._sheets[next(iter(self._sheets))]
        return known

    def _scheduled(self, row_id: int, due_ms: int, crc: int, blob: bytes) -> ScheduledRow:
        if row_checksum.of_blob(row_id, due_ms, 0, blob) != crc:
            raise self._damaged(row_id, 1, "a scheduled message does not match its checksum")
        return ScheduledRow(row_id >> SEQ_BITS, row_id & SEQ_MAX, due_ms, blob)

    def _damaged(self, row_id: int, count: int, detail: str) -> StoreCorrupt:
        first_seq = row_id & SEQ_MAX
        return StoreCorrupt(
            path=self._path,
            detail=detail,
            queue_id=row_id >> SEQ_BITS,
            first_seq=first_seq,
            last_seq=first_seq + max(count, 1) - 1,
        )

    def _with_details(self, cursor: apsw.Cursor, rows: list[ChunkRow]) -> list[LoadedChunk]:
        """Give each chunk (ascending, of one queue) its tombstones and states."""
        if not rows:
            return []
        queue = rows[0].queue_id << SEQ_BITS
        first, last = queue | rows[0].first_seq, queue | rows[-1].last_seq
        # Both lists are fetched first: a cursor runs one statement.
        tombstones = list(self._tombstones(cursor, first, last))
        states = list(self._states(cursor, first, last))
        chunks = [LoadedChunk(row, [], {}) for row in rows]
        for chunk, (first_seq, last_seq) in _pair_with_chunks(chunks, tombstones):
            _extend(chunk.gone, first_seq, last_seq)
        for chunk, (seq, state) in _pair_with_chunks(chunks, states):
            chunk.states[seq] = state
        return chunks

    def _tombstones(self, cursor: apsw.Cursor, first: int, last: int) -> Iterator[tuple[int, int]]:
        for row_id, last_id, crc in cursor.execute(_TOMBSTONES, (first, last)):
            if row_checksum.of_pair(row_id, last_id) != crc:
                raise self._damaged(row_id, 1, "a tombstone does not match its checksum")
            yield row_id & SEQ_MAX, last_id & SEQ_MAX

    def _states(
        self, cursor: apsw.Cursor, first: int, last: int
    ) -> Iterator[tuple[int, tuple[int, bool]]]:
        for row_id, delivery_count, deferred, crc in cursor.execute(_STATES, (first, last)):
            if row_checksum.of_triple(row_id, delivery_count, deferred) != crc:
                raise self._damaged(row_id, 1, "a delivery count does not match its checksum")
            yield row_id & SEQ_MAX, (delivery_count, bool(deferred))


def _pair_with_chunks(
    chunks: list[LoadedChunk], details: Iterable[tuple[int, _Detail]]
) -> Iterator[tuple[LoadedChunk, tuple[int, _Detail]]]:
    """Pair each detail (ascending by sequence number) with the chunk that contains it."""
    following = iter(chunks)
    chunk = next(following)
    for detail in details:
        while detail[0] > chunk.row.last_seq:
            chunk = next(following)
        if detail[0] >= chunk.row.first_seq:
            yield chunk, detail


def _extend(gone: list[tuple[int, int]], first_seq: int, last_seq: int) -> None:
    """Add a run after all others, merged with the one that it touches."""
    if gone and gone[-1][1] + 1 == first_seq:
        gone[-1] = (gone[-1][0], last_seq)
    else:
        gone.append((first_seq, last_seq))
