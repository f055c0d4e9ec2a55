"""A disk that goes wrong when it is told to: it fails, tears a write, or takes the process with it.

Every change that a store makes passes one of three doors: SQLite's VFS, the ``Disk`` beside it, and
the mark, which is written with ``os.pwrite``. All three ask the same plan.

Errors are those that SQLite's own VFS makes of the operating system's: a write without room is
"full", anything else that fails is an I/O error.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw

from twinbus.broker.storage import store_files
from twinbus.broker.storage.store_files import Disk


class FaultPlan:
    """Counts what a store does to its disk and lets some of it go wrong."""

    def __init__(self) -> None:
        self.operations = 0
        self.kinds: list[str] = []
        """What each of the operations was."""
        self.fail_from: int | None = None
        """The number of the first operation that fails."""
        self.fail_to: int | None = None
        """The number of the last one, or None: for ever."""
        self.error: type[apsw.Error] = apsw.IOError
        self.only: str | None = None
        """Fail only "write" or only "sync"."""
        self.tears = False
        """Half of the bytes arrive before a write goes wrong."""
        self.kills = False
        """The process dies at the operation, and nobody gets an error."""

    def fail_next(self, error: type[apsw.Error], *, only: str | None = None) -> None:
        """Every following operation fails, until ``heal``."""
        self.fail_from, self.fail_to, self.error, self.only = self.operations + 1, None, error, only

    def heal(self) -> None:
        self.fail_from = None

    def has_failed(self, kind: str) -> bool:
        """Whether the operation that was to fail was of this kind, and has happened."""
        number = self.fail_from
        return number is not None and self.kinds[number - 1 : number] == [kind]

    def happens(self, kind: str, write_half: Callable[[], object] | None = None) -> None:
        self.operations += 1
        self.kinds.append(kind)
        if self.fail_from is None or self.operations < self.fail_from:
            return
        if self.fail_to is not None and self.operations > self.fail_to:
            return
        if self.only is not None and self.only != kind:
            return
        if self.tears and write_half is not None:
            write_half()
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        error = _SAID_BY_SQLITE.get(kind, self.error)
        raise error(f"injected: {kind} number {self.operations}")


# Whatever the reason is, SQLite has one word for each of these.
_SAID_BY_SQLITE: dict[str, type[apsw.Error]] = {
    "create": apsw.CantOpenError,
    "delete": apsw.IOError,
    "sync": apsw.IOError,
    "truncate": apsw.IOError,
}


class _FaultyFile(apsw.VFSFile):
    def __init__(
        self, plan: FaultPlan, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        if not os.path.exists(path):
            plan.happens("create")
        super().__init__("", name, flags)
        self._plan = plan

    def xWrite(self, data: bytes, offset: int) -> None:
        write = super().xWrite
        self._plan.happens("write", lambda: write(data[: len(data) // 2], offset))
        write(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._plan.happens("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._plan.happens("sync")
        super().xSync(flags)


class _FaultyVFS(apsw.VFS):
    def __init__(self, name: str, plan: FaultPlan) -> None:
        self._plan = plan
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _FaultyFile:
        return _FaultyFile(self._plan, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._plan.happens("delete")
        super().xDelete(filename, syncdir)


class FaultyDisk(Disk):
    """What the store does beside SQLite."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan

    def remove(self, path: Path) -> None:
        self._happens("delete")
        super().remove(path)

    def rename(self, source: Path, target: Path) -> None:
        self._happens("rename")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._happens("sync")
        super().sync_directory(path)

    def _happens(self, kind: str) -> None:
        with _as_the_system_says_it():
            self._plan.happens(kind)


class _FaultyOs:
    """The ``os`` that the mark sees."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan

    def pwrite(self, file: int, data: bytes, offset: int) -> int:
        with _as_the_system_says_it():
            half = data[: len(data) // 2]
            self._plan.happens("write", lambda: os.pwrite(file, half, offset))
        return os.pwrite(file, data, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@contextmanager
def _as_the_system_says_it() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        number = errno.ENOSPC if isinstance(error, apsw.FullError) else errno.EIO
        raise OSError(number, str(error)) from error


@contextmanager
def faulty_disk(plan: FaultPlan) -> Iterator[str]:
    """The name of a VFS that follows the plan, while the block lasts; the mark follows it too."""
    name = f"faulty-{id(plan)}"
    vfs = _FaultyVFS(name, plan)
    try:
        with patch.object(store_files, "os", _FaultyOs(plan)):
            yield name
    finally:
        vfs.unregister()
