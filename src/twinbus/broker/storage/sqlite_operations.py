"""Operations as SQL: consecutive ops of one kind become one ``executemany``.

Rule 1: order between kinds is kept, because a later op may depend on an earlier one.
Rule 2: a guarded insert whose place is taken changes no row; the missing change is the caller's
        mistake and a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final

import apsw

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import (
    SEQ_BITS,
    SEQ_MAX,
    ClearState,
    DeleteChunks,
    DeleteEntity,
    DeleteScheduled,
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
    SetChunkExpiry,
    Tombstone,
)
from twinbus.broker.storage.shared_bodies import (
    encode_reference,
    pack_selection,
    plan_shared_bodies,
)

# ?6 is the chunk's last id. The last chunk that begins at or before it must end before ?1.
_PUT_CHUNK: Final = (
    "INSERT INTO chunk SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM"
    " (SELECT id + count AS ends FROM chunk WHERE id <= ?6 ORDER BY id DESC LIMIT 1)"
    " WHERE ends > ?1)"
)
_PUT_EXPIRY: Final = (
    "INSERT OR REPLACE INTO expiry SELECT ?1, ?2, ?3"
    " WHERE EXISTS (SELECT 1 FROM chunk WHERE id = ?1)"
)
_CLEAR_EXPIRY: Final = "DELETE FROM expiry WHERE id = ?"

# The run must be inside the last chunk that begins at or before it, and overlap no other run.
_TOMBSTONE: Final = (
    "INSERT INTO tombstone SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM"
    " (SELECT id + count AS ends FROM chunk WHERE id <= ?1 ORDER BY id DESC LIMIT 1)"
    " WHERE ends > ?2) AND NOT EXISTS (SELECT 1 FROM"
    " (SELECT last_id FROM tombstone WHERE id <= ?2 ORDER BY id DESC LIMIT 1)"
    " WHERE last_id >= ?1)"
)

# A chunk's tombstones and states reach from its first id to its last, which can be outside the
# range: that selects chunks by their first_seq.
_OF_CHUNKS: Final = (
    " WHERE id BETWEEN (SELECT id FROM chunk WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT 1)"
    " AND (SELECT id + count - 1 FROM chunk WHERE id BETWEEN ?1 AND ?2"
    " ORDER BY id DESC LIMIT 1)"
)
_DELETE_CHUNKS: Final = (
    "DELETE FROM tombstone" + _OF_CHUNKS,
    "DELETE FROM state" + _OF_CHUNKS,
    "DELETE FROM expiry WHERE id BETWEEN ?1 AND ?2",
    "DELETE FROM share WHERE id BETWEEN ?1 AND ?2",
    "DELETE FROM session_chunk WHERE id BETWEEN ?1 AND ?2",
    "DELETE FROM chunk WHERE id BETWEEN ?1 AND ?2",
)
_PUT_SHEET: Final = "INSERT INTO sheet VALUES (?, ?, ?, ?)"
_PUT_SHARE: Final = "INSERT INTO share VALUES (?, ?, ?, ?)"
_CLEAR_STATE: Final = "DELETE FROM state WHERE id BETWEEN ? AND ?"
_PUT_STATE: Final = "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)"
_PUT_SCHEDULED: Final = "INSERT INTO scheduled VALUES (?, ?, ?, ?)"
_DELETE_SCHEDULED: Final = "DELETE FROM scheduled WHERE id = ?"
_PUT_SEEN: Final = "INSERT INTO seen VALUES (?, ?, ?, ?)"
_FORGET_SEEN: Final = "DELETE FROM seen WHERE id BETWEEN ? AND ?"
_PUT_SESSION: Final = "INSERT INTO session_chunk VALUES (?, ?, ?)"
_DELETE_SESSION_STATE: Final = "DELETE FROM session_state WHERE id >> 40 = ? AND session = ?"
# The highest number of the queue, and one more.
_PUT_SESSION_STATE: Final = (
    "INSERT INTO session_state SELECT COALESCE(MAX(id), ?1) + 1, ?3, ?4, ?5, ?6"
    " FROM session_state WHERE id BETWEEN ?1 AND ?2"
)
_PUT_COUNTERS: Final = "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_ENTITY: Final = "INSERT OR REPLACE INTO entity VALUES (?, ?, ?, ?, ?)"
_PUT_META: Final = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_UPDATE_LEDGER: Final = "UPDATE ledger SET commit_number = ?, queue_id_last = ?, crc = ?"


def apply_ops(cursor: apsw.Cursor, ops: Sequence[Op], commit_number: int) -> None:
    """Run the ops inside the transaction that the caller began."""
    plan = plan_shared_bodies(ops, commit_number)
    for sheet_id, body in plan.bodies:
        crc = row_checksum.of_blob(sheet_id, body.count, 0, body.blob)
        cursor.execute(_PUT_SHEET, (sheet_id, body.count, crc, body.blob))
    for kind, group in groupby(ops, key=type):
        if kind is PutChunk:
            _put_chunks(cursor, [op for op in group if type(op) is PutChunk], plan.ids)
        else:
            _WRITERS[kind](cursor, list(group))


def update_ledger(
    cursor: apsw.Cursor, commit_number: int, queue_id_last: int, store_id: bytes
) -> None:
    crc = row_checksum.of_values(commit_number, queue_id_last, store_id)
    cursor.execute(_UPDATE_LEDGER, (commit_number, queue_id_last, crc))


def _insert_all(
    cursor: apsw.Cursor, sql: str, rows: Iterable[tuple[Any, ...]], count: int, what: str
) -> None:
    before = cursor.connection.total_changes()
    cursor.executemany(sql, rows)
    if cursor.connection.total_changes() - before != count:
        raise ValueError(what)


def _put_chunks(cursor: apsw.Cursor, ops: list[PutChunk], sheet_ids: dict[int, int]) -> None:
    rows, expiries, shares, sessions = [], [], [], []
    for op in ops:
        row, blob = op.row, op.row.blob
        row_id = row.queue_id << SEQ_BITS | row.first_seq
        sheet_id = sheet_ids.get(id(op.share)) if sheet_ids else None
        if sheet_id is None or op.share is None:
            crc = row_checksum.of_blob(row_id, row.count, row.enqueued_ms, blob)
        else:
            blob, selection = b"", pack_selection(op.share)
            reference = encode_reference(row_id, row.count, row.enqueued_ms, sheet_id, selection)
            crc = row_checksum.of_bytes(reference)
            shares.append(
                (row_id, sheet_id, row_checksum.of_blob(row_id, sheet_id, 0, selection), selection)
            )
        last_id = row_id + row.count - 1
        rows.append((row_id, row.count, row.enqueued_ms, crc, blob, last_id))
        if row.expires_ms is not None:
            expiries.append((row_id, row.expires_ms, row_checksum.of_pair(row_id, row.expires_ms)))
        if row.session is not None:
            sessions.append((row_id, row.session, row_checksum.of_values(row_id, row.session)))
    _insert_all(cursor, _PUT_CHUNK, rows, len(rows), "a chunk overlaps a stored chunk")
    if shares:
        cursor.executemany(_PUT_SHARE, shares)
    if expiries:
        cursor.executemany(_PUT_EXPIRY, expiries)
    if sessions:
        cursor.executemany(_PUT_SESSION, sessions)


def _delete_chunks(cursor: apsw.Cursor, ops: list[DeleteChunks]) -> None:
    ranges = [_ids(op) for op in ops]
    for statement in _DELETE_CHUNKS:
        cursor.executemany(statement, ranges)


def _ids(op: DeleteChunks | Tombstone | ClearState) -> tuple[int, int]:
    queue = op.queue_id << SEQ_BITS
    return queue | op.first_seq, queue | op.last_seq


def _tombstones(cursor: apsw.Cursor, ops: list[Tombstone]) -> None:
    ranges = [_ids(op) for op in ops]
    rows = [(first, last, row_checksum.of_pair(first, last)) for first, last in ranges]
    what = "a tombstone overlaps another one or is outside its chunk"
    _insert_all(cursor, _TOMBSTONE, rows, len(rows), what)
    cursor.executemany(_CLEAR_STATE, ranges)


def _put_states(cursor: apsw.Cursor, ops: list[PutState]) -> None:
    rows = []
    for op in ops:
        row_id, deferred = op.queue_id << SEQ_BITS | op.seq, int(op.deferred)
        crc = row_checksum.of_triple(row_id, op.delivery_count, deferred)
        rows.append((row_id, op.delivery_count, deferred, crc))
    cursor.executemany(_PUT_STATE, rows)


def _clear_states(cursor: apsw.Cursor, ops: list[ClearState]) -> None:
    cursor.executemany(_CLEAR_STATE, [_ids(op) for op in ops])


def _set_expiries(cursor: apsw.Cursor, ops: list[SetChunkExpiry]) -> None:
    for op in ops:
        row_id = op.queue_id << SEQ_BITS | op.first_seq
        if op.expires_ms is None:
            cursor.execute(_CLEAR_EXPIRY, (row_id,))
        else:
            crc = row_checksum.of_pair(row_id, op.expires_ms)
            cursor.execute(_PUT_EXPIRY, (row_id, op.expires_ms, crc))


def _put_scheduled(cursor: apsw.Cursor, ops: list[PutScheduled]) -> None:
    rows = []
    for op in ops:
        row_id = op.queue_id << SEQ_BITS | op.seq
        rows.append(
            (row_id, op.due_ms, row_checksum.of_blob(row_id, op.due_ms, 0, op.blob), op.blob)
        )
    cursor.executemany(_PUT_SCHEDULED, rows)


def _delete_scheduled(cursor: apsw.Cursor, ops: list[DeleteScheduled]) -> None:
    cursor.executemany(_DELETE_SCHEDULED, [(op.queue_id << SEQ_BITS | op.seq,) for op in ops])


def _put_seen(cursor: apsw.Cursor, ops: list[PutSeen]) -> None:
    rows = []
    for op in ops:
        row_id, row = op.row.queue_id << SEQ_BITS | op.row.page, op.row
        crc = row_checksum.of_blob(row_id, row.at_ms, 0, row.digests)
        rows.append((row_id, row.at_ms, crc, row.digests))
    cursor.executemany(_PUT_SEEN, rows)


def _forget_seen(cursor: apsw.Cursor, ops: list[ForgetSeen]) -> None:
    queues = [(op.queue_id << SEQ_BITS, op.through_page) for op in ops]
    cursor.executemany(_FORGET_SEEN, [(queue, queue | page) for queue, page in queues])


def _put_session_states(cursor: apsw.Cursor, ops: list[PutSessionState]) -> None:
    for op in ops:
        cursor.execute(_DELETE_SESSION_STATE, (op.queue_id, op.session))
        if op.state is not None:
            queue = op.queue_id << SEQ_BITS
            crc = row_checksum.of_session_state(op.queue_id, op.session, op.updated_ms, op.state)
            values = (queue, queue | SEQ_MAX, op.session, op.updated_ms, crc, op.state)
            cursor.execute(_PUT_SESSION_STATE, values)


def _put_counters(cursor: apsw.Cursor, ops: list[PutCounters]) -> None:
    rows = []
    for op in ops:
        values = op.counters.values()
        rows.append((*values, row_checksum.of_values(*values)))
    cursor.executemany(_PUT_COUNTERS, rows)


def _put_entities(cursor: apsw.Cursor, ops: list[PutEntity]) -> None:
    for op in ops:
        entity = op.entity
        values = (entity.queue_id, entity.path, entity.kind, entity.description_json)
        cursor.execute(_PUT_ENTITY, (*values, row_checksum.of_values(*values)))


def _delete_entities(cursor: apsw.Cursor, ops: list[DeleteEntity]) -> None:
    for op in ops:
        cursor.execute("DELETE FROM entity WHERE queue_id = ?", (op.queue_id,))
        cursor.execute("DELETE FROM counters WHERE queue_id = ?", (op.queue_id,))
        row = (op.queue_id, row_checksum.of_values(op.queue_id))
        cursor.execute("INSERT INTO garbage VALUES (?, ?)", row)


def _put_meta(cursor: apsw.Cursor, ops: list[PutMeta]) -> None:
    for op in ops:
        cursor.execute(_PUT_META, (op.key, op.value, row_checksum.of_values(op.key, op.value)))


_WRITERS: Final[dict[type[Any], Callable[[apsw.Cursor, Any], None]]] = {
    DeleteChunks: _delete_chunks,
    Tombstone: _tombstones,
    PutState: _put_states,
    ClearState: _clear_states,
    SetChunkExpiry: _set_expiries,
    PutScheduled: _put_scheduled,
    DeleteScheduled: _delete_scheduled,
    PutSeen: _put_seen,
    ForgetSeen: _forget_seen,
    PutSessionState: _put_session_states,
    PutCounters: _put_counters,
    PutEntity: _put_entities,
    DeleteEntity: _delete_entities,
    PutMeta: _put_meta,
}
