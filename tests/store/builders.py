"""Short ways to say what the store tests talk about."""

from __future__ import annotations

from twinbus.broker.store.port import (
    ChunkRow,
    EntityRow,
    LoadedChunk,
    PutChunk,
    PutCounters,
    PutEntity,
    QueueCounters,
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


def counters(
    next_seq: int, messages: int, *, queue_id: int = 1, deferred: int = 0, scheduled: int = 0
) -> PutCounters:
    return PutCounters(QueueCounters(queue_id, next_seq, messages, 0, deferred, scheduled))


def all_chunks(store: Store, queue_id: int = 1) -> list[LoadedChunk]:
    return store.load_chunks(queue_id, 0, 64 * MEBIBYTE, 1_000_000)


def first_seqs(chunks: list[LoadedChunk]) -> list[int]:
    return [loaded.row.first_seq for loaded in chunks]
