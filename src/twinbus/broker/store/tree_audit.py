"""Is every row where it belongs, and does every index agree with its table?

Checksums tell a damaged row from a stored one when it is read. A row that is not found is never
read: one flipped bit in an index, in the head of a page or in a row's id hides a scheduled message,
an expiry, a session. The counters see missing messages; this sees everything else.

Rule 1: no body is read. Tables with small rows are looked through by SQLite's own check, tables
        with bodies are compared with their index, which touches no overflow page.
Rule 2: a row that neither an index nor a counter knows (``state``) has its checksum looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from twinbus.broker.store import seal
from twinbus.broker.store.port import SEQ_BITS, SEQ_MAX
from twinbus.errors import StoreCorrupt

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
# As many entries as rows, and one for each row: then there are no others.
_DIFFERENCES: Final = (
    "SELECT (SELECT COUNT(*) FROM {table} INDEXED BY {index})"
    " - (SELECT COUNT(*) FROM {table} NOT INDEXED),"
    " (SELECT COUNT(*) FROM {table} AS one NOT INDEXED WHERE NOT EXISTS"
    " (SELECT 1 FROM {table} AS other INDEXED BY {index} WHERE other.id >> 40 = one.id >> 40"
    " AND other.{column} = one.{column} AND other.id = one.id))"
)
_STATES: Final = "SELECT id, delivery_count, deferred, crc FROM state"


def check_trees(connection: apsw.Connection, path: Path) -> None:
    """Raise StoreCorrupt at the first table that is not what its rows and indexes say."""
    for table in _SMALL:
        verdict = connection.execute(f"PRAGMA integrity_check({table})").get
        if verdict != "ok":
            raise StoreCorrupt(path=path, detail=f"the table {table!r} is damaged ({verdict})")
    for table, (index, column) in _WITH_BODIES.items():
        sql = _DIFFERENCES.format(table=table, index=index, column=column)
        if connection.execute(sql).get != (0, 0):
            detail = f"the table {table!r} and its index do not agree"
            raise StoreCorrupt(path=path, detail=detail)
    for row_id, delivery_count, deferred, crc in connection.execute(_STATES):
        if seal.of_triple(row_id, delivery_count, deferred) != crc:
            raise StoreCorrupt(
                path=path,
                detail="the state of a message does not match its checksum",
                queue_id=row_id >> SEQ_BITS,
                first_seq=row_id & SEQ_MAX,
            )
