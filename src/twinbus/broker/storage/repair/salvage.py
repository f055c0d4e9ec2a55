"""Every row of a store that can still be read, table by table, whatever its pages look like.

A row is accepted if its own checksum is right (``row_checksum``), whatever the page around it is
like. If the path to a page is lost, the page is found without it, and its rows show its table.

    trees from their roots -> pages that no tree refers to -> rows inside damaged pages

Rule 1: rows come in the order of certainty. The sink keeps the first of each id.
Rule 2: pages that SQLite has freed contain old rows; they are not read unless everything that
        shows which pages are free is damaged too. A message may then be repeated, none is lost.
Rule 3: a chunk that refers to a shared body cannot be checked alone and is returned as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import error as StructError
from struct import unpack_from
from typing import Any, Final, NamedTuple, Protocol

from twinbus.broker.storage import row_checksum, schema
from twinbus.broker.storage.interface import SEQ_BITS, EntityRow
from twinbus.broker.storage.repair.page_file import (
    MAP_ROOT,
    MAP_TREE,
    Flaw,
    PageFile,
    Row,
    TreeReader,
    is_index_page,
    is_table_page,
)

SCHEMA_TABLE: Final = "sqlite_schema"
# At most this many rows, or this many bytes, are passed on at once.
_BATCH_ROWS: Final = 512
_BATCH_BYTES: Final = 4 << 20
# A selection has one bit for each message of a shared body.
_SELECTION_BYTES_MAX: Final = 1 << 16
# This many rows of a page decide which table it belongs to.
_ROWS_SAMPLED: Final = 16
# The place before the first row of a table.
_BEFORE_ALL: Final = -1
# The number of an entity is the high part of its rows' ids.
_ENTITY_ID_BITS: Final = 63 - SEQ_BITS
_TOMBSTONE_MESSAGES_MAX: Final = 1 << 24
_QUEUE_TABLES: Final = frozenset(schema.QUEUE_TABLES)

Values = tuple[Any, ...]


class RowSink(Protocol):
    """Where salvaged rows go."""

    def put(self, table: str, rows: list[Values]) -> None:
        """Keep those whose id is new."""


class Found(NamedTuple):
    """What is known about a store after all of its rows were read."""

    flaws: dict[str, list[Flaw]]
    has_schema: bool
    """Whether the store's own list of tables could be read."""
    is_ours: bool
    """Whether any row is one of ours."""
    has_other_tables: bool
    """Whether the list of tables contains some that no version of ours has."""
    entities_unsealed: list[EntityRow]
    """Entities that can be read although their checksum is wrong."""
    tables_with_older: set[str]
    """Tables of which some rows may be older than the last commit."""


def _chunk(row: Row) -> bool:
    _id, count, enqueued_ms, crc, blob = row.values
    if type(blob) is not bytes or count < 1:
        return False
    return not blob or bool(row_checksum.of_blob(row.row_id, count, enqueued_ms, blob) == crc)


def _body(row: Row) -> bool:
    _id, number, crc, blob = row.values
    return type(blob) is bytes and bool(row_checksum.of_blob(row.row_id, number, 0, blob) == crc)


def _pair(row: Row) -> bool:
    _id, number, crc = row.values
    return bool(row_checksum.of_pair(row.row_id, number) == crc)


def _state(row: Row) -> bool:
    _id, delivery_count, deferred, crc = row.values
    return bool(row_checksum.of_triple(row.row_id, delivery_count, deferred) == crc)


def _id_values(row: Row) -> bool:
    return bool(row_checksum.of_values(row.row_id, *row.values[1:-1]) == row.values[-1])


def _meta(row: Row) -> bool:
    return bool(row_checksum.of_values(*row.values[:-1]) == row.values[-1])


def _ledger(row: Row) -> bool:
    return bool(row_checksum.of_values(*row.values[1:-1]) == row.values[-1])


def _session_state(row: Row) -> bool:
    _id, session, updated_ms, crc, blob = row.values
    return bool(
        row_checksum.of_session_state(row.row_id >> SEQ_BITS, session, updated_ms, blob) == crc
    )


class _Shape(NamedTuple):
    columns: int
    has_valid_checksum: Callable[[Row], bool]


