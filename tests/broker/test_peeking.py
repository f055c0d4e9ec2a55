"""Looking for messages by sequence number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.record import Record, pack_chunk, pack_record
from twinbus.broker.peeking import read_peek
from twinbus.broker.store.memory import MemoryStore
from twinbus.broker.store.port import ChunkRow, EntityRow, PutChunk, PutCounters, PutEntity
from twinbus.broker.store.port import QueueCounters as Counters

NOW_MS = 1_000_000


def test_a_peek_reads_on_behind_messages_that_expired_and_are_still_there() -> None:
    """M3: one that was held when it expired is removed later; a peek does not end at it."""
    # Given a message that expired under a lock, so that the disk has a later time for it
    store = MemoryStore()
    store.open()
    gone_by = pack_record(Record(b"", expires_ms=NOW_MS - 1, ttl_ms=1))
    held = ChunkRow(1, 1, 1, 0, NOW_MS + 60_000, pack_chunk([gone_by]))
    live = ChunkRow(1, 2, 1, 0, None, pack_chunk([pack_record(Record(b""))]))
    store.commit(
        [
            PutEntity(EntityRow(1, "orders", "queue", "{}")),
            PutCounters(Counters(1, 3, 2, 2, 0, 0)),
            PutChunk(held),
            PutChunk(live),
        ]
    )
    queue = cast(Queue, SimpleNamespace(queue_id=1))

    # When one message is asked for
    chunks, _scheduled = read_peek(queue, 1, 1, None, NOW_MS, store)

    # Then the live one is among what was read
    seqs: list[Any] = [chunk.row.first_seq for chunk in chunks]
    assert 2 in seqs
