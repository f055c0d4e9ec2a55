"""Records what a store does to its disk: every write, sync, truncation and directory change.

The store runs on real files through an SQLite VFS of our own that passes everything on and
notes it down. Nothing is simulated while recording; ``states`` imagines the crashes afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import apsw

from twinbus.broker.storage.store_files import CommitMarker, Disk


@dataclass(frozen=True, slots=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    inode: int


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    pass


@dataclass(frozen=True, slots=True)
class Begin:
    """The caller asked for a commit that will have this number."""

    commit_number: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The caller was told that everything up to this commit number is durable."""

    commit_number: int


@dataclass(frozen=True, slots=True)
class MarkWrite:
    """The store wrote this commit number into its mark, at this very moment."""

    commit_number: int


DirectoryEntry: TypeAlias = Create | Delete | Rename
Entry: TypeAlias = (
    Write | Truncate | Sync | DirectoryEntry | SyncDirectory | Begin | Acknowledge | MarkWrite
)

_JOURNAL_FLAGS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


class Recorder:
    """The log of one run, and the names that files have at its end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._inodes: dict[str, int] = {}
        self._inode_last = 0

    def opened(self, path: str, existed: bool) -> int:
        name = os.path.basename(path)
        if not existed or name not in self._inodes:
            self._inode_last += 1
            self._inodes[name] = self._inode_last
            self.entries.append(Create(name, self._inode_last))
        return self._inodes[name]

    def deleted(self, path: str) -> None:
        name = os.path.basename(path)
        self._inodes.pop(name, None)
        self.entries.append(Delete(name))

    def renamed(self, source: Path, target: Path) -> None:
        self._inodes[target.name] = self._inodes.pop(source.name)
        self.entries.append(Rename(source.name, target.name))


class RecordedFile(apsw.VFSFile):
    """A file of SQLite's, watched."""

    def __init__(
        self, recorder: Recorder, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        existed = os.path.exists(path)
        super().__init__("", name, flags)
        self._recorder = recorder
        self._inode = recorder.opened(path, existed)
        # SQLite's own VFS syncs the directory with the first sync of a journal it has created.
        self._syncs_directory = not existed and bool(flags[0] & _JOURNAL_FLAGS)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._recorder.entries.append(Write(self._inode, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._recorder.entries.append(Truncate(self._inode, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._recorder.entries.append(Sync(self._inode))
        if self._syncs_directory:
            self._syncs_directory = False
            self._recorder.entries.append(SyncDirectory())


class RecordingVFS(apsw.VFS):
    """SQLite's default VFS with a recorder at every door."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._recorder = recorder
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> RecordedFile:
        return RecordedFile(self._recorder, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._recorder.deleted(filename)
        if syncdir:
            self._recorder.entries.append(SyncDirectory())


class RecordingDisk(Disk):
    """What the store does beside SQLite, recorded too."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._recorder.deleted(str(path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._recorder.renamed(source, target)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._recorder.entries.append(SyncDirectory())


@contextmanager
def recording(recorder: Recorder) -> Iterator[str]:
    """The name of a VFS that records, while the block lasts; the mark is recorded too."""
    name = f"recording-{id(recorder)}"
    vfs = RecordingVFS(name, recorder)
    record_mark = CommitMarker.record

    def recorded(mark: CommitMarker, commit_number: int) -> None:
        record_mark(mark, commit_number)
        recorder.entries.append(MarkWrite(commit_number))

    try:
        with patch.object(CommitMarker, "record", recorded):
            yield name
    finally:
        vfs.unregister()
