"""SQLite connections with the store's settings, and SQLite's errors as ours.

Rule 1: never below SQLite 3.51.3: every earlier version can corrupt a WAL database when two
        connections meet in a checkpoint.
Rule 2: never mmap: a failing disk would be a signal that kills the process, not an error.
Rule 3: caches are bounded: memory must not grow with the queues.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from twinbus.broker.storage import schema
from twinbus.errors import ConfigurationError, StoreCorrupt, StoreFailed, StoreFull

SQLITE_VERSION_MIN: Final = (3, 51, 3)

# FULL syncs the log in every commit. NORMAL loses acknowledged commits in a power cut, which
# the crash tests detect when this is changed.
SYNCHRONOUS: Final = "FULL"

# A commit of a hundred chunks of 100 KB passes through the log and needs no larger cache.
WRITER_CACHE_KIB: Final = 8192
READER_CACHE_KIB: Final = 4096
# The integrity check reads everything once; a larger cache would only use memory permanently.
CHECK_CACHE_KIB: Final = 512

# After a full checkpoint the log file is cut back to this; below it, reusing is cheaper.
JOURNAL_BYTES_KEPT: Final = 16 * 1024 * 1024

# The writer waits this long for the reader, whose transactions take a few milliseconds, before it
# restarts the log. The reader does not wait, except during recovery.
BUSY_TIMEOUT_MS: Final = 250


def require_sqlite_version(version: str | None = None) -> None:
    """Refuse a SQLite library with the WAL-reset bug."""
    version = apsw.sqlite_lib_version() if version is None else version
    if tuple(int(part) for part in version.split(".")) < SQLITE_VERSION_MIN:
        raise ConfigurationError(
            f"SQLite must be version {'.'.join(map(str, SQLITE_VERSION_MIN))} or later, got "
            f"{version}, which can corrupt its log",
            hint="Run `pip install --upgrade apsw`; apsw contains its own SQLite",
        )


def open_writer(path: Path, vfs: str | None, *, create: bool = False) -> apsw.Connection:
    """The connection that writes, with the cache size of the integrity check.

    It does not checkpoint when closed unless checkpoint_on_close() enables that.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(str(path), flags, vfs)
    # A refused store must stay unchanged: its log is needed to find the cause.
    checkpoint_on_close(connection, False)
    # EXTRA while creating also syncs the directory when a rollback journal is deleted.
    connection.pragma("synchronous", "EXTRA" if create else SYNCHRONOUS)
    if create:
        connection.pragma("page_size", schema.PAGE_BYTES)
        connection.pragma("auto_vacuum", "INCREMENTAL")
        connection.pragma("journal_mode", "WAL")
    _configure(connection, CHECK_CACHE_KIB)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", JOURNAL_BYTES_KEPT)
    return connection


def open_reader(path: Path, vfs: str | None) -> apsw.Connection:
    """A connection that can only read."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY, vfs)
    _configure(connection, READER_CACHE_KIB)
    return connection


def _configure(connection: apsw.Connection, cache_kib: int) -> None:
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    connection.pragma("mmap_size", 0)
    connection.pragma("temp_store", "MEMORY")
    set_cache(connection, cache_kib)


def set_cache(connection: apsw.Connection, cache_kib: int) -> None:
    connection.pragma("cache_size", -cache_kib)


def checkpoint_on_close(connection: apsw.Connection, wanted: bool) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(not wanted))


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors, and the operating system's, as ours."""
    try:
        yield
    except apsw.ConstraintError as error:
        raise ValueError(f"a row already exists ({error})") from error
    except apsw.FullError as error:
        raise StoreFull(path=path) from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreCorrupt(path=path, detail=str(error)) from error
    except apsw.Error as error:
        raise StoreFailed(path=path, detail=f"{type(error).__name__}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(path=path, detail=str(error)) from error
        raise StoreFailed(path=path, detail=str(error)) from error


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """``translate_errors``, and a value of the wrong type or size is damage here, not a mistake or
    a failure: nothing so large is ever written."""
    try:
        with translate_errors(path):
            try:
                yield
            except apsw.TooBigError as error:
                raise StoreCorrupt(path=path, detail=f"a row cannot be read ({error})") from error
    except (ValueError, TypeError, struct.error) as error:
        raise StoreCorrupt(path=path, detail=f"a row cannot be read ({error})") from error
