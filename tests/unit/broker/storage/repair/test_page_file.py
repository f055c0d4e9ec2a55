"""M15: the doctor's page reader, judged by SQLite itself on files that SQLite wrote.

A file is made by a random program: tables come and go, rows of all sizes are put, changed and
deleted, commits and checkpoints fall anywhere, and at the end the log may have a tail that was
never committed, was cut off or is damaged. Then our reader and SQLite read copies of it, and must
agree on every row, every page and what each page is for. The judge is Python's own ``sqlite3``
module, which comes with another build of SQLite than the one that writes our stores; only what
needs an extension (``dbstat``) is asked of that one.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import apsw
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from twinbus.broker.storage.repair.page_file import (
    MAP_FREE,
    MAP_OVERFLOW,
    MAP_OVERFLOW_FIRST,
    MAP_ROOT,
    MAP_TREE,
    PageFile,
    Row,
    TreeReader,
)
from twinbus.broker.storage.repair.salvage import Salvage

# Those that are asked for, the smallest (deep trees of few rows) and the largest (written as 1).
PAGE_BYTES: Final = (4096, 16384, 512, 65536)
TABLES: Final = ("alpha", "beta", "gamma")
COLUMN_COUNT: Final = 4

Tables = dict[str, list[tuple[Any, ...]]]
Step = tuple[Any, ...]

# To shrink a program takes minutes; a failing one is printed, and is short enough to be read.
QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

ids = st.one_of(st.integers(-3, 60), st.integers(-(2**63), 2**63 - 1))
sizes = st.one_of(st.integers(0, 40), st.integers(0, 1_200), st.integers(0, 70_000))
values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, -129, 2**15, 2**23, 2**31, 2**47, -(2**47) - 1]),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255)),
    st.builds(lambda size: "ä" * size, sizes.map(lambda size: size // 2)),
)
rows = st.lists(st.tuples(ids, st.tuples(*[values] * COLUMN_COUNT)), min_size=1, max_size=12)
tables = st.sampled_from(TABLES)
steps = st.one_of(
    st.tuples(st.just("put"), tables, rows),
    st.tuples(st.just("put"), tables, rows),
    st.tuples(st.just("many"), tables, st.integers(1, 400), st.integers(0, 90)),
    st.tuples(st.just("delete"), tables, st.integers(1, 7)),
    st.tuples(st.just("change"), tables, st.integers(1, 7), values),
    st.tuples(st.just("drop"), tables),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("roll back")),
    st.tuples(st.just("checkpoint"), st.sampled_from(("PASSIVE", "RESTART", "TRUNCATE"))),
    st.tuples(st.just("vacuum"), st.integers(1, 20)),
)
tails = st.one_of(
    st.just(("whole",)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20)),
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(1, 255)),
)


class Program:
    """Runs the steps of a program on one file."""

    def __init__(
        self, path: Path, page_bytes: int, auto_vacuum: str, *, keeps_log: bool = True
    ) -> None:
        """``keeps_log``: frames may stay in the log that a checkpoint has copied already."""
        self._keeps_log = keeps_log
        self._connection = apsw.Connection(str(path))
        for name, value in (
            ("page_size", page_bytes),
            ("auto_vacuum", auto_vacuum),
            ("journal_mode", "WAL"),
            ("wal_autocheckpoint", 0),
            # Few pages are kept in memory: what is not committed is in the log, too.
            ("cache_size", 10),
            ("synchronous", "OFF"),
        ):
            self._connection.pragma(name, value)
        self._create(*TABLES)

    def close(self) -> None:
        self._connection.close()

    def run(self, step: Step) -> None:
        match step:
            case ("put", table, put):
                self._begin()
                sql = f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?)"
                self._connection.executemany(sql, [(row_id, *row) for row_id, row in put])
            case ("many", table, count, size):
                self._begin()
                sql = f"INSERT INTO {table} (a, d) VALUES (?, ?)"
                # The highest id may be the highest there is; then SQLite takes any that is free.
                self._connection.executemany(sql, [(n, bytes(size)) for n in range(count)])
            case ("delete", table, each):
                self._begin()
                self._connection.execute(f"DELETE FROM {table} WHERE id % ? = 0", (each,))
            case ("change", table, each, value):
                self._begin()
                few = f"SELECT id FROM {table} WHERE id % ? = 1 ORDER BY id LIMIT 20"
                sql = f"UPDATE {table} SET b = ? WHERE id IN ({few})"
                self._connection.execute(sql, (value, each))
            case ("drop", table):
                self._begin()
                self._connection.execute(f"DROP TABLE {table}")
                self._create(table)
            case ("commit",):
                self._end("COMMIT")
            case ("roll back",):
                self._end("ROLLBACK")
            case ("checkpoint", mode):
                self._end("COMMIT")
                mode = mode if self._keeps_log else "TRUNCATE"
                self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            case ("vacuum", count):
                self._end("COMMIT")
                self._connection.execute(f"PRAGMA incremental_vacuum({count})").fetchall()

    def _create(self, *names: str) -> None:
        for name in names:
            self._connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a, b, c, d)")
            self._connection.execute(f"CREATE INDEX {name}_by_a ON {name} (a)")

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def _end(self, how: str) -> None:
        if self._connection.in_transaction:
            self._connection.execute(how)


def spoil(log: Path, tail: Step) -> None:
    """Cut or change the end of a log, as a crash or a disk does."""
    content = bytearray(log.read_bytes())
    if not content:
        return
    match tail:
        case ("cut", at):
            log.write_bytes(content[: at % len(content)])
        case ("flip", at, bits):
            content[at % len(content)] ^= bits
            log.write_bytes(content)


def copied(path: Path, directory: Path) -> Path:
    """The database and its log, without the log's index: who opens it reads the log anew."""
    directory.mkdir()
    for name in (path.name, f"{path.name}-wal"):
        if path.with_name(name).exists():
            shutil.copyfile(path.with_name(name), directory / name)
    return directory / path.name


