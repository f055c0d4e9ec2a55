"""Messages that several queues share: stored once, loaded as if each had its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import (
    DeleteChunks,
    DeleteEntity,
    Op,
    PutChunk,
    SharedBodySelection,
    Store,
    Tombstone,
)
from twinbus.broker.storage.shared_bodies import plan_shared_bodies, select
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreCorrupt
from verification.crash_consistency.builders import (
    MEBIBYTE,
    all_chunks,
    chunk,
    counters,
    entity,
    share_of,
    sheet_of,
)

RECORDS = [bytes([65 + number]) * 20_000 for number in range(10)]
SHEET_BYTES = 200_000


def published(queue_ids: range, first_seq: int = 1) -> list[Op]:
    """The same ten messages for each of these queues."""
    sheet = sheet_of(*RECORDS)
    ops: list[Op] = []
    for queue_id in queue_ids:
        row = {"first_seq": first_seq, "queue_id": queue_id}
        ops.append(share_of(sheet, RECORDS, range(10), **row))
        ops.append(counters(first_seq + 10, 10, queue_id=queue_id))
    return ops


@pytest.fixture
def ten_queues(store: Store) -> Store:
    store.commit([entity(queue_id, f"queue-{queue_id}") for queue_id in range(2, 11)])
    return store


def rows(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    count: int = connection.execute(f"SELECT COUNT(*) FROM {table}").get
    connection.close()
    return count


def test_a_shared_chunk_comes_back_as_it_was(ten_queues: Store) -> None:
    """M8: whoever loads a chunk cannot tell that its bytes are shared."""
    sheet = sheet_of(*RECORDS)
    puts = [
        share_of(sheet, RECORDS, range(10), queue_id=1),
        share_of(sheet, RECORDS, [0, 3, 4, 9], queue_id=2),
        share_of(sheet, RECORDS, range(5, 10), queue_id=3),
    ]
    ten_queues.commit([*puts])
    for put in puts:
        (loaded,) = all_chunks(ten_queues, put.row.queue_id)
        assert loaded.row == put.row
        holding = ten_queues.load_chunk_holding(put.row.queue_id, 2)
        assert holding is not None and holding.row == put.row


def test_a_shared_chunk_is_settled_like_any_other(ten_queues: Store) -> None:
    """M8: what one queue settles, the others still have."""
    ten_queues.commit(published(range(1, 4)))
    ten_queues.commit([Tombstone(1, 2, 3), counters(11, 8)])
    ten_queues.commit([DeleteChunks(2, 1, 1), counters(11, 0, queue_id=2)])
    (first,) = all_chunks(ten_queues, 1)
    assert first.gone == [(2, 3)]
    assert all_chunks(ten_queues, 2) == []
    (third,) = all_chunks(ten_queues, 3)
    assert third.row.blob == sheet_of(*RECORDS).blob


def test_a_selection_that_does_not_fit_is_refused(ten_queues: Store) -> None:
    """A caller's mistake is a ValueError, and nothing is stored."""
    sheet = sheet_of(b"a", b"b")
    for selection in (0b111, 0b1, 0):
        with pytest.raises(ValueError, match="select"):
            ten_queues.commit([PutChunk(chunk(1, 2).row, SharedBodySelection(sheet, selection))])
    assert all_chunks(ten_queues) == []


def test_a_refused_commit_leaves_no_sheet(ten_queues: Store) -> None:
    """M8: all of a commit or nothing."""
    ten_queues.commit(published(range(1, 3)))
    with pytest.raises(ValueError, match="overlap"):
        ten_queues.commit([*published(range(3, 5)), *published(range(1, 3))])
    ten_queues.verify_all()
    assert all_chunks(ten_queues, 3) == []


def test_the_body_is_on_disk_once(sqlite_store: SqliteStore, store_path: Path) -> None:
    """M1: ten subscriptions take the room of one, and none when all have settled."""
    # Given 4 MB of messages for each of ten queues
    sqlite_store.commit([entity(queue_id, f"queue-{queue_id}") for queue_id in range(2, 11)])
    for number in range(20):
        sqlite_store.commit(published(range(1, 11), number * 10 + 1))
    taken = sqlite_store.statistics()
    assert 20 * SHEET_BYTES < taken.file_bytes + taken.wal_bytes < 3 * 20 * SHEET_BYTES
    assert rows(store_path, "sheet") == 20

    # When nine of them have settled everything, the tenth still has all of it
    for queue_id in range(1, 10):
        sqlite_store.commit([DeleteChunks(queue_id, 1, 200), counters(201, 0, queue_id=queue_id)])
    assert len(all_chunks(sqlite_store, 10)) == 20
    assert rows(store_path, "sheet") == 20

    # And when the tenth is deleted, the sheets go with it
    sqlite_store.commit([DeleteEntity(10)])
    while sqlite_store.maintain():
        pass
    assert rows(store_path, "sheet") == rows(store_path, "share") == 0
    sqlite_store.verify_all()


