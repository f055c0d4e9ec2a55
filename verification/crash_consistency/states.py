"""Rebuilds what a disk may hold after a crash at any point of a recorded run.

    what was synced  +  some, part, or none of what was not, in any order

Rule 1: bytes of a file are certain once that file was synced; names once the directory was.
Rule 2: an unsynced write may arrive whole, not at all, or in any of its sectors (512 B or
        4 KB); writes may arrive in any order, and a file may have grown without its bytes.
Rule 3: unsynced creations, deletions and renames may have happened or not, each on its own.
Rule 4: the mark is never synced: any version written so far may be there, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from verification.crash_consistency.recorder import (
    Acknowledge,
    Begin,
    Create,
    Delete,
    DirectoryEntry,
    Entry,
    MarkWrite,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)

SECTORS_BYTES = (512, 4096)


@dataclass
class DiskState:
    """A disk as found after the crash."""

    position: int
    style: str
    files: dict[str, bytes]
    acknowledged: int
    """The highest commit number that the caller was told is durable, or -1."""
    begun: int
    """The highest commit number that was asked for: it may be there or not."""
    marked: int
    """The last commit number that was written into the mark, or -1."""


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)


class CrashDisk:
    """Replays a recorded run; may be asked at any moment what a crash could leave."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._pending_names: list[DirectoryEntry] = []
        self._position = 0
        self._acknowledged = self._begun = self._marked = -1

    def replay(self, entry: Entry) -> None:
        self._position += 1
        match entry:
            case Write() | Truncate():
                self._files[entry.inode].pending.append(entry)
            case Sync(inode):
                file = self._files[inode]
                for change in file.pending:
                    _apply(file.durable, change)
                file.pending.clear()
            case Create():
                self._files[entry.inode] = _File()
                self._pending_names.append(entry)
            case Delete() | Rename():
                self._pending_names.append(entry)
            case SyncDirectory():
                for renaming in self._pending_names:
                    _apply_name(self._names, renaming)
                self._pending_names.clear()
            case Begin(commit_number):
                self._begun = commit_number
            case Acknowledge(commit_number):
                self._acknowledged = self._begun = commit_number
            case MarkWrite(commit_number):
                self._marked = commit_number
            case _:
                assert_never(entry)

    def crash(self, random: Random) -> DiskState:
        """One of the states that a crash right now could leave."""
        names = dict(self._names)
        keep = random.choice((0.0, 0.5, 1.0))
        for change in self._pending_names:
            if random.random() < keep:
                _apply_name(names, change)
        style = random.choice(sorted(_STYLES))
        files = {name: _STYLES[style](self._files[inode], random) for name, inode in names.items()}
        return DiskState(
            self._position, style, files, self._acknowledged, self._begun, self._marked
        )


def crash_states(entries: list[Entry], count: int, random: Random) -> Iterator[DiskState]:
    """``count`` crashes, spread at random over the run."""
    positions = sorted(random.randint(0, len(entries)) for _ in range(count))
    disk = CrashDisk()
    replayed = 0
    for position in positions:
        while replayed < position:
            disk.replay(entries[replayed])
            replayed += 1
        yield disk.crash(random)


def _apply(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        _resize(content, change.size)
        return
    if len(content) < change.offset:
        _resize(content, change.offset)
    content[change.offset : change.offset + len(change.data)] = change.data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply_name(names: dict[str, int], change: DirectoryEntry) -> None:
    match change:
        case Create(name, inode):
            names[name] = inode
        case Delete(name):
            names.pop(name, None)
        case Rename(source, target):
            # A rename arrives whole or not at all; without its source there is nothing to do.
            if source in names:
                names[target] = names.pop(source)
        case _:
            assert_never(change)


def _nothing(file: _File, random: Random) -> bytes:
    return bytes(file.durable)


def _everything(file: _File, random: Random) -> bytes:
    return _built(file, file.pending)


def _prefix(file: _File, random: Random) -> bytes:
    return _built(file, file.pending[: random.randint(0, len(file.pending))])


def _subset(file: _File, random: Random) -> bytes:
    return _built(file, [change for change in file.pending if random.random() < 0.6])


def _reordered(file: _File, random: Random) -> bytes:
    chosen = [change for change in file.pending if random.random() < 0.8]
    random.shuffle(chosen)
    return _built(file, chosen)


def _torn(file: _File, random: Random) -> bytes:
    """Some writes arrive in part; the last one most likely."""
    sector_bytes = random.choice(SECTORS_BYTES)
    chosen: list[Write | Truncate] = []
    for change in file.pending:
        if isinstance(change, Write) and (change is file.pending[-1] or random.random() < 0.3):
            chosen.extend(_sectors(change, sector_bytes, random))
        else:
            chosen.append(change)
    return _built(file, chosen)


def _grown(file: _File, random: Random) -> bytes:
    """The file has its new size, but where bytes did not arrive there is something else."""
    grown = bytearray(_everything(file, random))
    found = _subset(file, random)
    filler = random.choice((bytes, random.randbytes))
    missing = len(grown) - len(found)
    return found + filler(missing) if missing > 0 else found


def _built(file: _File, changes: list[Write | Truncate]) -> bytes:
    content = bytearray(file.durable)
    for change in changes:
        _apply(content, change)
    return bytes(content)


def _sectors(write: Write, sector_bytes: int, random: Random) -> Iterator[Write]:
    """Those sectors of a write that arrived."""
    at, end = write.offset, write.offset + len(write.data)
    while at < end:
        sector_end = min(end, (at // sector_bytes + 1) * sector_bytes)
        if random.random() < 0.5:
            data = write.data[at - write.offset : sector_end - write.offset]
            yield Write(write.inode, at, data)
        at = sector_end


_STYLES = {
    "nothing": _nothing,
    "everything": _everything,
    "prefix": _prefix,
    "subset": _subset,
    "reordered": _reordered,
    "torn": _torn,
    "grown": _grown,
}
