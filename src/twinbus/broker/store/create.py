"""Bringing a store file into being so that a crash leaves all of it or none of it.

    remove drafts -> draft: WAL, schema, checkpoint, close -> rename -> sync the directory

Rule 1: a store exists exactly when its final name does. A draft was never renamed, so nothing
        in it was ever acknowledged, and it is thrown away without a look.
Rule 2: nothing of the draft's journals can follow it: they carry the draft's name, and one
        that comes back after a crash belongs to no database.
Rule 3: a store is for its owner only. SQLite gives its log and its index the mode of the database,
        so the database is made private before SQLite sees it.
Rule 4: when the database is missing but its log or its mark is there, somebody lost it; making
        an empty one in its place would hide that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from twinbus.broker.store import schema, seal
from twinbus.broker.store.connection import checkpoint_on_close, open_writer
from twinbus.broker.store.disk import Disk
from twinbus.errors import StoreCorrupt, StoreVersionMismatch

_DRAFT_SUFFIXES: Final = (".new", ".new-journal", ".new-wal", ".new-shm")
_COMPANION_SUFFIXES: Final = ("-wal", "-journal", ".mark")
_PRIVATE_SUFFIXES: Final = ("", "-shm", *_COMPANION_SUFFIXES)
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_HEAD_BYTES: Final = 100


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def create_store(path: Path, disk: Disk, vfs: str | None) -> None:
    """Make an empty store; returns once it is durable."""
    for suffix in _COMPANION_SUFFIXES:
        if disk.exists(beside(path, suffix)):
            raise StoreCorrupt(
                path=path, detail=f"the database is missing while {path.name + suffix} is there"
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
        crc = seal.of_values(0, 0, store_id)
        connection.execute("INSERT INTO ledger VALUES (1, 0, 0, ?, ?)", (store_id, crc))
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.FORMAT_VERSION)


def remove_drafts(path: Path, disk: Disk) -> None:
    for suffix in _DRAFT_SUFFIXES:
        if disk.exists(beside(path, suffix)):
            disk.remove(beside(path, suffix))


def make_private(path: Path, disk: Disk) -> None:
    """Close a store to others that an older version, or a copy, has left open to them."""
    for suffix in _PRIVATE_SUFFIXES:
        disk.make_private(beside(path, suffix))


def check_head(path: Path, disk: Disk) -> None:
    """Refuse a foreign or newer file before SQLite gets to touch it.

    The version of an older one is looked at again later: its log may know a newer one.
    """
    head = disk.read_head(path, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES or not head.startswith(_SQLITE_MAGIC):
        raise StoreCorrupt(path=path, detail="it is not a database")
    version, application_id = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    if application_id != schema.APPLICATION_ID:
        raise StoreCorrupt(path=path, detail="it is a database of another program")
    if version not in schema.VERSIONS:
        raise StoreVersionMismatch(path=path, found=version, expected=schema.FORMAT_VERSION)
