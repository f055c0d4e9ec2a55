"""Checksums of rows, which show whether a row is damaged.

SQLite checks its log, not its pages: a flipped bit in a blob or a number would be delivered as if
it had been sent. Every row therefore has a CRC-32 over its id and all of its columns, and every
reader of a row checks it. A row that was moved to another id fails as well.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

_TWO: Final = Struct(">qq").pack
_THREE: Final = Struct(">qqq").pack


def of_blob(row_id: int, first: int, second: int, blob: bytes) -> int:
    """For chunks (count, enqueued_ms) and scheduled messages (due_ms, 0)."""
    return crc32(blob, crc32(_THREE(row_id, first, second)))


def of_pair(first: int, second: int) -> int:
    """For expiries and tombstones."""
    return crc32(_TWO(first, second))


def of_triple(first: int, second: int, third: int) -> int:
    """For states."""
    return crc32(_THREE(first, second, third))


def of_values(*values: str | int | bytes) -> int:
    """For the small tables that are read once: any mix of values, distinguished by type."""
    return crc32(repr(values).encode())


def of_bytes(content: bytes) -> int:
    """For a chunk that refers to a shared body."""
    return crc32(content)


def of_session_state(queue_id: int, session: str, updated_ms: int, state: bytes) -> int:
    """For the states of sessions."""
    return crc32(state, of_values(queue_id, session, updated_ms))
