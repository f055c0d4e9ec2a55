"""The tables of a store file, format version 2.

    chunk      one row per chunk                  id = queue_id << 40 | first_seq
    expiry     earliest expiry of a chunk         same id; apart, because changing a column of
                                                  ``chunk`` would rewrite the whole blob
    tombstone  settled runs inside a chunk        id = queue_id << 40 | first settled seq
    state      delivery count, deferred           id = queue_id << 40 | seq
    scheduled  messages that are not due yet      id = queue_id << 40 | seq
    share      a selection from a shared body     same id as the chunk, whose blob is empty then
    sheet      shared bodies of chunks            id = commit number << 20 | number in the commit
    seen       ids for duplicate detection        id = queue_id << 40 | page
    session_chunk  the session of a chunk         same id as the chunk
    session_state  the state of a session         id = queue_id << 40 | counting up
    counters, entity                              one row per queue
    garbage    deleted queues that still have rows
    meta       values of the namespace
    ledger     one row: commit number, highest queue id ever used, the store's identity

Rule 1: ordinary rowid tables for everything that grows; a WITHOUT ROWID table with 1 KB bodies
        takes a third of the messages per second.
Rule 2: every row has a ``crc`` (see ``row_checksum``); ``blob`` comes last, so that counting rows
        does not read bodies.
Rule 3: changing anything here requires a new FORMAT_VERSION, and an entry in ``UPGRADES``.
"""

from __future__ import annotations

from typing import Final

# "TwBs" as a big-endian number: `file` and SQLite's own tools show it.
APPLICATION_ID: Final = 0x54774273
FORMAT_VERSION: Final = 2

# Measured best for 250 B to 4 KB messages; see docs/ARCHITECTURE.md.
PAGE_BYTES: Final = 16384

_VERSION_1: Final = (
    (
        "CREATE TABLE chunk (id INTEGER PRIMARY KEY, count INTEGER NOT NULL,"
        " enqueued_ms INTEGER NOT NULL, crc INTEGER NOT NULL, blob BLOB NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE expiry (id INTEGER PRIMARY KEY, expires_ms INTEGER NOT NULL,"
        " crc INTEGER NOT NULL) STRICT"
    ),
    "CREATE INDEX expiry_by_time ON expiry (id >> 40, expires_ms)",
    (
        "CREATE TABLE tombstone (id INTEGER PRIMARY KEY, last_id INTEGER NOT NULL,"
        " crc INTEGER NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE state (id INTEGER PRIMARY KEY, delivery_count INTEGER NOT NULL,"
        " deferred INTEGER NOT NULL, crc INTEGER NOT NULL) STRICT"
    ),
    "CREATE INDEX state_deferred ON state (deferred) WHERE deferred = 1",
    (
        "CREATE TABLE scheduled (id INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL,"
        " crc INTEGER NOT NULL, blob BLOB NOT NULL) STRICT"
    ),
    "CREATE INDEX scheduled_by_time ON scheduled (id >> 40, due_ms)",
    (
        "CREATE TABLE counters (queue_id INTEGER PRIMARY KEY, next_seq INTEGER NOT NULL,"
        " message_count INTEGER NOT NULL, byte_count INTEGER NOT NULL,"
        " deferred_count INTEGER NOT NULL, scheduled_count INTEGER NOT NULL,"
        " crc INTEGER NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE entity (queue_id INTEGER PRIMARY KEY, path TEXT NOT NULL, kind TEXT NOT NULL,"
        " description_json TEXT NOT NULL, crc INTEGER NOT NULL) STRICT"
    ),
    "CREATE TABLE garbage (queue_id INTEGER PRIMARY KEY, crc INTEGER NOT NULL) STRICT",
    (
        "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value ANY NOT NULL,"
        " crc INTEGER NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE ledger (one INTEGER PRIMARY KEY, commit_number INTEGER NOT NULL,"
        " queue_id_last INTEGER NOT NULL, store_id BLOB NOT NULL, crc INTEGER NOT NULL) STRICT"
    ),
)

# What version 2 adds; it removes and changes nothing.
_ADDED_IN_2: Final = (
    (
        "CREATE TABLE seen (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL,"
        " crc INTEGER NOT NULL, blob BLOB NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE sheet (id INTEGER PRIMARY KEY, count INTEGER NOT NULL,"
        " crc INTEGER NOT NULL, blob BLOB NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE share (id INTEGER PRIMARY KEY, sheet_id INTEGER NOT NULL,"
        " crc INTEGER NOT NULL, selection BLOB NOT NULL) STRICT"
    ),
    "CREATE INDEX share_by_sheet ON share (sheet_id)",
    (
        "CREATE TRIGGER share_gone AFTER DELETE ON share BEGIN"
        " DELETE FROM sheet WHERE id = OLD.sheet_id AND NOT EXISTS"
        " (SELECT 1 FROM share WHERE sheet_id = OLD.sheet_id); END"
    ),
    (
        "CREATE TABLE session_chunk (id INTEGER PRIMARY KEY, session TEXT NOT NULL,"
        " crc INTEGER NOT NULL) STRICT"
    ),
    "CREATE INDEX session_chunk_by_name ON session_chunk (id >> 40, session)",
    (
        "CREATE TABLE session_state (id INTEGER PRIMARY KEY, session TEXT NOT NULL,"
        " updated_ms INTEGER NOT NULL, crc INTEGER NOT NULL, blob BLOB NOT NULL) STRICT"
    ),
    "CREATE UNIQUE INDEX session_state_by_name ON session_state (id >> 40, session)",
)

VERSIONS: Final = {1: _VERSION_1, 2: _VERSION_1 + _ADDED_IN_2}
"""The statements of each version that can be opened."""
UPGRADES: Final = {1: _ADDED_IN_2}
"""The statements that turn a version into the next one."""
STATEMENTS: Final = VERSIONS[FORMAT_VERSION]

# Tables whose rows belong to a queue by the high bits of their id. Shares are deleted before their
# chunks: a share without its chunk would be damage.
QUEUE_TABLES: Final = (
    "share",
    "chunk",
    "expiry",
    "tombstone",
    "state",
    "scheduled",
    "seen",
    "session_chunk",
    "session_state",
)