# -- our reader ---------------------------------------------------------------------------------


def rows_of(reader: TreeReader, table: str, root: int) -> Iterator[Row]:
    for number, page in reader.leaves(table, root):
        cells, is_sound = reader.read_leaf(number, page)
        assert is_sound, (table, number)
        for cell in cells:
            assert isinstance(cell, Row), (table, number, cell)
            yield cell


def roots_of(reader: TreeReader) -> dict[str, int]:
    """The root page of every table, from the list of tables on page 1."""
    listed = [row.values for row in rows_of(reader, "sqlite_schema", 1)]
    return {name: root for kind, name, _table, root, _sql in listed if kind == "table"}


def read_by_us(path: Path) -> Tables:
    with PageFile(path) as pages:
        reader = TreeReader(pages)
        found = {
            table: [_with_id(row) for row in rows_of(reader, table, root)]
            for table, root in roots_of(reader).items()
        }
        assert not reader.flaws
    return found


def _with_id(row: Row) -> tuple[Any, ...]:
    """A row as SQL shows it: where its id is a column, a null is stored in its place."""
    first, *rest = row.values
    return (row.row_id if first is None else first, *rest)


# -- SQLite -------------------------------------------------------------------------------------


def read_by_sqlite(path: Path, connect: Any = sqlite3.connect) -> Tables:
    with closing(connect(str(path))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall()
            for (name,) in names.fetchall()
        }


def numbers_by_sqlite(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        }


def pages_by_sqlite(path: Path) -> dict[int, tuple[str, str, bool]]:
    """Page -> the tree that it belongs to, what it is there, and whether it is the root."""
    with closing(apsw.Connection(str(path))) as connection:
        found = connection.execute("SELECT pageno, name, pagetype, path FROM dbstat").fetchall()
    return {page: (name, kind, where == "/") for page, name, kind, where in found}


