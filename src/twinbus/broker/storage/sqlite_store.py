"""The store on SQLite: one file, with its log (``-wal``) and its mark (``.mark``) beside it.

    open:  header -> tables -> ledger against mark -> integrity check -> writing is allowed

A store of an older format is upgraded when it is opened, in one transaction.

Rule 1: one connection writes and checkpoints, one reads; each belongs to one thread.
Rule 2: a store whose commit number is lower than its mark has lost acknowledged commits; it is
        refused.
Rule 3: a refused store stays unchanged, log included.
Rule 4: an upgrade creates the new tables first, then everything is checked; a refused store is
        rolled back.
Rule 5: an upgrade adds only empty tables, so it takes no longer for a large store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from twinbus.broker.storage import schema
from twinbus.broker.storage.integrity_check import IntegrityCheck, StoreHeader
from twinbus.broker.storage.interface import (
    NO_BYTES_MAX,
    DeleteEntity,
    LoadedChunk,
    Op,
    Recovered,
    ScheduledRow,
    StoreStatistics,
)
from twinbus.broker.storage.operation_checks import KnownQueues, validate_operations
from twinbus.broker.storage.sqlite_connection import (
    WRITER_CACHE_KIB,
    open_reader,
    open_writer,
    require_sqlite_version,
    set_cache,
    translate_errors,
    translate_read_errors,
)
from twinbus.broker.storage.sqlite_operations import apply_ops
from twinbus.broker.storage.sqlite_reader import RowReader
from twinbus.broker.storage.sqlite_writer import Housekeeping, Writer
from twinbus.broker.storage.store_files import (
    CommitMarker,
    Disk,
    beside,
    check_head,
    create_store,
    make_private,
    read_mark,
    remove_drafts,
)
from twinbus.errors import StoreCorrupt, StoreFailed


@contextmanager
def upgrade(connection: apsw.Connection, version: int) -> Iterator[None]:
    """Upgrade the store inside the block; an exception rolls the upgrade back."""
    if version == schema.FORMAT_VERSION:
        yield
        return
    with connection:
        for step in range(version, schema.FORMAT_VERSION):
            for statement in schema.UPGRADES[step]:
                connection.execute(statement)
        connection.pragma("user_version", schema.FORMAT_VERSION)
        yield


class SqliteStore:
    """The durable store driver."""

    def __init__(
        self, path: str | Path, *, disk: Disk | None = None, vfs: str | None = None
    ) -> None:
        self._path = Path(path)
        self._disk = disk or Disk()
        self._vfs = vfs
        self._known_queues = KnownQueues()
        self._writer: Writer | None = None
        self._reader: RowReader | None = None
        self._read_connection: apsw.Connection | None = None
        self._housekeeping: Housekeeping | None = None

    def open(self) -> Recovered:
        if self._writer is not None:
            raise StoreFailed(path=self._path, detail="the store is already open")
        require_sqlite_version()
        with translate_errors(self._path):
            if not self._disk.exists(self._path):
                create_store(self._path, self._disk, self._vfs)
            remove_drafts(self._path, self._disk)
            check_head(self._path, self._disk)
            make_private(self._path, self._disk)
            connection = open_writer(self._path, self._vfs)
            try:
                with translate_read_errors(self._path):
                    return self._recover(connection)
            except BaseException:
                connection.close()
                raise

    def _recover(self, connection: apsw.Connection) -> Recovered:
        """Check everything first; write nothing before all checks have passed."""
        check = IntegrityCheck(connection, self._path)
        version = check.version()
        check.check_schema(version)
        ledger = check.ledger()
        self._compare_with_mark(ledger)
        with upgrade(connection, version):
            recovered = check.recover(ledger.queue_id_last)
        garbage = check.garbage()
        set_cache(connection, WRITER_CACHE_KIB)
        mark = CommitMarker(self._mark_path, ledger.store_id)
        mark.record(ledger.commit_number)
        try:
            read_connection = open_reader(self._path, self._vfs)
        except BaseException:
            mark.close()
            raise
        self._writer = Writer(connection, self._path, ledger, mark)
        self._housekeeping = Housekeeping(self._writer, garbage)
        self._read_connection = read_connection
        self._reader = RowReader(read_connection, self._path)
        self._known_queues = KnownQueues(recovered.entities, ledger.queue_id_last)
        return recovered

    @property
    def _mark_path(self) -> Path:
        return beside(self._path, ".mark")

    def _compare_with_mark(self, ledger: StoreHeader) -> None:
        mark = read_mark(self._mark_path)
        if mark is None:
            return
        if mark.store_id != ledger.store_id:
            detail = f"file {self._mark_path.name!r} belongs to another store"
            raise StoreCorrupt(path=self._path, detail=detail)
        if ledger.commit_number < mark.commit_number:
            raise StoreCorrupt(
                path=self._path,
                detail=f"commits {ledger.commit_number + 1} to {mark.commit_number} were "
                "acknowledged and are missing (an older copy of the files, or a damaged log)",
            )

    def commit(self, ops: Sequence[Op]) -> None:
        writer = self._open_writer()
        admitted, changes = validate_operations(ops, self._known_queues)
        if not admitted:
            writer.require_working()
            return
        writer.transact(
            lambda cursor: apply_ops(cursor, admitted, writer.ledger.commit_number + 1),
            queue_id_last=(changes or self._known_queues).queue_id_last,
        )
        if changes is not None:
            self._note_deleted(admitted)
            self._known_queues.apply(changes)

    def _note_deleted(self, ops: Sequence[Op]) -> None:
        assert self._housekeeping is not None
        for op in ops:
            if isinstance(op, DeleteEntity):
                self._housekeeping.queue_deleted(op.queue_id)

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise StoreFailed(path=self._path, detail="the store is not open")
        return self._writer

    def _open_reader(self) -> RowReader:
        if self._reader is None:
            raise StoreFailed(path=self._path, detail="the store is not open")
        return self._reader

    def load_chunks(
        self,
        queue_id: int,
        after_seq: int,
        bytes_max: int,
        count_max: int,
        session: str | None = None,
    ) -> list[LoadedChunk]:
        return self._open_reader().load_chunks(queue_id, after_seq, bytes_max, count_max, session)

    def load_session_state(self, queue_id: int, session: str) -> bytes | None:
        return self._open_reader().load_session_state(queue_id, session)

    def load_sessions_updated(
        self, queue_id: int, since_ms: int, after: str | None, count_max: int
    ) -> tuple[list[str], str | None]:
        return self._open_reader().load_sessions_updated(queue_id, since_ms, after, count_max)

    def load_chunk_holding(self, queue_id: int, seq: int) -> LoadedChunk | None:
        return self._open_reader().load_chunk_holding(queue_id, seq)

    def load_expired(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[LoadedChunk]:
        return self._open_reader().load_expired(queue_id, now_ms, count_max, bytes_max)

    def next_expiry(self, queue_id: int) -> int | None:
        return self._open_reader().next_expiry(queue_id)

    def load_due(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        return self._open_reader().load_due(queue_id, now_ms, count_max, bytes_max)

    def next_due(self, queue_id: int) -> int | None:
        return self._open_reader().next_due(queue_id)

    def load_scheduled(
        self, queue_id: int, after_seq: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        return self._open_reader().load_scheduled(queue_id, after_seq, count_max, bytes_max)

    def load_deferred_seqs(self, queue_id: int, after_seq: int, count_max: int) -> list[int]:
        return self._open_reader().load_deferred_seqs(queue_id, after_seq, count_max)

    def maintain(self) -> bool:
        self._open_writer()
        assert self._housekeeping is not None
        return self._housekeeping.slice()

    def verify_all(self) -> None:
        with translate_read_errors(self._path):
            connection = open_reader(self._path, self._vfs)
            try:
                check = IntegrityCheck(connection, self._path)
                check.check_schema()
                check.recover(check.ledger().queue_id_last)
                RowReader(connection, self._path).check_every_row(check.garbage())
                verdict = connection.pragma("integrity_check")
            finally:
                connection.close()
        if verdict != "ok":
            raise StoreCorrupt(path=self._path, detail=str(verdict))

    def statistics(self) -> StoreStatistics:
        writer = self._open_writer()
        return StoreStatistics(
            file_bytes=self._disk.size_bytes(self._path),
            wal_bytes=self._disk.size_bytes(beside(self._path, "-wal")),
            free_pages=writer.free_pages,
            page_bytes=schema.PAGE_BYTES,
            commit_number=writer.ledger.commit_number,
            engine=f"SQLite {apsw.sqlite_lib_version()}",
        )

    def close(self) -> None:
        writer, self._writer = self._writer, None
        connection, self._read_connection = self._read_connection, None
        self._reader = self._housekeeping = None
        with translate_errors(self._path):
            # The reader first: only the last connection to close can remove the log.
            if connection is not None:
                connection.close()
            if writer is not None:
                writer.close()
