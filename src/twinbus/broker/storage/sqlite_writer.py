"""The writer of a SQLite store: transactions, checkpoints and housekeeping.

    commit:        [checkpoint if due] -> BEGIN -> work, ledger -> COMMIT (fsync) -> mark
    housekeeping:  rows of deleted queues -> free pages at the file's end -> the log

Housekeeping runs in short slices when no commit waits.

Rule 1: the commit number grows by one in every transaction that changes rows.
Rule 2: the mark is written after the commit is durable, never before.
Rule 3: "disk full" rolls back the transaction and nothing else. Any other error stops the writer:
        the log is recovered by opening the store again, not by continuing.
Rule 4: a slice ends after a few milliseconds; the next send waits no longer than that.
Rule 5: some free pages stay in the file, so that a queue that fills and drains all day does
        not shrink and grow the file all day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from twinbus.broker.storage.integrity_check import StoreHeader
from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX
from twinbus.broker.storage.schema import QUEUE_TABLES
from twinbus.broker.storage.sqlite_connection import checkpoint_on_close, translate_errors
from twinbus.broker.storage.sqlite_operations import update_ledger
from twinbus.broker.storage.store_files import CommitMarker
from twinbus.errors import StoreFailed, StoreFull

# Measured: inline checkpoints at this distance cost no more than a thread of their own.
CHECKPOINT_COMMITS: Final = 64

# By size, in pages of 16 KB: copy the log back from 8 MB on, because the commit that has to wait
# for a checkpoint of 32 MB waits 100 ms and more. From 24 MB on wait for the reader too, so that
# the log is restarted long before it reaches 64 MB.
CHECKPOINT_PAGES: Final = 512
RESTART_PAGES: Final = 1536


class Writer:
    """The only connection that writes to a store."""

    def __init__(
        self, connection: apsw.Connection, path: Path, ledger: StoreHeader, mark: CommitMarker
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._mark = mark
        self._commits_since_checkpoint = 0
        self._failure: str | None = None
        self.ledger = ledger
        self.log_pages = 0
        """Pages in the log after the last commit, checkpointed or not."""
        self.free_pages = 0
        connection.set_wal_hook(self._on_commit)

    def transact(
        self, work: Callable[[apsw.Cursor], None], *, queue_id_last: int | None = None
    ) -> None:
        """Run the work as one transaction; return once it is durable."""
        self.require_working()
        self._checkpoint_if_due()
        ledger = StoreHeader(
            self.ledger.commit_number + 1,
            self.ledger.queue_id_last if queue_id_last is None else queue_id_last,
            self.ledger.store_id,
        )
        with self._guard():
            self._cursor.execute("BEGIN IMMEDIATE")
            work(self._cursor)
            update_ledger(self._cursor, *ledger)
            self._cursor.execute("COMMIT")
        self.ledger = ledger
        self._commits_since_checkpoint += 1
        self._mark.record(ledger.commit_number)

    def vacuum_pages(self, count: int) -> int:
        """Remove free pages from the end of the file; returns how many free ones remain."""
        self.require_working()
        self._checkpoint_if_due()
        with self._guard():
            self._cursor.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
            self._commits_since_checkpoint += 1
        return self.count_free_pages()

    def count_free_pages(self) -> int:
        with self._guard():
            self.free_pages = int(self._connection.pragma("freelist_count"))
        return self.free_pages

    def checkpoint(self, *, restart: bool) -> bool:
        """Copy the log into the main file; returns whether all of it could be copied.

        With ``restart``, also wait for the reader and truncate the log.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if restart else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._commits_since_checkpoint = 0
        try:
            with self._guard():
                pages, copied = self._try_checkpoint(mode)
        except StoreFull:
            # The commits are safe in the log, which grows until there is disk space again.
            return False
        if pages == copied:
            self.log_pages = 0
        return pages == copied

    def _try_checkpoint(self, mode: int) -> tuple[int, int]:
        try:
            return self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            # The reader used the log for longer than we wait; the next commit tries again.
            return self.log_pages, -1

    def _checkpoint_if_due(self) -> None:
        if self.log_pages >= RESTART_PAGES:
            self.checkpoint(restart=True)
        elif (
            self.log_pages >= CHECKPOINT_PAGES
            or self._commits_since_checkpoint >= CHECKPOINT_COMMITS
        ):
            self.checkpoint(restart=False)

    def require_working(self) -> None:
        if self._failure is not None:
            raise StoreFailed(path=self._path, detail=self._failure)

    def close(self) -> None:
        """Copy everything into the main file, unless the writer has failed."""
        try:
            if self._failure is None:
                self.checkpoint(restart=True)
        finally:
            # SQLite removes the log when all of it was copied; a failed store still needs it.
            checkpoint_on_close(self._connection, self._failure is None)
            self._connection.close()
            self._mark.close()

    def _on_commit(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Roll back after a refusal or a full disk; any other error stops the writer."""
        try:
            with translate_errors(self._path):
                yield
        except (ValueError, StoreFull):
            self._roll_back()
            raise
        except BaseException as error:
            self._failure = f"an earlier write failed ({error})"
            raise

    def _roll_back(self) -> None:
        # SQLite has rolled back already when the disk was full.
        if not self._connection.in_transaction:
            return
        try:
            self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            self._failure = f"a rollback failed ({error})"


# Plus the fsync of the transaction; together about 20 ms.
SLICE_S: Final = 0.010
SLICE_ROWS: Final = 32

# Measured 60 µs a page. 8 MB of free pages are kept.
SLICE_PAGES: Final = 128
FREE_PAGES_KEPT: Final = 512

# A log below 1 MB is not shortened.
IDLE_LOG_PAGES: Final = 64

_DELETE: Final = (
    "DELETE FROM {table} WHERE id IN"
    " (SELECT id FROM {table} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?)"
)


class Housekeeping:
    """Frees the space of deleted queues and settled messages."""

    def __init__(self, writer: Writer, garbage: list[int]) -> None:
        self._writer = writer
        self._garbage = garbage
        self._emptied_count = 0
        self._shrunk = False

    def queue_deleted(self, queue_id: int) -> None:
        self._garbage.append(queue_id)

    def slice(self) -> bool:
        """Do one slice; returns whether there is more to do."""
        self._writer.require_working()
        if self._garbage:
            self._emptied_count = 0
            self._writer.transact(self._collect)
            del self._garbage[: self._emptied_count]
            return True
        if self._writer.count_free_pages() > FREE_PAGES_KEPT:
            surplus = self._writer.free_pages - FREE_PAGES_KEPT
            self._writer.vacuum_pages(min(surplus, SLICE_PAGES))
            self._shrunk = True
            return True
        if self._shrunk or self._writer.log_pages >= IDLE_LOG_PAGES:
            # The file itself becomes shorter only now.
            self._shrunk = not self._writer.checkpoint(restart=True)
        return False

    def _collect(self, cursor: apsw.Cursor) -> None:
        """Delete rows of deleted queues until the slice is over; a topic can have many rules."""
        deadline_s = time.monotonic() + SLICE_S
        for queue_id in self._garbage:
            if not _empty(cursor, queue_id, deadline_s):
                return
            self._emptied_count += 1
            if time.monotonic() >= deadline_s:
                return


def _empty(cursor: apsw.Cursor, queue_id: int, deadline_s: float) -> bool:
    """Delete the rows of one queue; returns whether that was finished in time."""
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
