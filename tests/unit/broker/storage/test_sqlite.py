"""What only the durable driver promises: space, a bounded log, and loads beside commits."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import apsw
import pytest

from tests.unit.broker.storage.files import as_killed
from twinbus.broker.storage import integrity_check, schema, sqlite_reader, sqlite_writer
from twinbus.broker.storage.interface import (
    DeleteChunks,
    DeleteEntity,
    PutMeta,
    PutState,
    Store,
    Tombstone,
)
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import MEBIBYTE, all_chunks, chunk, counters, entity

CHUNK_BYTES = 100_000


def fill(store: Store, chunks: int) -> None:
    """Chunks of a hundred messages of 1 KB, eight in a commit."""
    blob = bytes(range(250)) * (CHUNK_BYTES // 250)
    for start in range(0, chunks, 8):
        numbers = range(start, min(start + 8, chunks))
        puts = [chunk(number * 100 + 1, 100, blob=blob) for number in numbers]
        messages = (numbers[-1] + 1) * 100
        store.commit([*puts, counters(messages + 1, messages)])


def settle_all(store: Store, chunks: int) -> None:
    for number in range(chunks):
        first_seq = number * 100 + 1
        left = counters(chunks * 100 + 1, (chunks - number - 1) * 100)
        store.commit([DeleteChunks(1, first_seq, first_seq), left])


def maintain_to_the_end(store: Store) -> int:
    slices = 1
    while store.maintain():
        slices += 1
    return slices


def test_space_is_given_back_after_a_drain(sqlite_store: SqliteStore) -> None:
    """A backlog that came and went leaves a small file."""
    # Given 40 MB of messages
    fill(sqlite_store, 400)
    assert sqlite_store.statistics().file_bytes > 30 * MEBIBYTE

    # When all are settled and the writer has been idle for a while
    settle_all(sqlite_store, 400)
    slices = maintain_to_the_end(sqlite_store)

    # Then the file has shrunk to the few free pages that are kept, in many small slices
    statistics = sqlite_store.statistics()
    assert statistics.file_bytes < 10 * MEBIBYTE and statistics.wal_bytes == 0
    assert slices > 10
    sqlite_store.verify_all()


def test_a_deleted_queue_is_collected_in_slices_and_gives_its_space_back(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a large queue beside a small one, and slices that end at once
    monkeypatch.setattr(sqlite_writer, "SLICE_S", 0.0)
    fill(sqlite_store, 200)
    sqlite_store.commit([entity(2, "kept"), chunk(1, queue_id=2), counters(11, 10, queue_id=2)])

    # When the large one is deleted
    sqlite_store.commit([DeleteEntity(1)])
    before = sqlite_store.statistics().commit_number
    maintain_to_the_end(sqlite_store)

    # Then it goes in several commits, the file shrinks, and the other is whole
    assert sqlite_store.statistics().commit_number - before > 200 // sqlite_writer.SLICE_ROWS
    assert sqlite_store.statistics().file_bytes < 10 * MEBIBYTE
    assert len(all_chunks(sqlite_store, 2)) == 1


def test_collecting_a_deleted_queue_goes_on_after_a_restart(
    sqlite_store: SqliteStore, store_path: Path
) -> None:
    # Given two deleted queues of which nothing was collected yet
    fill(sqlite_store, 100)
    sqlite_store.commit([entity(2, "other"), chunk(1, queue_id=2), counters(11, 10, queue_id=2)])
    sqlite_store.commit([DeleteEntity(1), DeleteEntity(2)])
    sqlite_store.close()

    # When the store is opened again and idle
    sqlite_store.open()
    maintain_to_the_end(sqlite_store)
    sqlite_store.close()

    # Then no row of it is left
    connection = apsw.Connection(str(store_path), apsw.SQLITE_OPEN_READONLY)
    rows = [connection.execute(f"SELECT COUNT(*) FROM {table}").get for table in TABLES_OF_QUEUES]
    connection.close()
    assert rows == [0] * len(TABLES_OF_QUEUES)
    sqlite_store.open()


TABLES_OF_QUEUES = (*schema.QUEUE_TABLES, "garbage", "counters", "entity")


def test_the_log_stays_short_while_somebody_reads_all_the_time(sqlite_store: SqliteStore) -> None:
    """64 MB is the limit that operators are told; a busy reader must not break it."""
    # Given a reader that never pauses
    ended = threading.Event()
    failures: list[Exception] = []

    def read() -> None:
        try:
            while not ended.is_set():
                sqlite_store.load_chunks(1, 0, 4 * MEBIBYTE, 50)
        except Exception as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()

    # When 60 MB are written
    longest = 0
    blob = bytes(CHUNK_BYTES)
    for number in range(600):
        first_seq = number * 100 + 1
        put = chunk(first_seq, 100, blob=blob)
        sqlite_store.commit([put, counters(first_seq + 100, first_seq + 99)])
        longest = max(longest, sqlite_store.statistics().wal_bytes)
    ended.set()
    reader.join()

    # Then neither has disturbed the other
    assert failures == []
    assert longest <= 64 * MEBIBYTE


def test_a_load_sees_tombstones_and_states_of_the_same_commit(sqlite_store: SqliteStore) -> None:
    # Given a writer that settles one more message in each commit and counts along in a state;
    # a load reads the two from different tables, by different statements
    counted_seq = 2_000
    sqlite_store.commit([chunk(1, counted_seq), PutState(1, counted_seq, 0, False)])
    ended = threading.Event()
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        while not ended.is_set():
            (loaded,) = sqlite_store.load_chunks(1, 0, MEBIBYTE, 1)
            settled = sum(last - first + 1 for first, last in loaded.gone)
            seen.add((settled, loaded.states[counted_seq][0]))

    reader = threading.Thread(target=read)
    reader.start()

    # When the reader looks all the time
    for number in range(1, 1_001):
        sqlite_store.commit([Tombstone(1, number, number), PutState(1, counted_seq, number, False)])
    ended.set()
    reader.join()

    # Then it has seen many commits and never half of one
    assert len(seen) > 20
    assert [pair for pair in sorted(seen) if pair[0] != pair[1]] == []
    sqlite_store.commit([counters(counted_seq + 1, counted_seq - 1_000)])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (module, name)
        for module in (sqlite_reader, integrity_check)
        for name, value in vars(module).items()
        if isinstance(value, str) and value.startswith("SELECT") and "{" not in value
        # The check of the trees reads whole tables: that is what it is for.
        if name not in ("_CHUNK_COLUMNS", "_STATES")
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.rsplit(".", 1)[-1],
)
def test_no_question_reads_a_whole_table(
    sqlite_store: SqliteStore, store_path: Path, module: object, name: str
) -> None:
    """A queue of a million messages must not slow down another."""
    connection = apsw.Connection(str(store_path), apsw.SQLITE_OPEN_READONLY)
    sql = getattr(module, name)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * sql.count("?"))
    details = [row[3] for row in plan]
    connection.close()

    # Indexes are scanned by the audit only, which counts all of them.
    scans = [detail for detail in details if detail.startswith("SCAN") and "INDEX" not in detail]
    assert scans == []


def test_the_format_on_disk_is_the_one_we_measured(store_path: Path) -> None:
    store = SqliteStore(store_path)
    store.open()
    assert store._writer is not None
    connection = store._writer._connection

    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("page_size") == 16384
    assert connection.pragma("auto_vacuum") == 2
    assert connection.pragma("mmap_size") == 0
    assert connection.pragma("wal_autocheckpoint") == 0
    store.close()


def test_closing_leaves_one_file_and_its_mark(store_path: Path) -> None:
    store = SqliteStore(store_path)
    store.open()
    store.commit([PutMeta("a", 1)])
    store.close()

    assert {file.name for file in store_path.parent.iterdir()} == {"store.db", "store.db.mark"}


def test_the_files_of_a_store_are_for_their_owner_only(store_path: Path) -> None:
    """Messages are in them. The umask of the process does not matter."""
    previous = os.umask(0)
    try:
        store = SqliteStore(store_path)
        store.open()
        store.commit([entity()])
        fill(store, 1)
        modes = modes_beside(store_path)
        store.close()
    finally:
        os.umask(previous)
    assert {"store.db", "store.db-wal", "store.db-shm", "store.db.mark"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert set(modes_beside(store_path).values()) == {0o600}


def test_a_store_that_others_can_read_is_closed_to_them_when_it_is_opened(
    store_path: Path,
) -> None:
    """Those of an earlier version are 0644."""
    # Given the files of a killed broker, all open to others
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity()])
    fill(store, 1)
    killed = as_killed(store_path, store_path.parent / "killed")
    store.close()
    for file in killed.parent.iterdir():
        file.chmod(0o644)

    # When they are opened again, then they are private, and so is what SQLite makes beside them
    store = SqliteStore(killed)
    store.open()
    modes = modes_beside(killed)
    store.close()
    assert {"store.db", "store.db-wal", "store.db-shm", "store.db.mark"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def modes_beside(path: Path) -> dict[str, int]:
    """The mode of every file of a store."""
    return {
        file.name: stat.S_IMODE(file.stat().st_mode)
        for file in path.parent.iterdir()
        if file.name.startswith(path.name)
    }
