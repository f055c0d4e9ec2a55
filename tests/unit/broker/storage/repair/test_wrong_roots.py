"""M15: a page number that leads into the tree of another table costs neither of them a row."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from tests.unit.broker.storage.repair.test_doubtful_rows import messages_in
from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import Op, PutScheduled, SetChunkExpiry, Tombstone
from twinbus.broker.storage.repair.page_file import INTERIOR, PageFile
from twinbus.broker.storage.repair.salvage import TABLES
from twinbus.broker.storage.repair.store_repair import Doctor
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import chunk, counters, entity, share_of, sheet_of

PAGE = schema.PAGE_BYTES
CHUNKS = 60
ROWS = ("expiry", "tombstone", "scheduled", "sheet", "share", "chunk", "entity", "session_chunk")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a tree of several pages for its chunks, and rows of tables that seal alike."""
    path = tmp_path_factory.mktemp("roots") / "store.db"
    store = SqliteStore(path)
    store.open()
    ops: list[Op] = [entity(), entity(2, "others")]
    for number in range(CHUNKS):
        first = 1 + 3 * number
        ops += share_chunk(first) if number % 5 == 4 else [whole_chunk(first)]
        if number % 4 == 0:
            ops += [Tombstone(1, first, first)]
        ops += [PutScheduled(1, 1_000 + number, 4_000_000_000_000, b"later %d" % number)]
    gone = len(range(0, CHUNKS, 4))
    shared = 3 * len(range(4, CHUNKS, 5))
    own = [counters(2_000, 3 * CHUNKS - gone, scheduled=CHUNKS)]
    store.commit([*ops, *own, counters(2_000, shared, queue_id=2)])
    store.commit([SetChunkExpiry(1, 1 + 3 * number, 4_000_000_000_000) for number in range(CHUNKS)])
    store.close()
    return path


def whole_chunk(first: int) -> Op:
    records = [b"%04d" % (first + at) * 200 for at in range(3)]
    return chunk(first, 3, blob=sheet_of(*records).blob)


def share_chunk(first: int) -> list[Op]:
    records = [b"%04d" % (first + at) * 200 for at in range(3)]
    sheet = sheet_of(*records)
    return [
        share_of(sheet, records, range(3), first_seq=first, queue_id=queue_id)
        for queue_id in (1, 2)
    ]


def roots(path: Path) -> dict[str, int]:
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT name, rootpage FROM sqlite_schema WHERE type = 'table'"
    found = dict(connection.execute(sql).fetchall())
    connection.close()
    return found


def rows_of(path: Path, table: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    connection.close()
    return found


def check_repair(original: Path, path: Path) -> None:
    report = Doctor(path.parent).examine(path, path.with_name("new.db"))
    assert not report.is_healthy
    assert (report.totals.lost, report.totals.repeated) == (0, 0)
    for queue_id in (1, 2):
        assert messages_in(path.with_name("new.db"), queue_id) == messages_in(original, queue_id)
    for table in ROWS:
        assert rows_of(path.with_name("new.db"), table) == rows_of(original, table), table
    assert Doctor(path.parent).examine(path.with_name("new.db")).findings == []


CASES = [
    (table, other)
    for table in TABLES
    for other in ("chunk", "tombstone", "expiry", "scheduled", "sheet", "counters")
    if table != other
]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "other"), CASES)
def test_the_root_of_another_table_is_read_as_that_tables(
    table: str, other: str, original: Path, tmp_path: Path
) -> None:
    """M15: a bit of a root's number, in the list of tables."""
    path = tmp_path / "store.db"
    shutil.copyfile(original, path)
    connection = apsw.Connection(str(path))
    connection.pragma("writable_schema", 1)
    sql = "UPDATE sqlite_schema SET rootpage = ? WHERE type = 'table' AND name = ?"
    connection.execute(sql, (roots(original)[other], table))
    connection.close()
    check_repair(original, path)


def test_a_page_of_another_tree_is_read_as_that_trees(original: Path, tmp_path: Path) -> None:
    """M15: a bit of a child's number: the first leaf of the chunks, in the tree before it."""
    path = tmp_path / "store.db"
    content = bytearray(original.read_bytes())
    with PageFile(original) as pages:
        sheet, chunk = (pages.page(roots(original)[table]) for table in ("sheet", "chunk"))
        assert sheet[0] == chunk[0] == INTERIOR
    first = int.from_bytes(chunk[8:12], "big")
    at = (roots(original)["sheet"] - 1) * PAGE + 8
    content[at : at + 4] = first.to_bytes(4, "big")
    path.write_bytes(content)
    check_repair(original, path)


@pytest.mark.parametrize("table", ["chunk", "sheet"])
def test_a_tree_that_leads_back_to_itself_is_read_once(
    table: str, original: Path, tmp_path: Path
) -> None:
    """M15: the page that it should have led to is found without it."""
    path = tmp_path / "store.db"
    content = bytearray(original.read_bytes())
    root = roots(original)[table]
    at = (root - 1) * PAGE + 8
    content[at : at + 4] = root.to_bytes(4, "big")
    path.write_bytes(content)
    check_repair(original, path)
