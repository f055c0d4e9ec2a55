"""The check of a whole store when it is opened: counters, sessions, tables and indexes.

Checksums show that a row is damaged when it is read. A row that is not found is never read: one
flipped bit in an index, in a page header or in a row id hides a scheduled message, an expiry, a
session. The counters show missing messages; ``check_trees`` finds everything else.

Every commit that stores or settles messages also writes the queue's counters. Rows that do not
match the counters therefore mean that rows are missing or came back, whatever the reason, and the
store is refused.

The queue engine needs to know which sessions have messages to deliver, and how much of the quota
session states use. ``read_sessions`` counts them, and checks that every chunk has a session.

Rule 1: no message body is read. SQLite's own check reads tables with small rows; tables with
        bodies are compared with their index, which touches no overflow page.
Rule 2: rows of ``state`` are in no index and no counter, so their checksums are checked here.
Rule 3: memory grows with the number of sessions, not with the rows: a million messages are
        checked in a second or two. ``load_*`` checks the bodies it reads.
Rule 4: rows of deleted queues are left out: the collector removes them later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from twinbus.broker.storage import row_checksum, schema
from twinbus.broker.storage.interface import (
    SEQ_BITS,
    SEQ_MAX,
    SESSION_STATE_ROW_BYTES,
    EntityRow,
    MetaValue,
    QueueCounters,
    Recovered,
    SeenRow,
    SessionCounts,
)
from twinbus.errors import StoreCorrupt

_CHUNKS: Final = (
    "SELECT chunk.id, count, session, session_chunk.crc FROM chunk"
    " LEFT JOIN session_chunk ON session_chunk.id = chunk.id"
    " WHERE chunk.id BETWEEN ? AND ? ORDER BY chunk.id"
)
_COUNT: Final = "SELECT COUNT(*) FROM session_chunk WHERE id BETWEEN ? AND ?"
_GONE: Final = "SELECT id, last_id - id + 1 FROM tombstone WHERE id BETWEEN ? AND ? ORDER BY id"
_DEFERRED_IN_SESSIONS: Final = (
    "SELECT id, 1 FROM state INDEXED BY state_deferred"
    " WHERE deferred = 1 AND id BETWEEN ? AND ? ORDER BY id"
)
# The length of a blob is in the row header: the states themselves are not read.
_STATE_BYTES: Final = (
    "SELECT id >> 40, SUM(length(CAST(session AS BLOB)) + length(blob) + ?) FROM session_state"
    " GROUP BY id >> 40"
)


def state_bytes(connection: apsw.Connection) -> dict[int, int]:
    """The bytes that session states use, by queue."""
    found: list[Any] = connection.execute(_STATE_BYTES, (SESSION_STATE_ROW_BYTES,)).fetchall()
    return dict(found)


def read_sessions(connection: apsw.Connection, path: Path, queue_id: int) -> list[SessionCounts]:
    """The sessions of a queue with sessions, in the order of their oldest chunk."""
    queue = queue_id << SEQ_BITS
    limits = (queue, queue | SEQ_MAX)
    gone = connection.cursor().execute(_GONE, limits)
    deferred = connection.cursor().execute(_DEFERRED_IN_SESSIONS, limits)
    inactive: Iterator[tuple[int, int]] = merge(gone, deferred)
    sessions: dict[str, SessionCounts] = {}
    row_count = 0
    id_, count = next(inactive, (1 << 63, 0))
    for row_id, size, session, crc in connection.cursor().execute(_CHUNKS, limits):
        if session is None or row_checksum.of_values(row_id, session) != crc:
            detail = "a chunk has no session, or its session does not match its checksum"
            raise StoreCorrupt(
                path=path, detail=detail, queue_id=queue_id, first_seq=row_id & SEQ_MAX
            )
        row_count += 1
        active = size
        while id_ < row_id + size:
            active -= count
            id_, count = next(inactive, (1 << 63, 0))
        known = sessions.get(session)
        last_seq = (row_id & SEQ_MAX) + size - 1
        before = 0 if known is None else known.active_count
        sessions[session] = SessionCounts(session, before + active, last_seq)
    if connection.execute(_COUNT, limits).get != row_count:
        detail = "a session refers to a chunk that does not exist"
        raise StoreCorrupt(path=path, detail=detail, queue_id=queue_id)
    return [counts for counts in sessions.values() if counts.active_count]


_SMALL: Final = (
    "counters",
    "entity",
    "expiry",
    "garbage",
    "ledger",
    "meta",
    "seen",
    "session_chunk",
    "share",
    "state",
    "tombstone",
)
# table -> its index, and the column that is in both beside the queue and the id.
_WITH_BODIES: Final = {
    "scheduled": ("scheduled_by_time", "due_ms"),
    "session_state": ("session_state_by_name", "session"),
}
# As many index entries as rows, and one for each row: then the index has no others.
_DIFFERENCES: Final = (
    "SELECT (SELECT COUNT(*) FROM {table} INDEXED BY {index})"
    " - (SELECT COUNT(*) FROM {table} NOT INDEXED),"
    " (SELECT COUNT(*) FROM {table} AS one NOT INDEXED WHERE NOT EXISTS"
    " (SELECT 1 FROM {table} AS other INDEXED BY {index} WHERE other.id >> 40 = one.id >> 40"
    " AND other.{column} = one.{column} AND other.id = one.id))"
)
_STATES: Final = "SELECT id, delivery_count, deferred, crc FROM state"


def check_trees(connection: apsw.Connection, path: Path) -> None:
    """Raise StoreCorrupt at the first table that does not match its rows or indexes."""
    for table in _SMALL:
        verdict = connection.execute(f"PRAGMA integrity_check({table})").get
        if verdict != "ok":
            raise StoreCorrupt(path=path, detail=f"table {table!r} is damaged ({verdict})")
    for table, (index, column) in _WITH_BODIES.items():
        sql = _DIFFERENCES.format(table=table, index=index, column=column)
        if connection.execute(sql).get != (0, 0):
            detail = f"table {table!r} and its index do not match"
            raise StoreCorrupt(path=path, detail=detail)
    for row_id, delivery_count, deferred, crc in connection.execute(_STATES):
        if row_checksum.of_triple(row_id, delivery_count, deferred) != crc:
            raise StoreCorrupt(
                path=path,
                detail="the state of a message does not match its checksum",
                queue_id=row_id >> SEQ_BITS,
                first_seq=row_id & SEQ_MAX,
            )


_NEXT_IN_TABLE: Final = "SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT 1"
_SEEN: Final = "SELECT id, at_ms, crc, blob FROM seen WHERE id BETWEEN ? AND ? ORDER BY id"
_SPANS: Final = "SELECT id, count FROM chunk WHERE id BETWEEN ? AND ? ORDER BY id"
_TOMBSTONES: Final = (
    "SELECT id, last_id, crc, (SELECT id + count FROM chunk WHERE chunk.id <= tombstone.id"
    " ORDER BY chunk.id DESC LIMIT 1) FROM tombstone WHERE id BETWEEN ? AND ? ORDER BY id"
)
_DEFERRED_BY_QUEUE: Final = (
    "SELECT id >> 40, COUNT(*) FROM state INDEXED BY state_deferred WHERE deferred = 1"
    " GROUP BY id >> 40"
)
_SCHEDULED: Final = (
    "SELECT id >> 40, COUNT(*), MAX(id) FROM scheduled INDEXED BY scheduled_by_time"
    " GROUP BY id >> 40"
)
_BROKEN_REFERENCES: Final = {
    (
        "SELECT id FROM share WHERE NOT EXISTS"
        " (SELECT 1 FROM sheet WHERE sheet.id = share.sheet_id) LIMIT 1"
    ): "a chunk refers to a shared body that does not exist",
    (
        "SELECT id FROM share WHERE NOT EXISTS"
        " (SELECT 1 FROM chunk WHERE chunk.id = share.id) LIMIT 1"
    ): "a selection refers to a chunk that does not exist",
    (
        "SELECT id FROM sheet WHERE NOT EXISTS"
        " (SELECT 1 FROM share WHERE share.sheet_id = sheet.id) LIMIT 1"
    ): "no chunk refers to a shared body",
}


class StoreHeader(NamedTuple):
    commit_number: int
    queue_id_last: int
    store_id: bytes


@dataclass(slots=True)
class _Totals:
    """The sums over the rows of one queue."""

    message_count: int = 0
    deferred_count: int = 0
    scheduled_count: int = 0
    seq_last: int = 0


class IntegrityCheck:
    """One check of a whole store through one connection."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def ledger(self) -> StoreHeader:
        rows = self._checked_rows("SELECT commit_number, queue_id_last, store_id, crc FROM ledger")
        found = [StoreHeader(*row) for row in rows]
        if len(found) != 1:
            raise self._damaged(f"table 'ledger' has {len(found)} rows, expected 1")
        return found[0]

    def garbage(self) -> list[int]:
        return [queue_id for (queue_id,) in self._checked_rows("SELECT queue_id, crc FROM garbage")]

    def version(self) -> int:
        """The format version; while it is still in the log, the file header may not show it."""
        return int(self._connection.pragma("user_version"))

    def check_schema(self, version: int = schema.FORMAT_VERSION) -> None:
        """Every table and index exists and has the expected definition."""
        found = self._connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
        if sorted(sql for (sql,) in found) != sorted(schema.VERSIONS.get(version, ())):
            raise self._damaged("the tables do not match the format version")

    def recover(self, queue_id_last: int) -> Recovered:
        """Check everything and return the small tables."""
        check_trees(self._connection, self._path)
        entities = [EntityRow(*row) for row in self._checked_rows("SELECT * FROM entity")]
        counters = {
            row[0]: QueueCounters(*row) for row in self._checked_rows("SELECT * FROM counters")
        }
        meta: dict[str, MetaValue] = dict(self._checked_rows("SELECT * FROM meta"))
        live = {entity.queue_id for entity in entities}
        if max(live, default=0) > queue_id_last or not counters.keys() <= live:
            raise self._damaged("entities and counters do not match")
        paths = {entity.path: entity.queue_id for entity in entities}
        for entity in entities:
            if paths[entity.path] != entity.queue_id:
                raise self._damaged(f"entity path {entity.path!r} occurs twice", entity.queue_id)
        self._compare_counters(live, counters)
        self._check_shares()
        seen, sessions = self._seen(live), self._sessions(live)
        found = Recovered(entities, counters, meta, queue_id_last + 1, seen, sessions)
        found.path = str(self._path)
        found.state_bytes = {
            queue_id: size
            for queue_id, size in state_bytes(self._connection).items()
            if queue_id in live
        }
        return found

    def _seen(self, live: set[int]) -> dict[int, list[SeenRow]]:
        """The message ids for duplicate detection; these rows are read whole and checked here."""
        seen: dict[int, list[SeenRow]] = {}
        for queue_id in self._queues_in("seen", live, set(self.garbage())):
            queue = queue_id << SEQ_BITS
            rows = self._connection.execute(_SEEN, (queue, queue | SEQ_MAX))
            seen[queue_id] = [self._seen_row(*values) for values in rows]
        return seen

    def _seen_row(self, row_id: int, at_ms: int, crc: int, digests: bytes) -> SeenRow:
        if row_checksum.of_blob(row_id, at_ms, 0, digests) != crc:
            detail = "duplicate-detection ids do not match their checksum"
            raise self._damaged(detail, row_id >> SEQ_BITS)
        return SeenRow(row_id >> SEQ_BITS, row_id & SEQ_MAX, at_ms, digests)

    def _check_shares(self) -> None:
        """Every selection has its chunk and its shared body; every shared body is selected from."""
        for sql, detail in _BROKEN_REFERENCES.items():
            if self._connection.execute(sql).get is not None:
                raise self._damaged(detail)

    def _sessions(self, live: set[int]) -> dict[int, list[SessionCounts]]:
        queues = self._queues_in("session_chunk", live, set(self.garbage()))
        found = ((each, read_sessions(self._connection, self._path, each)) for each in queues)
        return {queue_id: sessions for queue_id, sessions in found if sessions}

    def _compare_counters(self, live: set[int], counters: dict[int, QueueCounters]) -> None:
        totals = self._totals(live)
        for queue_id in totals.keys() | counters.keys():
            total = totals[queue_id]
            stored = counters.get(queue_id, QueueCounters(queue_id))
            kept = (stored.message_count, stored.deferred_count, stored.scheduled_count)
            found = (total.message_count, total.deferred_count, total.scheduled_count)
            if kept != found:
                raise self._damaged(
                    f"its counters show {kept[0]} messages, {kept[1]} deferred and {kept[2]} "
                    f"scheduled, its rows {found[0]}, {found[1]} and {found[2]}",
                    queue_id,
                )
            if total.seq_last >= stored.next_seq:
                detail = f"the next sequence number, {stored.next_seq}, is already in use"
                raise self._damaged(detail, queue_id, total.seq_last)

    def _totals(self, live: Set[int]) -> dict[int, _Totals]:
        totals: dict[int, _Totals] = defaultdict(_Totals)
        garbage = set(self.garbage())
        for queue_id in self._queues_in("chunk", live, garbage):
            self._add_chunks(queue_id, totals[queue_id])
        for queue_id in self._queues_in("tombstone", live, garbage):
            self._subtract_tombstones(queue_id, totals[queue_id])
        for queue_id, count in self._connection.execute(_DEFERRED_BY_QUEUE):
            if queue_id not in garbage:
                totals[queue_id].deferred_count = count
        for queue_id, count, row_id in self._connection.execute(_SCHEDULED):
            if queue_id not in garbage:
                total = totals[queue_id]
                total.scheduled_count = count
                total.seq_last = max(total.seq_last, row_id & SEQ_MAX)
        return totals

    def _queues_in(self, table: str, live: Set[int], garbage: set[int]) -> Iterator[int]:
        """The live queues with rows in a table; one query for each queue."""
        sql = _NEXT_IN_TABLE.format(table=table)
        row_id = self._connection.execute(sql, (-1,)).get
        while row_id is not None:
            queue_id = row_id >> SEQ_BITS
            if queue_id in live:
                yield queue_id
            elif queue_id not in garbage:
                raise self._damaged("rows belong to a queue id that was never assigned", queue_id)
            row_id = self._connection.execute(sql, (queue_id << SEQ_BITS | SEQ_MAX,)).get

    def _add_chunks(self, queue_id: int, total: _Totals) -> None:
        queue = queue_id << SEQ_BITS
        free, messages = queue + 1, 0
        for row_id, count in self._connection.execute(_SPANS, (queue, queue | SEQ_MAX)):
            if row_id < free or count < 1:
                raise self._damaged("chunks overlap", queue_id, row_id & SEQ_MAX)
            free = row_id + count
            messages += count
        total.message_count = messages
        total.seq_last = free - 1 - queue

    def _subtract_tombstones(self, queue_id: int, total: _Totals) -> None:
        queue = queue_id << SEQ_BITS
        free = queue
        for row_id, last_id, crc, chunk_ends in self._connection.execute(
            _TOMBSTONES, (queue, queue | SEQ_MAX)
        ):
            seq = row_id & SEQ_MAX
            if row_checksum.of_pair(row_id, last_id) != crc:
                raise self._damaged("a tombstone does not match its checksum", queue_id, seq)
            if chunk_ends is None or last_id >= chunk_ends or not free <= row_id <= last_id:
                raise self._damaged("a tombstone is outside its chunk", queue_id, seq)
            free = last_id + 1
            total.message_count -= free - row_id

    def _checked_rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a small table, checked, without their checksum."""
        for *values, crc in self._connection.execute(sql):
            if row_checksum.of_values(*values) != crc:
                raise self._damaged(f"a row does not match its checksum ({sql})")
            yield tuple(values)

    def _damaged(
        self, detail: str, queue_id: int | None = None, seq: int | None = None
    ) -> StoreCorrupt:
        return StoreCorrupt(path=self._path, detail=detail, queue_id=queue_id, first_seq=seq)