# The small tables first: a repair needs the entities before their messages.
TABLES: Final[dict[str, _Shape]] = {
    "ledger": _Shape(5, _ledger),
    "entity": _Shape(5, _id_values),
    "counters": _Shape(7, _id_values),
    "garbage": _Shape(2, _id_values),
    "meta": _Shape(3, _meta),
    "sheet": _Shape(4, _body),
    "share": _Shape(4, _body),
    "chunk": _Shape(5, _chunk),
    "expiry": _Shape(3, _pair),
    "tombstone": _Shape(3, _pair),
    "state": _Shape(4, _state),
    "scheduled": _Shape(4, _body),
    "seen": _Shape(4, _body),
    "session_chunk": _Shape(3, _id_values),
    "session_state": _Shape(5, _session_state),
}


def checked_values(table: str, row: Row) -> Values | None:
    """The row as it is stored, if it is one of this table and its checksum is right."""
    shape = TABLES[table]
    values = row.values
    if len(values) != shape.columns or (table != "meta" and values[0] is not None):
        return None
    if table in _QUEUE_TABLES and row.row_id >> SEQ_BITS < 1:
        return None
    try:
        if not shape.has_valid_checksum(row):
            return None
    except (TypeError, ValueError, StructError):
        # A text instead of a number, or a number that is too large.
        return None
    return tuple(values) if table == "meta" else (row.row_id, *values[1:])


