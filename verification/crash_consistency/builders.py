"""Short ways to say what the store tests talk about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from twinbus.broker.storage.interface import (
    ChunkRow,
    EntityRow,
    LoadedChunk,
    PutChunk,
    PutCounters,
    PutEntity,
    QueueCounters,
    SharedBody,
    SharedBodySelection,
    Store,
)

MEBIBYTE = 1 << 20


def entity(queue_id: int = 1, path: str = "orders") -> PutEntity:
    return PutEntity(EntityRow(queue_id, path, "queue", "{}"))


def chunk(
    first_seq: int,
    count: int = 10,
    *,
    queue_id: int = 1,
    expires_ms: int | None = None,
    blob: bytes | None = None,
) -> PutChunk:
    content = b"messages from %d" % first_seq if blob is None else blob
    return PutChunk(ChunkRow(queue_id, first_seq, count, 1_000, expires_ms, content))


def sheet_of(*records: bytes) -> SharedBody:
    """A sheet with these messages."""
    lengths = b"".join(len(record).to_bytes(4, "big") for record in records)
    return SharedBody(len(records), lengths + b"".join(records))


def share_of(
    sheet: SharedBody, records: Sequence[bytes], places: Iterable[int], **row: int
) -> PutChunk:
    """A chunk that selects these places of a sheet."""
    chosen = sorted(places)
    blob = sheet_of(*(records[place] for place in chosen)).blob
    put = chunk(row.pop("first_seq", 1), len(chosen), blob=blob, **row)
    return replace(put, share=SharedBodySelection(sheet, sum(1 << place for place in chosen)))


def in_session(session: str, first_seq: int, count: int = 10) -> list[PutChunk]:
    """A chunk of one session, as a list to be spread among other ops."""
    blob = b"messages from %d" % first_seq
    return [PutChunk(ChunkRow(1, first_seq, count, 1_000, None, blob, session))]


def counters(
    next_seq: int, messages: int, *, queue_id: int = 1, deferred: int = 0, scheduled: int = 0
) -> PutCounters:
    return PutCounters(QueueCounters(queue_id, next_seq, messages, 0, deferred, scheduled))


def all_chunks(store: Store, queue_id: int = 1) -> list[LoadedChunk]:
    return store.load_chunks(queue_id, 0, 64 * MEBIBYTE, 1_000_000)


def first_seqs(chunks: list[LoadedChunk]) -> list[int]:
    return [loaded.row.first_seq for loaded in chunks]
