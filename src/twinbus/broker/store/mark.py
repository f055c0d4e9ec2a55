"""The high-water mark: a tiny file that remembers how far the store has come.

SQLite cuts its log at the first frame whose checksum is wrong, without a word: acknowledged
commits would vanish. So after every durable commit its number goes into a file of our own, and
a database that comes back with a lower number has lost something.

No fsync is needed. The record is written only *after* the commit is durable, so whatever
survives of this file names a commit that the database must still have: it can never raise a
false alarm. Killing the process loses nothing (the kernel has the bytes). After a power cut the
file may be behind, and then only proves less.

    offset 0   slot 0: magic, commit number, store id, zeros, CRC-32    (64 bytes)
    offset 64  slot 1: the same

Rule 1: slots are written in turn, so a torn write leaves the other one.
Rule 2: a slot that cannot be read says nothing; it is ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

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
        """How often the file could not be written: the mark is then behind, never wrong."""

    def record(self, commit_number: int) -> None:
        """Remember a commit that is durable already."""
        slot = encode(MarkRecord(commit_number, self._store_id))
        try:
            os.pwrite(self._file, slot, SLOT_BYTES * (commit_number & 1))
        except OSError:
            # The commit is durable; refusing it for want of a witness would be the lie.
            self.failed_writes += 1

    def close(self) -> None:
        os.close(self._file)