class Salvage:
    """Reads one store into a sink."""

    def __init__(
        self, pages: PageFile, sink: RowSink, progress: Callable[[int], None] | None = None
    ) -> None:
        self._pages = pages
        self._reader = TreeReader(pages)
        self._sink = sink
        self._progress = progress
        self._page_count = 0
        self._row_count = 0
        self._roots_known: dict[str, int] = {}
        self._has_other_tables = False
        self._entities_unsealed: list[EntityRow] = []
        self._tables_with_older: set[str] = set()
        self._flawed: set[int] = set()
        """Pages of trees with rows that cannot be read as they are."""

    def run(self) -> Found:
        roots = self._roots_known = self._roots()
        numbers = list(roots.values())
        # If two tables have the same root page, one of the numbers is wrong.
        self._reader.misplaced.update(root for root in numbers if numbers.count(root) > 1)
        for table in TABLES:
            if table in roots:
                self._read_tree(table, roots[table])
        self._read_strays()
        return Found(
            self._reader.flaws,
            bool(roots),
            self._row_count > 0,
            self._has_other_tables,
            self._entities_unsealed,
            self._tables_with_older,
        )

    def _roots(self) -> dict[str, int]:
        """The root page of each table according to the store's own schema."""
        expected = {_named(sql): sql for sql in schema.STATEMENTS}
        roots: dict[str, int] = {}
        for number, page in self._reader.leaves(SCHEMA_TABLE, 1):
            cells, is_sound = self._reader.read_leaf(number, page)
            if number in self._pages.log.unsound:
                cells = [*self._reader.read_leaf(number, self._pages.older_page(number))[0], *cells]
            for cell in cells:
                values = cell.values if isinstance(cell, Row) else []
                if len(values) == 5 and expected.get(values[1]) == values[4]:
                    if values[0] == "table" and isinstance(values[3], int):
                        roots[values[1]] = values[3]
                elif not _is_automatic(values):
                    is_sound = False
                    self._has_other_tables |= len(values) == 5
            if not is_sound:
                self._reader.note(SCHEMA_TABLE, Flaw(number, "the list of tables is damaged", None))
        return roots

    # -- trees ----------------------------------------------------------------------------

    def _read_tree(self, table: str, root: int) -> None:
        batch = _Batch(self._sink, table)
        uncertain: list[int] = []
        last_id: int | None = None
        for number, page in self._reader.leaves(table, root):
            self._count_page()
            last_id = self._read_leaf(table, number, page, last_id, batch, uncertain)
        batch.flush()
        self._row_count += batch.count
        # Their pages are read again, because all of their rows may not fit into memory.
        for number in uncertain:
            rows = list(self._uncertain_rows(table, number))
            self._row_count += len(rows)
            self._sink.put(table, rows)

    def _read_leaf(
        self,
        table: str,
        number: int,
        page: bytes,
        last_id: int | None,
        batch: _Batch,
        uncertain: list[int],
    ) -> int | None:
        """Pass on the rows of a page that are certain; a page with others goes to ``uncertain``."""
        cells, is_sound = self._reader.read_leaf(number, page)
        if number in self._reader.misplaced and not self._belongs(table, number, cells):
            return last_id
        has_flaw = not is_sound
        for cell in cells:
            values = checked_values(table, cell) if isinstance(cell, Row) else None
            if values is None:
                has_flaw = True
                self._reader.note(table, _flaw_of(table, number, cell, last_id))
                if table == "entity" and isinstance(cell, Row) and not _with_number_fixed(cell):
                    self._keep_unsealed(cell)
                continue
            if table != "meta":
                row_id = values[0]
                if last_id is not None and row_id <= last_id:
                    # A chunk without bytes has no checksum of its own, and one of the two numbers
                    # may be another's: if messages are missing, their place is unknown.
                    is_loss = table == "chunk"
                    flaw = Flaw(number, "rows are out of order", None, is_loss=is_loss)
                    self._reader.note(table, flaw)
                last_id = row_id
            batch.add(values)
        if not is_sound:
            after_id = _BEFORE_ALL if last_id is None else last_id
            self._reader.note(table, Flaw(number, "a page is damaged", after_id))
        if has_flaw:
            self._flawed.add(number)
        if has_flaw or number in self._pages.log.ambiguous:
            uncertain.append(number)
        return last_id

    def _uncertain_rows(self, table: str, number: int) -> Iterator[Values]:
        """Other rows of a page, and its rows before the log damaged it."""
        log = self._pages.log
        if number in self._flawed:
            page = self._pages.page(number)
            if table == "entity":
                yield from self._with_numbers_fixed(number, page)
            yield from self._search(table, page)
        if number in log.ambiguous or (number in self._flawed and number in log.unsound):
            yield from self._rows_of_older(table, number)

    def _belongs(self, table: str, number: int, cells: list[Row | int | None]) -> bool:
        """Whether a page belongs to the table whose tree refers to it.

        Some tables have the same checksums: a settled range could be taken for an expiry.
        """
        rows = [cell for cell in cells if isinstance(cell, Row)]
        if _table_of(rows[:_ROWS_SAMPLED]) in (table, None):
            return True
        if self._reader.owners.get(number) == table:
            del self._reader.owners[number]
        flaw = Flaw(number, "a page belongs to another table", None)
        self._reader.note(table, flaw)
        return False

    def _with_numbers_fixed(self, number: int, page: bytes) -> Iterator[Values]:
        """Rows of entities with one wrong bit in their number, corrected by their checksum."""
        for cell in self._reader.read_leaf(number, page)[0]:
            if isinstance(cell, Row) and (values := _with_number_fixed(cell)) is not None:
                yield values

    def _keep_unsealed(self, row: Row) -> None:
        if list(map(type, row.values)) == [type(None), str, str, str, int]:
            self._entities_unsealed.append(EntityRow(row.row_id, *row.values[1:4]))

    def _search(self, table: str, page: bytes) -> Iterator[Values]:
        # A chunk without bytes has no checksum of its own: any bytes could be one.
        for row in self._reader.search_page(page, lambda row: _is_certain(table, row)):
            values = checked_values(table, row)
            if values is not None:
                yield values

    def _rows_of_older(self, table: str, number: int) -> Iterator[Values]:
        """The rows of a page before the log damaged it; they may have been settled since."""
        self._tables_with_older.add(table)
        cells, _is_sound = self._reader.read_leaf(number, self._pages.older_page(number))
        for cell in cells:
            values = checked_values(table, cell) if isinstance(cell, Row) else None
            if values is not None:
                yield values

    # -- pages that no tree refers to -----------------------------------------------------

    def _read_strays(self) -> None:
        pages, owners = self._pages, self._reader.owners
        known = pages.pointer_map()
        free = pages.free_pages()
        for number in range(2, pages.page_count + 1):
            if number in owners or pages.is_map(number):
                continue
            kind = known.get(number, (0, 0))[0]
            is_tree = kind in (MAP_ROOT, MAP_TREE)
            if not is_tree and (kind or number in free):
                continue
            self._count_page()
            page = pages.page(number)
            if is_index_page(page) or not (is_tree or is_table_page(page)):
                continue
            self._read_stray(number, page, self._owner(number, known))

    def _owner(self, number: int, known: dict[int, tuple[int, int]]) -> str | None:
        """The table whose tree the page was part of, by the pages above it."""
        for _ in range(32):
            owner = self._reader.owners.get(number)
            if owner is not None:
                return None if owner == SCHEMA_TABLE else owner
            kind, number = known.get(number, (0, 0))
            if kind != MAP_TREE:
                return None
        return None

    def _read_stray(self, number: int, page: bytes, owner: str | None) -> None:
        cells, is_sound = self._reader.read_leaf(number, page)
        rows = [cell for cell in cells if isinstance(cell, Row)]
        if not is_sound:
            rows += self._reader.search_page(page, _is_certain_anywhere)
        table = owner or _table_of(rows[:_ROWS_SAMPLED])
        if table is None:
            return
        found = [values for row in rows if (values := checked_values(table, row)) is not None]
        if found:
            self._row_count += len(found)
            self._note_stray(table, number)
            self._sink.put(table, found)

    def _note_stray(self, table: str, number: int) -> None:
        if table in self._roots_known:
            reason = "a page is not where its tree expects it"
            self._reader.note(table, Flaw(number, reason, None, is_loss=False))
        elif table not in self._reader.flaws:
            # None of its pages is in a tree then; one finding is enough.
            self._reader.note(table, Flaw(number, "the root page of the table is lost", None))

    def _count_page(self) -> None:
        self._page_count += 1
        if self._progress is not None and self._page_count % 64 == 0:
            self._progress(self._page_count)


