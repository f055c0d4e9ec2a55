"""The files of a store: how they are created, and the mark of the last commit.

Creating a store is atomic, so that a crash leaves all of it or none of it:

    remove drafts -> draft: WAL, schema, checkpoint, close -> rename -> sync the directory

The mark is a small file with the number of the last commit. SQLite silently cuts its log at the
first frame whose checksum is wrong: acknowledged commits would disappear. So the number of every
durable commit is written to this file, and a database with a lower number has lost commits.

    offset 0   slot 0: magic, commit number, store id, zeros, CRC-32    (64 bytes)
    offset 64  slot 1: the same

The mark needs no fsync. It is written only *after* the commit is durable, so the database must
contain every commit that the mark names: it never raises a false alarm. Killing the process loses
nothing (the kernel has the bytes). After a power cut the mark may be behind, and proves less.

Rule 1: a store exists exactly when its final name does. A draft was never renamed, so nothing
        in it was ever acknowledged, and it is deleted unread.
Rule 2: the journals of a draft have the draft's name: one that remains after a crash belongs to
        no database.
Rule 3: a store is for its owner only. SQLite gives its log and its index the mode of the database,
        so the database is made private before SQLite opens it.
Rule 4: when the database is missing but its log or its mark exists, the database was lost;
        creating an empty one in its place would hide that.
Rule 5: slots are written in turn, so a torn write leaves the other one intact.
Rule 6: a slot that cannot be read is ignored.
Rule 7: a created or renamed file is durable only after ``sync_directory``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import apsw

from twinbus.broker.storage import row_checksum, schema
from twinbus.broker.storage.sqlite_connection import checkpoint_on_close, open_writer
from twinbus.errors import StoreCorrupt, StoreVersionMismatch

# For its owner only: a store contains messages.
PRIVATE_FILE: Final = 0o600


class Disk:
    """The file operations that a store does beside SQLite; crash tests record them."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_bytes(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_head(self, path: Path, count: int) -> bytes:
        with path.open("rb") as file:
            return file.read(count)

    def create_private(self, path: Path) -> None:
        """Create an empty file that only its owner can read."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))

    def make_private(self, path: Path) -> None:
        """Remove other users' access to a file, if it exists."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return
        if mode & 0o077:
            path.chmod(mode & ~0o077)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_DRAFT_SUFFIXES: Final = (".new", ".new-journal", ".new-wal", ".new-shm")
_COMPANION_SUFFIXES: Final = ("-wal", "-journal", ".mark")
_PRIVATE_SUFFIXES: Final = ("", "-shm", *_COMPANION_SUFFIXES)
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_HEAD_BYTES: Final = 100


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def create_store(path: Path, disk: Disk, vfs: str | None) -> None:
    """Create an empty store; returns once it is durable."""
    for suffix in _COMPANION_SUFFIXES:
        if disk.exists(beside(path, suffix)):
            raise StoreCorrupt(
                path=path, detail=f"the database is missing but {path.name + suffix} exists"
            )
    remove_drafts(path, disk)
    draft = beside(path, ".new")
    disk.create_private(draft)
    connection = open_writer(draft, vfs, create=True)
    try:
        _fill(connection)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        checkpoint_on_close(connection, True)
    finally:
        connection.close()
    disk.rename(draft, path)
    disk.sync_directory(path.parent)


def _fill(connection: apsw.Connection) -> None:
    store_id = os.urandom(16)
    with connection:
        for statement in schema.STATEMENTS:
            connection.execute(statement)
        crc = row_checksum.of_values(0, 0, store_id)
        connection.execute("INSERT INTO ledger VALUES (1, 0, 0, ?, ?)", (store_id, crc))
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.FORMAT_VERSION)


def remove_drafts(path: Path, disk: Disk) -> None:
    for suffix in _DRAFT_SUFFIXES:
        if disk.exists(beside(path, suffix)):
            disk.remove(beside(path, suffix))


def make_private(path: Path, disk: Disk) -> None:
    """Remove other users' access, which an older version or a copy of the files may allow."""
    for suffix in _PRIVATE_SUFFIXES:
        disk.make_private(beside(path, suffix))


def check_head(path: Path, disk: Disk) -> None:
    """Refuse a foreign or newer file before SQLite opens it.

    The version of an older one is checked again later: its log may contain a newer one.
    """
    head = disk.read_head(path, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES or not head.startswith(_SQLITE_MAGIC):
        raise StoreCorrupt(path=path, detail="the file is not a SQLite database")
    version, application_id = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    if application_id != schema.APPLICATION_ID:
        raise StoreCorrupt(path=path, detail="the file is a database of another program")
    if version not in schema.VERSIONS:
        raise StoreVersionMismatch(path=path, found=version, expected=schema.FORMAT_VERSION)


SLOT_BYTES: Final = 64
_MAGIC: Final = b"twinmark"
_BODY: Final = Struct(">8sQ16s28x")
_CRC: Final = Struct(">I")


class MarkRecord(NamedTuple):
    commit_number: int
    store_id: bytes


def encode(record: MarkRecord) -> bytes:
    body = _BODY.pack(_MAGIC, record.commit_number, record.store_id)
    return body + _CRC.pack(crc32(body))


def decode(slot: bytes) -> MarkRecord | None:
    if len(slot) != SLOT_BYTES or _CRC.unpack(slot[-4:])[0] != crc32(slot[:-4]):
        return None
    magic, commit_number, store_id = _BODY.unpack(slot[:-4])
    return MarkRecord(commit_number, store_id) if magic == _MAGIC else None


def read_mark(path: Path) -> MarkRecord | None:
    """The highest readable record, or None when there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = (content[:SLOT_BYTES], content[SLOT_BYTES : 2 * SLOT_BYTES])
    return max(filter(None, map(decode, slots)), default=None)


class CommitMarker:
    """The open mark file of a store."""

    def __init__(self, path: Path, store_id: bytes) -> None:
        self._store_id = store_id
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.failed_writes = 0
        """How often the file could not be written: the mark is then behind, never ahead."""

    def record(self, commit_number: int) -> None:
        """Write the number of a commit that is already durable."""
        slot = encode(MarkRecord(commit_number, self._store_id))
        try:
            os.pwrite(self._file, slot, SLOT_BYTES * (commit_number & 1))
        except OSError:
            # The commit is durable, so it must not be refused because the mark cannot be written.
            self.failed_writes += 1

    def close(self) -> None:
        os.close(self._file)
