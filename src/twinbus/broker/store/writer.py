"""The connection that writes: transactions, the log's length, and the end after an error.

    commit:  [checkpoint if due] -> BEGIN -> work, ledger -> COMMIT (fsync) -> mark

Rule 1: the commit number grows by one in every transaction that changes rows.
Rule 2: the mark is written after the commit is durable, never before.
Rule 3: "disk full" undoes the transaction and nothing else. Any other error ends the writer:
        the log is recovered by opening the store again, not by going on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from twinbus.broker.store.audit import StoreHeader
from twinbus.broker.store.connection import checkpoint_on_close, translated
from twinbus.broker.store.mark import CommitMarker
from twinbus.broker.store.writes import update_ledger
from twinbus.errors import StoreFailed, StoreFull

# Measured: inline checkpoints at this distance cost no more than a thread of their own.
CHECKPOINT_COMMITS: Final = 64

# By size, in pages of 16 KB: copy the log back from 8 MB on, because the commit that has to wait
# for a checkpoint of 32 MB waits 100 ms and more. From 24 MB on wait for the reader too, so that
# the log begins anew long before it passes 64 MB.
CHECKPOINT_PAGES: Final = 512
RESTART_PAGES: Final = 1536


class Writer:
    """The one writing connection of a store."""

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
        connection.set_wal_hook(self._committed)

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
        with self._guarded():
            self._cursor.execute("BEGIN IMMEDIATE")
            work(self._cursor)
            update_ledger(self._cursor, *ledger)
            self._cursor.execute("COMMIT")
        self.ledger = ledger
        self._commits_since_checkpoint += 1
        self._mark.record(ledger.commit_number)

    def give_back_pages(self, count: int) -> int:
        """Cut free pages off the file's end; how many free ones remain."""
        self.require_working()
        self._checkpoint_if_due()
        with self._guarded():
            self._cursor.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
            self._commits_since_checkpoint += 1
        return self.count_free_pages()

    def count_free_pages(self) -> int:
        with self._guarded():
            self.free_pages = int(self._connection.pragma("freelist_count"))
        return self.free_pages

    def checkpoint(self, *, restart: bool) -> bool:
        """Copy the log into the main file; whether all of it could be copied.

        With ``restart``, also wait for the reader and cut the log to nothing.
        """
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if restart else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._commits_since_checkpoint = 0
        try:
            with self._guarded():
                pages, copied = self._try_checkpoint(mode)
        except StoreFull:
            # The commits are safe in the log, which goes on growing until there is room again.
            return False
        if pages == copied:
            self.log_pages = 0
        return pages == copied

    def _try_checkpoint(self, mode: int) -> tuple[int, int]:
        try:
            return self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            # The reader was in the log for longer than we wait; the next commit tries again.
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
        """Bring everything into the main file, unless the writer has failed."""
        try:
            if self._failure is None:
                self.checkpoint(restart=True)
        finally:
            # SQLite removes the log when all of it was copied, and a failed one is evidence.
            checkpoint_on_close(self._connection, self._failure is None)
            self._connection.close()
            self._mark.close()

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Undo what may be undone; after anything else, this writer is finished."""
        try:
            with translated(self._path):
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
