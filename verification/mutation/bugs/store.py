"""Bugs of the store on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from twinbus.broker.storage import (
    sqlite_connection,
    sqlite_operations,
    sqlite_store,
    sqlite_writer,
    store_files,
)
from twinbus.broker.storage.integrity_check import IntegrityCheck
from twinbus.broker.storage.interface import (
    SEQ_BITS,
    SEQ_MAX,
    ChunkRow,
    PutScheduled,
    Recovered,
)
from twinbus.broker.storage.sqlite_reader import RowReader
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.sqlite_writer import Writer
from twinbus.broker.storage.store_files import CommitMarker, Disk


def leave_syncing_to_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """synchronous=NORMAL."""
    patch.setattr(sqlite_connection, "SYNCHRONOUS", "NORMAL")


def write_the_ledger_apart(patch: pytest.MonkeyPatch) -> None:
    """The commit number comes in a transaction of its own."""
    transact = Writer.transact

    def in_two(self: Writer, work: Callable[[apsw.Cursor], None], **more: Any) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        work(self._cursor)
        self._cursor.execute("COMMIT")
        transact(self, lambda _cursor: None, **more)

    patch.setattr(Writer, "transact", in_two)


def mark_what_is_not_yet_durable(patch: pytest.MonkeyPatch) -> None:
    """The mark runs ahead of its commit."""
    marks: list[CommitMarker] = []
    open_mark, update_ledger = CommitMarker.__init__, sqlite_operations.update_ledger

    def remembered(mark: CommitMarker, *arguments: Any) -> None:
        open_mark(mark, *arguments)
        marks.append(mark)

    def early(cursor: apsw.Cursor, commit_number: int, *rest: Any) -> None:
        update_ledger(cursor, commit_number, *rest)
        marks[-1].record(commit_number)

    patch.setattr(CommitMarker, "__init__", remembered)
    patch.setattr(sqlite_writer, "update_ledger", early)


def write_no_mark(patch: pytest.MonkeyPatch) -> None:
    """Nobody remembers how far the store has come."""
    patch.setattr(CommitMarker, "record", lambda _self, _commit_number: None)


def compare_with_no_mark(patch: pytest.MonkeyPatch) -> None:
    """A store that comes back with an earlier commit is taken as it is."""
    patch.setattr(SqliteStore, "_compare_with_mark", lambda _self, _ledger: None)


class _UnsyncedDisk:
    """A disk whose directories are never synced."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_directory(self, _path: Path) -> None:
        """The new name is where the kernel has it."""


def leave_the_directory_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A new store's name is not durable when the store is used."""
    make = store_files.create_store

    def hasty(path: Path, disk: Disk, vfs: str | None) -> None:
        make(path, _UnsyncedDisk(disk), vfs)  # type: ignore[arg-type]

    patch.setattr(sqlite_store, "create_store", hasty)


def create_it_in_its_place(patch: pytest.MonkeyPatch) -> None:
    """A new store is made under its own name, not under that of a draft."""

    def hasty(path: Path, disk: Disk, vfs: str | None) -> None:
        connection = store_files.open_writer(path, vfs, create=True)
        store_files._fill(connection)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        store_files.checkpoint_on_close(connection, True)
        connection.close()
        disk.sync_directory(path.parent)

    patch.setattr(sqlite_store, "create_store", hasty)


def believe_every_body(patch: pytest.MonkeyPatch) -> None:
    """The checksum of a chunk is not looked at."""
    check = RowReader._chunk

    def credulous(self: RowReader, row_id: Any, count: int, at_ms: int, *rest: Any) -> ChunkRow:
        _crc, blob, expires_ms, _expiry_crc, session, _session_crc = rest
        if not blob:
            return check(self, row_id, count, at_ms, *rest)
        seq = row_id & SEQ_MAX
        return ChunkRow(row_id >> SEQ_BITS, seq, count, at_ms, expires_ms, blob, session)

    patch.setattr(RowReader, "_chunk", credulous)


def balance_no_books(patch: pytest.MonkeyPatch) -> None:
    """Rows are not compared with the counters when a store is opened."""
    patch.setattr(IntegrityCheck, "_compare_counters", lambda _self, _live, _counters: None)


def read_no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """What was settled one by one is there again after a restart."""

    def none(*_args: Any) -> Iterator[tuple[int, int]]:
        return iter(())

    patch.setattr(RowReader, "_tombstones", none)


def read_no_states(patch: pytest.MonkeyPatch) -> None:
    """Delivery counts and deferrals are forgotten at a restart."""

    def none(*_args: Any) -> Iterator[tuple[int, tuple[int, bool]]]:
        return iter(())

    patch.setattr(RowReader, "_states", none)


def number_from_the_last_row(patch: pytest.MonkeyPatch) -> None:
    """After a restart the next sequence number follows the last message that is still there."""
    recover = IntegrityCheck.recover

    def short(self: IntegrityCheck, queue_id_last: int) -> Recovered:
        found = recover(self, queue_id_last)
        totals = self._totals(found.counters.keys())
        for queue_id, counters in found.counters.items():
            counters.next_seq = totals[queue_id].seq_last + 1
        return found

    patch.setattr(IntegrityCheck, "recover", short)


def lose_the_schedule(patch: pytest.MonkeyPatch) -> None:
    """The second of two scheduled messages of one commit is not written."""
    put = sqlite_operations._WRITERS[PutScheduled]

    def short(cursor: apsw.Cursor, ops: list[PutScheduled]) -> None:
        put(cursor, ops[:1])

    patch.setitem(sqlite_operations._WRITERS, PutScheduled, short)


def number_queues_from_the_last_one(patch: pytest.MonkeyPatch) -> None:
    """After a restart the id of a queue that was deleted is given to the next one."""
    recover = IntegrityCheck.recover

    def short(self: IntegrityCheck, queue_id_last: int) -> Recovered:
        found = recover(self, queue_id_last)
        found.next_queue_id = max(found.counters, default=0) + 1
        return found

    patch.setattr(IntegrityCheck, "recover", short)