def check_pages(path: Path, pages_known: dict[int, tuple[str, str, bool]]) -> None:
    """Which page belongs to which table, and what the pointer map says about each."""
    with PageFile(path) as pages:
        reader = TreeReader(pages)
        for table, root in roots_of(reader).items():
            for _row in rows_of(reader, table, root):
                pass
            own = {page for page, owner in reader.owners.items() if owner == table}
            assert own == {
                page
                for page, (name, kind, _is_root) in pages_known.items()
                if name == table and kind != "overflow"
            }
        kinds = {page: kind for page, (kind, _parent) in pages.pointer_map().items()}
        for page, (_name, kind, is_root) in pages_known.items():
            if page == 1:
                continue  # The map begins behind it.
            if kind == "overflow":
                assert kinds[page] in (MAP_OVERFLOW_FIRST, MAP_OVERFLOW)
            else:
                assert kinds[page] == (MAP_ROOT if is_root else MAP_TREE)
        free = pages.free_pages()
        assert {page for page, kind in kinds.items() if kind == MAP_FREE} == free
        assert not free & pages_known.keys()
        maps = {page for page in range(1, pages.page_count + 1) if pages.is_map(page)}
        # The page 1 GiB into a file would be in none of them; no file here is as large.
        assert free | maps | pages_known.keys() == set(range(1, pages.page_count + 1))


def compare(path: Path, root: Path) -> None:
    ours = copied(path, root / "ours")
    theirs = copied(path, root / "theirs")
    assert read_by_us(ours) == read_by_sqlite(theirs)
    numbers = numbers_by_sqlite(copied(path, root / "numbers"))
    with PageFile(ours) as pages:
        assert pages.page_bytes == numbers["page_size"]
        assert pages.page_count == numbers["page_count"]
        assert len(pages.free_pages()) == numbers["freelist_count"]
    check_pages(ours, pages_by_sqlite(copied(path, root / "pages")))


# -- tests --------------------------------------------------------------------------------------


@QUICK
@given(
    page_bytes=st.sampled_from(PAGE_BYTES),
    auto_vacuum=st.sampled_from(("INCREMENTAL", "FULL")),
    program=st.lists(steps, min_size=1, max_size=14),
    tail=tails,
)
def test_any_file_is_read_as_sqlite_reads_it(
    page_bytes: int, auto_vacuum: str, program: list[Step], tail: Step
) -> None:
    """M15: all rows, overflow pages, free pages, and of a log what was committed and is whole."""
    with TemporaryDirectory() as directory:
        path = made(Path(directory), page_bytes, auto_vacuum, program, tail)
        compare(path, Path(directory))


def made(
    root: Path, page_bytes: int, auto_vacuum: str, program: list[Step], tail: Step = ("whole",)
) -> Path:
    """The file as a program leaves it that was killed: with its log, and the log's last frames."""
    # A log that loses frames which a checkpoint has copied belongs to no state that ever was.
    keeps_log = tail == ("whole",)
    written = Program(root / "file.db", page_bytes, auto_vacuum, keeps_log=keeps_log)
    try:
        for step in program:
            written.run(step)
        path = copied(root / "file.db", root / "copy")
    finally:
        written.close()
    spoil(path.with_name("file.db-wal"), tail)
    return path


LONG: Final = ("x", "y" * 9_000, b"z" * 60_000, None)
BUSY: Final[list[Step]] = [
    ("put", "alpha", [(number, LONG) for number in range(8)]),
    ("many", "beta", 400, 80),
    ("commit",),
    ("checkpoint", "PASSIVE"),
    ("change", "alpha", 2, "first"),
    ("commit",),
    ("change", "alpha", 2, "second"),
    ("delete", "beta", 3),
    ("commit",),
    ("change", "alpha", 2, "never committed"),
    ("many", "gamma", 400, 4_000),
]


