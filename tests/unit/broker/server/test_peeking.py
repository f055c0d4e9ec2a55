"""Looking for messages by sequence number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.chunk import ChunkCache, span_mask
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import Record, pack_chunk, pack_record
from twinbus.broker.server import message_lookup
from twinbus.broker.server.message_lookup import Found, peeked, read_peek
from twinbus.broker.storage.interface import (
    SEQ_MAX,
    ChunkRow,
    EntityRow,
    Op,
    PutChunk,
    PutCounters,
    PutEntity,
    PutScheduled,
    Store,
)
from twinbus.broker.storage.interface import QueueCounters as Counters
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.common.clock import Instant
from twinbus.common.steps import run_steps

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
    chunks, _scheduled, _through = run_steps(read_peek(queue, 1, 1, None, NOW_MS, store))

    # Then the live one is among what was read
    seqs: list[Any] = [chunk.first_seq for chunk in chunks]
    assert 2 in seqs


def filled_store(chunk_count: int, per_chunk: int) -> tuple[MemoryStore, Queue]:
    store = MemoryStore()
    store.open()
    blob = pack_chunk([pack_record(Record(b"x" * 40))] * per_chunk)
    total = chunk_count * per_chunk
    store.commit(
        [
            PutEntity(EntityRow(1, "orders", "queue", "{}")),
            PutCounters(Counters(1, 2 * total + 1, total, total, 0, total)),
            *(
                PutChunk(ChunkRow(1, 1 + at * per_chunk, per_chunk, 0, None, blob))
                for at in range(chunk_count)
            ),
            *(PutScheduled(1, total + at, 5, scheduled_record()) for at in range(1, total + 1)),
        ]
    )
    queue = SimpleNamespace(
        queue_id=1, chunk_cache=ChunkCache(), is_still_scheduled=lambda _seq: True
    )
    return store, cast(Queue, queue)


def scheduled_record(session: str = "other") -> bytes:
    message = Message(properties=Properties(group_id=session), body=b"x")
    pairs = encode_value(Symbol("x-opt-scheduled-enqueue-time")) + encode_value(Timestamp(5))
    return pack_record(Record(message.encode(), annotation_count=1, annotation_pairs=pairs))


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_a_peek_builds_the_messages_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """M3, M13: not those that were read with them."""
    store, queue = filled_store(3, 1_024)
    built: list[int] = []
    deliver = message_lookup.delivered_message

    def count_it(*arguments: Any, **options: Any) -> bytes:
        built.append(1)
        return deliver(*arguments, **options)

    monkeypatch.setattr(message_lookup, "delivered_message", count_it)
    found = run_steps(read_peek(queue, 1, count, None, NOW_MS, store))

    shown = run_steps(peeked(queue, found, 1, count, Instant(0.0, NOW_MS)))

    assert len(shown) == count and len(built) == count
    assert len(found.chunks) == 1
    assert not found.scheduled, "what is scheduled behind them is not needed"


def test_a_long_reply_is_built_in_short_turns() -> None:
    """M13: others have theirs in between, and what is settled meanwhile is not shown."""
    store, queue = filled_store(1, 1_000)
    found = run_steps(read_peek(queue, 1, 1_000, None, NOW_MS, store))
    current = found.chunks[0]
    queue.chunk_cache.keep(current)
    steps = peeked(queue, found, 1, 1_000, Instant(0.0, NOW_MS))
    next(steps)
    current.mark_gone(span_mask(500, 100))
    for _ in range(8):
        next(steps)
    assert len(run_steps(steps)) == 900


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_session_peek_does_not_read_messages_of_other_sessions(kind: str, tmp_path: Path) -> None:
    """M3, M13: however many there are, the index of sessions leads past them."""
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "store.db")
    store.open()
    blob = pack_chunk([pack_record(Record(b"x" * 40))])
    ops: list[Op] = [PutEntity(EntityRow(1, "orders", "queue", "{}"))]
    ops += [
        PutChunk(ChunkRow(1, seq, 1, 0, None, blob, "wanted" if seq == 4_000 else f"s{seq % 50}"))
        for seq in range(1, 5_001)
    ]
    store.commit(ops)
    read: list[int] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def load_chunks(self, *arguments: Any) -> Any:
            found = store.load_chunks(*arguments)
            read.append(len(found))
            return found

    queue = cast(Queue, SimpleNamespace(queue_id=1))
    found = run_steps(read_peek(queue, 1, 10, "wanted", NOW_MS, cast(Store, Counted())))
    assert [chunk.first_seq for chunk in found.chunks] == [4_000]
    assert (len(read), sum(read)) == (2, 1)
    assert run_steps(read_peek(queue, 1, 10, "none", NOW_MS, store)).chunks == []
    store.close()


def test_a_session_peek_looks_through_the_schedule_in_short_steps() -> None:
    """M3, M13: other queues are read to between two of them; nothing is missed."""
    store, queue = filled_store(1, 1_000)
    store.commit([PutScheduled(1, 5_000, 5, scheduled_record("mine"))])
    read_counts: list[int] = []
    load = store.load_scheduled

    def count_rows(*arguments: Any) -> Any:
        rows = load(*arguments)
        read_counts.append(len(rows))
        return rows

    store.load_scheduled = count_rows  # type: ignore[method-assign]
    steps = read_peek(queue, 1, 10, "mine", NOW_MS, store)
    step_count = 0
    while True:
        before = len(read_counts)
        try:
            next(steps)
        except StopIteration as end:
            found: Found = end.value
            break
        step_count += 1
        assert len(read_counts) - before <= 1, "a step is one load"

    assert max(read_counts) <= 128 and step_count >= 1_000 // 128
    assert [row.seq for row in found.scheduled] == [5_000]
    assert found.through_seq == SEQ_MAX


def test_a_name_that_stands_in_the_body_is_no_session() -> None:
    """M3: the cheap look decides only who is not of the session."""
    store, queue = filled_store(1, 1)
    body = Message(properties=Properties(group_id="other"), body=b"of mine").encode()
    store.commit([PutScheduled(1, 50, 5, pack_record(Record(body)))])

    found = run_steps(read_peek(queue, 1, 10, "mine", NOW_MS, store))

    assert found.scheduled == []


def test_nothing_is_shown_behind_what_was_not_read() -> None:
    """M3: whoever peeks on from the last number misses nothing.

    Ten scheduled messages were read and have left the schedule since; others follow behind them.
    """
    store, queue = filled_store(1, 20)
    store.commit([PutChunk(ChunkRow(1, 100, 1, 0, None, pack_chunk([pack_record(Record(b""))])))])
    found = run_steps(read_peek(queue, 21, 10, None, NOW_MS, store))
    assert [row.seq for row in found.scheduled] == list(range(21, 31))
    gone = SimpleNamespace(
        queue_id=1, chunk_cache=ChunkCache(), is_still_scheduled=lambda _seq: False
    )

    shown = run_steps(peeked(cast(Queue, gone), found, 21, 10, Instant(0.0, NOW_MS)))

    assert shown == [] and found.through_seq == 30
