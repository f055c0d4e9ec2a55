"""A disk that is full is waited for; a disk that fails ends the store; neither loses anything."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.store_files import Disk
from twinbus.errors import StoreFailed, StoreFull, TwinbusError
from verification.crash_consistency.builders import all_chunks, chunk, counters, entity, first_seqs
from verification.crash_consistency.faulty import FaultPlan, faulty_disk


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest.fixture
def faulty_store(plan: FaultPlan, store_path: Path) -> Iterator[SqliteStore]:
    with faulty_disk(plan) as vfs:
        store = SqliteStore(store_path, vfs=vfs)
        store.open()
        store.commit([entity(), chunk(1), counters(11, 10)])
        yield store
        store.close()


def test_a_full_disk_stores_nothing_and_the_store_goes_on(
    faulty_store: SqliteStore, plan: FaultPlan
) -> None:
    """M8: a commit refused for want of space is not there, and later ones are accepted."""
    # Given a disk without room
    plan.fail_next(apsw.FullError, only="write")

    # When commits are tried
    for _ in range(3):
        with pytest.raises(StoreFull) as caught:
            faulty_store.commit([chunk(11), counters(21, 20)])
        assert caught.value.is_transient

    # Then nothing was stored, and with room again everything works
    assert first_seqs(all_chunks(faulty_store)) == [1]
    plan.heal()
    faulty_store.commit([chunk(11), counters(21, 20)])
    faulty_store.close()
    assert faulty_store.open().counters[1].message_count == 20


def test_a_checkpoint_without_room_does_not_refuse_commits(
    faulty_store: SqliteStore, plan: FaultPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk that fills up just when the log is to be copied
    plan.fail_next(apsw.FullError, only="write")
    assert faulty_store._writer is not None
    assert not faulty_store._writer.checkpoint(restart=False)
    plan.heal()

    # Then the store was not harmed
    faulty_store.commit([chunk(11), counters(21, 20)])
    assert first_seqs(all_chunks(faulty_store)) == [1, 11]


def test_after_a_failed_sync_no_commit_is_ever_accepted(
    faulty_store: SqliteStore, plan: FaultPlan
) -> None:
    """M8: after a failed fsync nobody knows what is on disk, so nothing is acknowledged."""
    # Given a disk whose sync fails once
    plan.fail_next(apsw.IOError, only="sync")
    with pytest.raises(StoreFailed, match="injected"):
        faulty_store.commit([chunk(11), counters(21, 20)])

    # When the disk is well again, the store is not: a sync that succeeds now proves nothing
    plan.heal()
    for _ in range(3):
        with pytest.raises(StoreFailed, match="an earlier write failed"):
            faulty_store.commit([chunk(11), counters(21, 20)])
    with pytest.raises(StoreFailed):
        faulty_store.maintain()

    # And opening it again finds all that was acknowledged
    faulty_store.close()
    assert faulty_store.open().counters[1].message_count in (10, 20)


def test_the_reader_reports_a_failing_disk_as_ours(
    faulty_store: SqliteStore, store_path: Path
) -> None:
    # Given a reader whose connection is gone
    assert faulty_store._read_connection is not None
    faulty_store._read_connection.close()

    with pytest.raises(StoreFailed):
        all_chunks(faulty_store)


class FailingDisk(Disk):
    """Refuses one of the operations that the store does beside SQLite."""

    def __init__(self, operation: str, number: int) -> None:
        self.operation, self.number = operation, number

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_fail("rename")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._maybe_fail("sync_directory")
        super().sync_directory(path)

    def _maybe_fail(self, operation: str) -> None:
        if operation == self.operation:
            raise OSError(self.number, "injected")


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreFailed)])
def test_a_creation_that_fails_is_told_in_our_words_and_can_be_repeated(
    store_path: Path, operation: str, number: int, error: type[TwinbusError]
) -> None:
    # Given a disk that fails while the store is created
    with pytest.raises(error, match="injected"):
        SqliteStore(store_path, disk=FailingDisk(operation, number)).open()

    # When it is well again, then the store is created as if nothing had been
    store = SqliteStore(store_path)
    assert store.open().entities == []
    store.commit([entity()])
    store.close()