def test_a_sheet_survives_a_restart(store_path: Path) -> None:
    """M8: the audit at opening finds shares and sheets in order."""
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity(1), entity(2, "other"), *published(range(1, 3))])
    store.close()
    store.open()
    assert [len(all_chunks(store, queue_id)[0].row.blob) for queue_id in (1, 2)] == [200_040] * 2
    store.close()


def test_one_user_or_little_to_share_is_stored_plainly(
    sqlite_store: SqliteStore, store_path: Path
) -> None:
    """A reference must be worth its row, and must not keep others' messages on disk."""
    sqlite_store.commit([entity(queue_id, f"queue-{queue_id}") for queue_id in range(2, 6)])
    sqlite_store.commit(published(range(1, 2)))
    tiny = [b"a", b"b"]
    sheet = sheet_of(*tiny)
    row = {"first_seq": 11}
    sqlite_store.commit([share_of(sheet, tiny, [0, 1], queue_id=each, **row) for each in (1, 2)])
    assert rows(store_path, "sheet") == 0

    # A small part is copied while the large ones share
    sheet = sheet_of(*RECORDS)
    places = {1: range(10), 2: range(10), 3: [4]}
    row = {"first_seq": 101}
    puts = [share_of(sheet, RECORDS, places[each], queue_id=each, **row) for each in places]
    sqlite_store.commit([*puts])
    assert (rows(store_path, "sheet"), rows(store_path, "share")) == (1, 2)

    # Parts that have nothing in common are no reason for a sheet
    halves = {4: range(5), 5: range(5, 10)}
    puts = [share_of(sheet, RECORDS, halves[each], queue_id=each, **row) for each in halves]
    assert plan_shared_bodies(puts, 1).bodies == []


@pytest.fixture
def shared_store(store_path: Path) -> Iterator[Path]:
    """A closed store in which two queues share."""
    store = SqliteStore(store_path)
    store.open()
    sheet = sheet_of(*RECORDS)
    some = share_of(sheet, RECORDS, range(8), queue_id=2)
    store.commit([entity(1), entity(2, "other"), share_of(sheet, RECORDS, range(10)), some])
    store.commit([counters(11, 10), counters(9, 8, queue_id=2)])
    store.close()
    return store_path


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE sheet SET blob = zeroblob(length(blob))",
        "UPDATE sheet SET count = count - 1",
        "UPDATE share SET selection = x'fe01' WHERE id >> 40 = 2",
        "UPDATE share SET selection = x'' WHERE id >> 40 = 2",
        "UPDATE share SET crc = crc + 1",
        "DROP TRIGGER share_gone",
        "DELETE FROM sheet",
        "DELETE FROM share WHERE id >> 40 = 2",
        "DELETE FROM share",
        "UPDATE share SET sheet_id = sheet_id + 1",
        "UPDATE share SET id = id + 1 WHERE id >> 40 = 2",
        "UPDATE chunk SET blob = x'00' WHERE id >> 40 = 2",
        "INSERT INTO sheet SELECT id + 1, count, crc, blob FROM sheet",
    ],
)
def test_damage_to_what_is_shared_is_reported(shared_store: Path, sql: str) -> None:
    """M8: never served, never left out."""
    connection = apsw.Connection(str(shared_store))
    connection.execute(sql)
    connection.close()
    store = SqliteStore(shared_store)
    with pytest.raises(StoreCorrupt):  # noqa: PT012 - some are found on opening already
        store.open()
        for queue_id in (1, 2):
            store.load_chunks(queue_id, 0, MEBIBYTE, 10)
        store.verify_all()
    store.close()


def test_a_selection_of_other_messages_is_reported(shared_store: Path) -> None:
    """M8: a row that is right in itself and belongs to another chunk's state is damage too."""
    connection = apsw.Connection(str(shared_store))
    (row_id, sheet_id) = next(
        connection.execute("SELECT id, sheet_id FROM share WHERE id >> 40 = 2")
    )
    other = b"\xf0\x03"
    crc = row_checksum.of_blob(row_id, sheet_id, 0, other)
    connection.execute("UPDATE share SET selection = ?, crc = ? WHERE id = ?", (other, crc, row_id))
    connection.close()
    store = SqliteStore(shared_store)
    store.open()
    with pytest.raises(StoreCorrupt) as caught:
        all_chunks(store, 2)
    assert (caught.value.queue_id, caught.value.first_seq, caught.value.last_seq) == (2, 1, 8)
    store.close()


def test_a_selection_keeps_the_order_of_its_sheet() -> None:
    blob = sheet_of(b"a", b"bb", b"", b"dddd").blob
    assert select(blob, 4, b"\x0a") == sheet_of(b"bb", b"dddd").blob
    assert select(blob, 4, b"") == blob
    with pytest.raises(ValueError, match="exceeds"):
        select(blob, 4, b"\x10")