class _Batch:
    """Collects rows for the sink."""

    def __init__(self, sink: RowSink, table: str) -> None:
        self._sink = sink
        self._table = table
        self._rows: list[Values] = []
        self._bytes = 0
        self.count = 0

    def add(self, values: Values) -> None:
        self._rows.append(values)
        last = values[-1]
        if type(last) is bytes:
            self._bytes += len(last)
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._sink.put(self._table, self._rows)
            self.count += len(self._rows)
            self._rows, self._bytes = [], 0


def _named(sql: str) -> str:
    return sql.split()[3] if sql.startswith("CREATE UNIQUE") else sql.split()[2]


def _is_automatic(values: list[Any]) -> bool:
    """SQLite itself creates the index of a primary key that is text."""
    return len(values) == 5 and str(values[1]).startswith("sqlite_autoindex_")


def _flaw_of(table: str, page: int, cell: Row | int | None, last_id: int | None) -> Flaw:
    after_id = _BEFORE_ALL if last_id is None else last_id
    if cell is None:
        return Flaw(page, "a row cannot be read", after_id)
    if isinstance(cell, int):
        return Flaw(page, "a row cannot be read", after_id, cell)
    count = None
    if table == "chunk" and len(cell.values) == 5 and type(cell.values[1]) is int:
        count = cell.values[1]
    return Flaw(page, "a row does not match its checksum", after_id, cell.row_id, count)


def _with_number_fixed(row: Row) -> Values | None:
    """A damaged row of an entity with another number, if only the number was wrong."""
    if checked_values("entity", row) is not None:
        return None
    for bit in range(_ENTITY_ID_BITS):
        values = checked_values("entity", row._replace(row_id=row.row_id ^ 1 << bit))
        if values is not None:
            return values
    return None


def _is_certain(table: str, row: Row) -> bool:
    return checked_values(table, row) is not None and not (table == "chunk" and not row.values[4])


def _is_certain_anywhere(row: Row) -> bool:
    return any(_is_certain(table, row) for table in TABLES)


def _table_of(rows: Iterable[Row]) -> str | None:
    """The table of rows without a tree, by their checksums and values."""
    votes: dict[str, int] = {}
    for row in rows:
        for table in TABLES:
            if checked_values(table, row) is not None and _is_likely(table, row):
                votes[table] = votes.get(table, 0) + 1
    return max(votes, key=lambda table: votes[table], default=None)


def _is_likely(table: str, row: Row) -> bool:
    """Some tables have the same checksums; their values distinguish them."""
    values = row.values
    match table:
        case "tombstone":
            return 0 <= int(values[1]) - row.row_id < _TOMBSTONE_MESSAGES_MAX
        case "expiry":
            return not 0 <= int(values[1]) - row.row_id < _TOMBSTONE_MESSAGES_MAX
        case "sheet" | "share" | "scheduled" | "seen":
            return _kind_of_body(values[1], values[3]) == table
        case "entity":
            return isinstance(values[1], str)
        case "counters" | "garbage":
            return isinstance(values[-1], int)
    return True


def _kind_of_body(number: int, blob: bytes) -> str:
    if number > 0 and 4 * number <= len(blob):
        lengths = unpack_from(f">{number}I", blob)
        if sum(lengths) + 4 * number == len(blob):
            return "sheet"
    if number >= 1 << 20 and number & 0xFFFFF < 4096 and len(blob) < _SELECTION_BYTES_MAX:
        return "share"
    # A stored message begins with four flags, followed by a described section.
    if blob and blob[0] < 16 and len(blob) % 16 == 0 and blob[1:2] == b"\x00":
        return "scheduled"
    return "seen" if blob and len(blob) % 16 == 0 else "scheduled"
