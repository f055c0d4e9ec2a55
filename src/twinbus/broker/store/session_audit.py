"""What each session of a queue holds, and whether every chunk of the queue has its session.

Asked when a store is opened: the queue machine must know which sessions have something to hand
out, and how much of its quota their states take. No body is read, and memory grows with the
sessions, not with their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any, Final

import apsw

from twinbus.broker.store import seal
from twinbus.broker.store.port import SEQ_BITS, SEQ_MAX, SESSION_STATE_ROW_BYTES, SessionBook
from twinbus.errors import StoreCorrupt

_CHUNKS: Final = (
    "SELECT chunk.id, count, session, session_chunk.crc FROM chunk"
    " LEFT JOIN session_chunk ON session_chunk.id = chunk.id"
    " WHERE chunk.id BETWEEN ? AND ? ORDER BY chunk.id"
)
_COUNT: Final = "SELECT COUNT(*) FROM session_chunk WHERE id BETWEEN ? AND ?"
_GONE: Final = "SELECT id, last_id - id + 1 FROM tombstone WHERE id BETWEEN ? AND ? ORDER BY id"
_DEFERRED: Final = (
    "SELECT id, 1 FROM state INDEXED BY state_deferred"
    " WHERE deferred = 1 AND id BETWEEN ? AND ? ORDER BY id"
)
# The length of a blob stands in the row's head: the states themselves are not read.
_STATE_BYTES: Final = (
    "SELECT id >> 40, SUM(length(CAST(session AS BLOB)) + length(blob) + ?) FROM session_state"
    " GROUP BY id >> 40"
)


def state_bytes(connection: apsw.Connection) -> dict[int, int]:
    """What the states of sessions take, by queue."""
    found: list[Any] = connection.execute(_STATE_BYTES, (SESSION_STATE_ROW_BYTES,)).fetchall()
    return dict(found)


def read_session_states(
    connection: apsw.Connection, path: Path, queue_id: int
) -> list[SessionBook]:
    """The sessions of a queue that has some, in the order of their oldest chunk."""
    queue = queue_id << SEQ_BITS
    limits = (queue, queue | SEQ_MAX)
    gone = connection.cursor().execute(_GONE, limits)
    deferred = connection.cursor().execute(_DEFERRED, limits)
    inactive: Iterator[tuple[int, int]] = merge(gone, deferred)
    books: dict[str, SessionBook] = {}
    row_count = 0
    id_, count = next(inactive, (1 << 63, 0))
    for row_id, size, session, crc in connection.cursor().execute(_CHUNKS, limits):
        if session is None or seal.of_values(row_id, session) != crc:
            detail = "a chunk lacks its session, or has one that does not match its checksum"
            raise StoreCorrupt(
                path=path, detail=detail, queue_id=queue_id, first_seq=row_id & SEQ_MAX
            )
        row_count += 1
        active = size
        while id_ < row_id + size:
            active -= count
            id_, count = next(inactive, (1 << 63, 0))
        known = books.get(session)
        last_seq = (row_id & SEQ_MAX) + size - 1
        before = 0 if known is None else known.active_count
        books[session] = SessionBook(session, before + active, last_seq)
    if connection.execute(_COUNT, limits).get != row_count:
        detail = "a session names a chunk that is not there"
        raise StoreCorrupt(path=path, detail=detail, queue_id=queue_id)
    return [book for book in books.values() if book.active_count]