@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
def test_a_log_with_several_versions_of_a_page_and_an_uncommitted_tail(
    page_bytes: int, tmp_path: Path
) -> None:
    """M15: the newest committed version counts; this one file has all that a log can have."""
    path = made(tmp_path, page_bytes, "INCREMENTAL", BUSY)
    frames = frame_heads(path.with_name("file.db-wal"), page_bytes)
    numbers = [number for number, _page_count in frames]
    assert len(set(numbers)) < len(numbers), "no page has two versions"
    assert frames[-1][1] == 0, "the log ends with a commit"
    compare(path, tmp_path)
    changed = [row[2] for row in read_by_us(path)["alpha"] if row[0] % 2]
    assert changed == ["second"] * 4
    assert read_by_us(path)["gamma"] == []


def frame_heads(log: Path, page_bytes: int) -> list[tuple[int, int]]:
    """Page number and, at the end of a commit, page count of every frame of a log."""
    content = log.read_bytes()
    starts = range(32, len(content), 24 + page_bytes)
    return [struct.unpack_from(">2I", content, at) for at in starts]


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_brokers_own_store_is_read_as_sqlite_reads_it(
    state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """M15: and what is salvaged of a whole store is all of it."""
    data: Path = request.getfixturevalue(state)
    stores = list(data.glob("namespace-*/store.db"))
    assert stores
    for store in stores:
        copy = copied(store, tmp_path / store.parent.name)
        # With the newer SQLite: an old one knows no STRICT tables.
        judged = copied(store, tmp_path / f"{store.parent.name}-judge")
        expected = read_by_sqlite(judged, apsw.Connection)
        assert read_by_us(copy) == expected
        kept = Rows()
        with PageFile(copy) as pages:
            found = Salvage(pages, kept).run()
        assert not found.flaws
        assert {table: sorted(rows) for table, rows in kept.tables.items()} == {
            table: sorted(rows) for table, rows in expected.items() if rows
        }


class Rows:
    """Keeps what is salvaged."""

    def __init__(self) -> None:
        self.tables: Tables = {}

    def put(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        self.tables.setdefault(table, []).extend(rows)


def test_a_value_that_no_store_has_is_no_row(tmp_path: Path) -> None:
    """M15: our tables hold no fractions; a row with one is named by its id and not guessed."""
    path = made(tmp_path, 4096, "FULL", [("put", "alpha", [(7, (1, 0.5, 2, 3))]), ("commit",)])
    with PageFile(path) as pages:
        reader = TreeReader(pages)
        root = roots_of(reader)["alpha"]
        ((number, page),) = reader.leaves("alpha", root)
        assert reader.read_leaf(number, page) == ([7], True)


@pytest.mark.parametrize("bit", [0, 1, 7])
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_row_whose_length_is_damaged_is_found_by_its_own_header(
    bit: int, size: int, tmp_path: Path
) -> None:
    """M15: the length in front of a row is one of two places that say where it ends."""
    put = [(row_id, (row_id, None, "text", bytes([row_id]) * size)) for row_id in range(1, 5)]
    path = made(tmp_path, 4096, "FULL", [("put", "alpha", put), ("commit",)])
    with PageFile(path) as pages:
        reader = TreeReader(pages)
        number, page = next(iter(reader.leaves("alpha", roots_of(reader)["alpha"])))
        cells, _is_sound = reader.read_leaf(number, page)
        at = struct.unpack_from(">H", page, 8)[0]
        damaged = bytearray(page)
        # The last byte of the length; the seventh bit makes it longer by a byte.
        damaged[at + (2 if size > 16_383 else 0)] ^= 1 << bit
        again, _is_sound = reader.read_leaf(number, bytes(damaged))
        assert again[0] != cells[0]
        wanted = [cell for cell in cells if isinstance(cell, Row)]
        found = reader.search_page(bytes(damaged), lambda row: row in wanted)
        # With another length of the length, the id behind it is lost as well.
        assert sorted(found) == (wanted if bit < 7 else wanted[1:])
