"""M15: where a repair cannot know, a message is repeated rather than lost, and that is counted."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import DeleteEntity, Op, PutScheduled, Tombstone
from twinbus.broker.storage.repair.findings import FindingKind
from twinbus.broker.storage.repair.store_repair import Doctor, StoreReport
from twinbus.broker.storage.schema import QUEUE_TABLES
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import (
    all_chunks,
    chunk,
    counters,
    entity,
    share_of,
    sheet_of,
)


def store_with(path: Path, *commits: list[Op]) -> None:
    store = SqliteStore(path)
    store.open()
    for ops in commits:
        store.commit(ops)
    store.close()


def damage(path: Path, *statements: str) -> None:
    """Change rows without their checksums."""
    connection = apsw.Connection(str(path))
    for sql in statements:
        connection.execute(sql)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


def repaired(path: Path) -> StoreReport:
    """Repair into ``new.db``; a diagnosis alone says the same, and the new store is healthy."""
    doctor = Doctor(path.parent)
    seen = doctor.examine(path)
    report = doctor.examine(path, path.with_name("new.db"))
    assert (seen.totals, seen.lost) == (report.totals, report.lost)
    assert [each.kind for each in seen.findings] == [each.kind for each in report.findings]
    assert doctor.examine(path.with_name("new.db")).findings == []
    return report


def messages_in(path: Path, queue_id: int) -> list[bytes]:
    """The messages of a queue that are not settled, in their order."""
    store = SqliteStore(path)
    store.open()
    found = []
    for loaded in all_chunks(store, queue_id):
        row, at = loaded.row, 4 * loaded.row.count
        for place in range(row.count):
            length = int.from_bytes(row.blob[4 * place : 4 * place + 4], "big")
            seq = row.first_seq + place
            if not any(first <= seq <= last for first, last in loaded.gone):
                found.append(row.blob[at : at + length])
            at += length
    store.close()
    return found


# -- deleted queues ---------------------------------------------------------------------------


def store_with_a_deleted_queue(path: Path) -> None:
    """Queue 2 had seven messages and two scheduled ones when it was deleted."""
    store_with(
        path,
        [entity(), chunk(1), counters(11, 10)],
        [entity(2, "gone"), chunk(1, queue_id=2), Tombstone(2, 3, 5)],
        [PutScheduled(2, seq, 50, b"later") for seq in (11, 12)],
        [counters(13, 7, queue_id=2, scheduled=2)],
        [DeleteEntity(2)],
    )


def test_messages_of_deleted_queues_that_come_back_are_repeated(tmp_path: Path) -> None:
    """M15: without the list of deleted queues nobody knows that they were deleted."""
    path = tmp_path / "store.db"
    store_with_a_deleted_queue(path)
    damage(path, "UPDATE garbage SET crc = 1")
    report = repaired(path)
    assert report.paths[2] == "recovered-2"
    assert (report.totals.found, report.totals.lost, report.totals.repeated) == (19, 0, 9)


def test_messages_of_deleted_queues_stay_away(tmp_path: Path) -> None:
    """M15: with the list of deleted queues they do not come back."""
    path = tmp_path / "store.db"
    store_with_a_deleted_queue(path)
    report = repaired(path)
    assert report.findings == []
    assert (report.totals.found, report.totals.lost, report.totals.repeated) == (10, 0, 0)


def test_messages_of_a_queue_that_was_not_deleted_are_not_repeated(tmp_path: Path) -> None:
    """M15: a queue with counters was there, and a list that can be read does not name it."""
    path = tmp_path / "store.db"
    store_with_a_deleted_queue(path)
    damage(path, "UPDATE garbage SET crc = 1", "DELETE FROM entity WHERE queue_id = 1")
    report = repaired(path)
    assert report.paths.keys() == {1, 2}
    assert (report.totals.found, report.totals.lost, report.totals.repeated) == (19, 0, 9)


# -- selections -------------------------------------------------------------------------------


def store_with_selections(path: Path, size: int, parts: dict[int, list[int]]) -> list[bytes]:
    """Queues that have a part of each of three batches; the messages of the second batch."""
    batches = [[b"%d %d " % (batch, at) + bytes(900) for at in range(size)] for batch in range(3)]
    commits: list[list[Op]] = [[entity(queue_id, f"q{queue_id}") for queue_id in parts]]
    for batch, records in enumerate(batches):
        sheet = sheet_of(*records)
        ops: list[Op] = []
        for queue_id, places in parts.items():
            first_seq = 1 + batch * len(places)
            ops.append(share_of(sheet, records, places, queue_id=queue_id, first_seq=first_seq))
            messages = (batch + 1) * len(places)
            ops.append(counters(messages + 1, messages, queue_id=queue_id))
        commits.append(ops)
    store_with(path, *commits)
    return batches[1]


@pytest.mark.parametrize("size", [3, 8, 12, 24, 32])
@pytest.mark.parametrize("loses", ["one", "all"])
def test_a_lost_selection_of_some_messages_is_computed(
    size: int, loses: str, tmp_path: Path
) -> None:
    """M15: the checksum of the chunk leaves one selection only, and its messages are all there."""
    path = tmp_path / "store.db"
    parts = {1: list(range(1, size)), 2: [0, *range(2, size)], 3: list(range(size))}
    store_with_selections(path, size, parts)
    before = {queue_id: messages_in(path, queue_id) for queue_id in parts}
    where = f"WHERE id = {(1 << 40) + 1 + len(parts[1])}" if loses == "one" else ""
    damage(path, f"UPDATE share SET crc = crc + 1 {where}")
    report = repaired(path)
    assert (report.totals.lost, report.totals.repeated) == (0, 0)
    assert FindingKind.SHARED_BODY_MISSING not in {each.kind for each in report.findings}
    after = {queue_id: messages_in(path.with_name("new.db"), queue_id) for queue_id in parts}
    assert after == before


def test_a_lost_selection_of_many_messages_is_that_of_another_entity(tmp_path: Path) -> None:
    """M15: entities with the same rule, or with the opposite one, select alike."""
    path = tmp_path / "store.db"
    odd, even = list(range(1, 100, 2)), list(range(0, 100, 2))
    store_with_selections(path, 100, {1: odd, 2: even, 3: even, 4: list(range(100))})
    before = messages_in(path, 1)
    damage(path, f"UPDATE share SET crc = 1 WHERE id = {(1 << 40) + 51}")
    report = repaired(path)
    assert (report.totals.lost, report.totals.repeated) == (0, 0)
    assert messages_in(path.with_name("new.db"), 1) == before


@pytest.mark.parametrize("has_counters", [True, False])
def test_a_lost_selection_of_many_messages_repeats_those_of_the_sheet(
    has_counters: bool, tmp_path: Path
) -> None:
    """M15: nobody knows which they were; all are there, those too many are counted."""
    path = tmp_path / "store.db"
    odd = list(range(1, 100, 2))
    second = store_with_selections(path, 100, {1: odd, 2: list(range(100))})
    before, others = messages_in(path, 1), messages_in(path, 2)
    damage(path, f"UPDATE share SET crc = 1 WHERE id = {(1 << 40) + 51}")
    if not has_counters:
        damage(path, "UPDATE counters SET crc = 1 WHERE queue_id = 1")
    report = repaired(path)
    assert FindingKind.SHARED_BODY_MISSING in {each.kind for each in report.findings}
    assert (report.totals.lost, report.lost, report.totals.repeated) == (0, [], 50)
    after = messages_in(path.with_name("new.db"), 1)
    assert after == before[:50] + before[100:] + second
    assert messages_in(path.with_name("new.db"), 2) == others


def test_a_chunk_without_its_sheet_is_lost_and_nothing_else_is_given_out(tmp_path: Path) -> None:
    """M15: a small sheet of others is not taken for the one that is lost."""
    path = tmp_path / "store.db"
    store_with_selections(path, 12, {1: list(range(1, 12)), 2: list(range(12))})
    before = messages_in(path, 1)
    damage(path, "UPDATE share SET crc = 1", "UPDATE sheet SET crc = 1 WHERE id >> 20 = 3")
    report = repaired(path)
    assert (report.totals.lost, report.totals.repeated) == (23, 0)
    assert messages_in(path.with_name("new.db"), 1) == before[:11] + before[22:]


# -- rows that are whole and in the wrong place -----------------------------------------------

MISPLACED = {
    "seen": lambda row_id: (row_id, 7, row_checksum.of_blob(row_id, 7, 0, bytes(16)), bytes(16)),
    "scheduled": lambda row_id: (row_id, 7, row_checksum.of_blob(row_id, 7, 0, b"x"), b"x"),
    "share": lambda row_id: (row_id, 7, row_checksum.of_blob(row_id, 7, 0, b"x"), b"x"),
    "chunk": lambda row_id: (row_id, 1, 7, row_checksum.of_blob(row_id, 1, 7, b"x"), b"x"),
    "expiry": lambda row_id: (row_id, 7, row_checksum.of_pair(row_id, 7)),
    "tombstone": lambda row_id: (row_id, row_id, row_checksum.of_pair(row_id, row_id)),
    "state": lambda row_id: (row_id, 7, 1, row_checksum.of_triple(row_id, 7, 1)),
    "session_chunk": lambda row_id: (row_id, "a", row_checksum.of_values(row_id, "a")),
    "session_state": lambda row_id: (
        row_id,
        "a",
        7,
        row_checksum.of_session_state(row_id >> 40, "a", 7, b""),
        b"",
    ),
}


@pytest.mark.parametrize("row_id", [5, -5, -(5 << 40)])
@pytest.mark.parametrize("table", QUEUE_TABLES)
def test_whole_rows_of_a_queue_that_cannot_be_are_left_out(
    table: str, row_id: int, tmp_path: Path
) -> None:
    """M15: some tables seal their rows alike, and a page may have come into another's tree."""
    path = tmp_path / "store.db"
    store_with(path, [entity(), chunk(1), counters(11, 10)])
    row = MISPLACED[table](row_id)
    connection = apsw.Connection(str(path))
    connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.close()
    report = repaired(path)
    assert not report.is_healthy
    assert (report.totals.found, report.totals.lost, report.totals.repeated) == (10, 0, 0)
