"""A new store file that is filled with salvaged rows and becomes a store at the end.

    tables -> rows as they are found -> repaired -> indexes, ledger, header -> durable

Rule 1: nothing is synced before the end: a draft that a crash leaves has no ledger and no header
        of ours, and is deleted.
Rule 2: a draft without bodies is for a diagnosis, which only needs to know whether a body exists.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import apsw

from twinbus.broker.storage import row_checksum, schema
from twinbus.broker.storage.store_files import Disk

_WITH_BODIES: Final = frozenset({"chunk", "sheet", "scheduled"})
_PLACEHOLDER: Final = b"\x00"
_CACHE_KIB: Final = 32 * 1024


class Draft:
    """The tables of a store, without indexes and triggers until it is finished."""

    def __init__(self, path: Path, *, has_bodies: bool) -> None:
        self.path = path
        self.has_bodies = has_bodies
        self.connection = apsw.Connection(str(path))
        self._cursor = self.connection.cursor()
        for name, value in (
            ("page_size", schema.PAGE_BYTES),
            ("auto_vacuum", "INCREMENTAL"),
            ("journal_mode", "OFF"),
            ("synchronous", "OFF"),
            ("locking_mode", "EXCLUSIVE"),
            ("temp_store", "MEMORY"),
            ("cache_size", -_CACHE_KIB),
        ):
            self.connection.pragma(name, value)
        self._inserts: dict[str, str] = {}
        self.execute("BEGIN")
        for statement in schema.STATEMENTS:
            if statement.startswith("CREATE TABLE"):
                self.execute(statement)

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.connection.close()

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return all of its rows."""
        rows: list[tuple[Any, ...]] = self.connection.execute(sql, values).fetchall()
        return rows

    def number(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        """The single number that a query returns; 0 for none."""
        return int(self.connection.execute(sql, values).get or 0)

    def delete(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Run a DELETE statement and return the number of deleted rows."""
        self.connection.execute(sql, values)
        return self.connection.changes()

    def put(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows; of each id the first one is kept."""
        if not rows:
            return
        sql = self._inserts.get(table)
        if sql is None:
            places = ", ".join("?" * len(rows[0]))
            sql = self._inserts[table] = f"INSERT OR IGNORE INTO {table} VALUES ({places})"
        if not self.has_bodies and table in _WITH_BODIES:
            rows = [(*row[:-1], _PLACEHOLDER if row[-1] else b"") for row in rows]
        self._cursor.executemany(sql, rows)

    def finish(self, commit_number: int, queue_id_last: int) -> None:
        """Turn the draft into a store, which is durable when this returns."""
        for statement in schema.STATEMENTS:
            if not statement.startswith("CREATE TABLE"):
                self.execute(statement)
        self.execute("DELETE FROM ledger")
        store_id = os.urandom(16)
        values = (commit_number, queue_id_last, store_id)
        self.execute(
            "INSERT INTO ledger VALUES (1, ?, ?, ?, ?)", (*values, row_checksum.of_values(*values))
        )
        self.connection.pragma("application_id", schema.APPLICATION_ID)
        self.connection.pragma("user_version", schema.FORMAT_VERSION)
        self.execute("COMMIT")
        self.execute("PRAGMA incremental_vacuum")
        self.connection.pragma("locking_mode", "NORMAL")
        self.connection.pragma("journal_mode", "DELETE")
        self.connection.pragma("journal_mode", "WAL")
        self.connection.close()
        _sync(self.path)
        Disk().sync_directory(self.path.parent)


def _sync(path: Path) -> None:
    os.chmod(path, 0o600)
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
