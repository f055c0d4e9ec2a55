"""The drivers that every contract test runs over. Add yours here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import entity

DRIVERS: dict[str, Callable[[Path], Store]] = {
    "memory": lambda directory: MemoryStore(),
    "sqlite": lambda directory: SqliteStore(directory / "store.db"),
}


@pytest.fixture(params=sorted(DRIVERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An open store with one queue, number 1."""
    opened = DRIVERS[request.param](tmp_path)
    opened.open()
    opened.commit([entity()])
    yield opened
    opened.close()


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def sqlite_store(store_path: Path) -> Iterator[SqliteStore]:
    """An open SQLite store with one queue, number 1."""
    opened = SqliteStore(store_path)
    opened.open()
    opened.commit([entity()])
    yield opened
    opened.close()
