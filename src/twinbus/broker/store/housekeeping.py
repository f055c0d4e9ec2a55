"""What the writer does when nobody is waiting for it, in slices that nobody notices.

    rows of deleted queues -> free pages at the file's end -> the log

Rule 1: a slice ends after a few milliseconds; the next send waits no longer than that.
Rule 2: some free pages stay in the file, so that a queue that fills and drains all day does
        not shrink and grow the file all day.
"""

from __future__ import annotations

import time
from typing import Final

import apsw

from twinbus.broker.store.port import SEQ_BITS, SEQ_MAX
from twinbus.broker.store.schema import QUEUE_TABLES
from twinbus.broker.store.writer import Writer

# The transaction's fsync comes on top; together they stay near 20 ms.
SLICE_S: Final = 0.010
SLICE_ROWS: Final = 32

# Measured 60 µs a page. 8 MB of free pages are kept.
SLICE_PAGES: Final = 128
FREE_PAGES_KEPT: Final = 512

# A log below 1 MB is left alone.
IDLE_LOG_PAGES: Final = 64

_DELETE: Final = (
    "DELETE FROM {table} WHERE id IN"
    " (SELECT id FROM {table} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?)"
)


class Housekeeping:
    """Gives back what deleted queues and settled messages have left."""

    def __init__(self, writer: Writer, garbage: list[int]) -> None:
        self._writer = writer
        self._garbage = garbage
        self._emptied_count = 0
        self._shrunk = False

    def queue_deleted(self, queue_id: int) -> None:
        self._garbage.append(queue_id)

    def slice(self) -> bool:
        """Do one slice; whether there is more to do."""
        self._writer.require_working()
        if self._garbage:
            self._emptied_count = 0
            self._writer.transact(self._collect)
            del self._garbage[: self._emptied_count]
            return True
        if self._writer.count_free_pages() > FREE_PAGES_KEPT:
            surplus = self._writer.free_pages - FREE_PAGES_KEPT
            self._writer.give_back_pages(min(surplus, SLICE_PAGES))
            self._shrunk = True
            return True
        if self._shrunk or self._writer.log_pages >= IDLE_LOG_PAGES:
            # The file itself becomes shorter only now.
            self._shrunk = not self._writer.checkpoint(restart=True)
        return False

    def _collect(self, cursor: apsw.Cursor) -> None:
        """Delete rows of deleted queues until the slice is over; the rules of a topic are many."""
        deadline_s = time.monotonic() + SLICE_S
        for queue_id in self._garbage:
            if not _empty(cursor, queue_id, deadline_s):
                return
            self._emptied_count += 1
            if time.monotonic() >= deadline_s:
                return


def _empty(cursor: apsw.Cursor, queue_id: int, deadline_s: float) -> bool:
    """Delete the rows of one queue; whether that could be finished in time."""
    for table in QUEUE_TABLES:
        while _delete_some(cursor, table, queue_id):
            if time.monotonic() >= deadline_s:
                return False
    cursor.execute("DELETE FROM garbage WHERE queue_id = ?", (queue_id,))
    return True


def _delete_some(cursor: apsw.Cursor, table: str, queue_id: int) -> bool:
    queue = queue_id << SEQ_BITS
    cursor.execute(_DELETE.format(table=table), (queue, queue | SEQ_MAX, SLICE_ROWS))
    return cursor.connection.changes() == SLICE_ROWS
