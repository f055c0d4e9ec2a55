"""Where stores live and die here, and how they are let go of."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from twinbus.broker.storage import sqlite_writer
from twinbus.broker.storage.sqlite_store import SqliteStore

STORE_NAME = "store.db"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory in memory where there is one: states are many and need no real disk."""
    shared_memory = Path("/dev/shm")
    parent = shared_memory if shared_memory.is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="twinbus-crash-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def small_limits() -> Iterator[None]:
    """Checkpoints and housekeeping in the middle of a short run, by count and not by the clock."""
    with ExitStack() as stack:
        for module, name, value in (
            (sqlite_writer, "CHECKPOINT_COMMITS", 7),
            (sqlite_writer, "FREE_PAGES_KEPT", 1),
            (sqlite_writer, "SLICE_PAGES", 2),
            (sqlite_writer, "SLICE_ROWS", 4),
            (sqlite_writer, "SLICE_S", 0.0),
            (sqlite_writer, "IDLE_LOG_PAGES", 1),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def lay_out(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make these the files of the directory, and no others."""
    for file in directory.iterdir():
        file.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def files_of(directory: Path) -> dict[str, bytes]:
    """What a killed process leaves: all but the index of the log, which the next one rebuilds."""
    return {
        file.name: file.read_bytes()
        for file in directory.iterdir()
        if not file.name.endswith("-shm")
    }


def let_go(store: SqliteStore) -> None:
    """Close the files of a store as a killed process does."""
    if store._writer is not None and store._read_connection is not None:
        store._read_connection.close()
        store._writer._connection.close()
        store._writer._mark.close()
