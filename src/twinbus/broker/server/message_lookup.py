"""Messages by sequence number: what to read for a peek, deferred or scheduled messages.

The ``read_`` functions run on the reader's thread and read what is on disk. The others run on
the loop with the queue machine, which has the changes since then.

Rule 1: a peek costs in proportion to its result, plus a scan of messages that cannot be returned,
        in short steps on the reader's thread; a long reply is built in short turns on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from twinbus.broker.engine.chunk import Chunk, span_mask
from twinbus.broker.engine.consumers import DeliveryBatch
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import ScheduledSize, size_of
from twinbus.broker.engine.stored_message import facts_of, unpack_record
from twinbus.broker.server.delivery_encoder import (
    STATE_SCHEDULED,
    delivered_message,
    encode_record,
    token_uuid,
)
from twinbus.broker.server.ingest import SCHEDULED
from twinbus.broker.storage.interface import SEQ_MAX, ScheduledRow, Store
from twinbus.common.clock import Instant
from twinbus.common.steps import Steps

# A reply grows no larger than this, except for one message that is larger alone.
REPLY_BYTES_MAX = 1 << 20
# Deferred messages may be far apart; this much is read for one request.
DEFERRED_BYTES_MAX = 32 << 20
# One step of a read, a few milliseconds; then other queues have their turn.
_STEP_BYTES = 256 * 1024
_STEP_CHUNKS = 8
_STEP_ROWS = 128
# Messages of a reply that are built in one turn of the loop, about a millisecond.
BUILT_PER_TURN = 100
# A message of this size is a step of its own.
_LARGE_BYTES = 32 * 1024


class Found(NamedTuple):
    """What was read from the disk for a peek."""

    chunks: list[Chunk]
    scheduled: list[ScheduledRow]
    through_seq: int
    """Everything up to this number is included; SEQ_MAX when there is no more."""


def read_peek(
    queue: Queue, first: int, count: int, session: str | None, now_ms: int, store: Store
) -> Steps[Found]:
    """Chunks and scheduled messages from ``first`` on: enough for ``count`` live messages.

    With ``session``, only those of that session.
    """
    if first > SEQ_MAX:
        return Found([], [], SEQ_MAX)
    chunks, through_seq = yield from _read_chunks(queue, first, count, session, now_ms, store)
    yield
    # Scheduled messages behind those would not be returned anyway.
    scheduled, through_seq = yield from _read_scheduled_from(
        queue.queue_id, first, through_seq, count, session, store
    )
    return Found(chunks, scheduled, through_seq)


def _read_chunks(
    queue: Queue, first: int, count: int, session: str | None, now_ms: int, store: Store
) -> Steps[tuple[list[Chunk], int]]:
    """Chunks with live messages, and the number up to which there are no others."""
    queue_id = queue.queue_id
    chunks: list[Chunk] = []
    live = size = 0
    holding = store.load_chunk_holding(queue_id, first)
    after = first - 1 if holding is None else holding.row.last_seq
    more = [] if holding is None else [holding]
    if session is not None:
        more = [chunk for chunk in more if chunk.row.session == session]
    while True:
        for loaded in more:
            chunk = Chunk.from_store(loaded)
            found = _live_count(chunk, first, now_ms)
            if found:
                live += found
                size += len(loaded.row.blob)
                chunks.append(chunk)
        if live >= count or size >= REPLY_BYTES_MAX:
            return chunks, after
        yield
        more = store.load_chunks(queue_id, after, _STEP_BYTES, _STEP_CHUNKS, session)
        if not more:
            return chunks, SEQ_MAX
        after = more[-1].row.last_seq


def _read_scheduled_from(
    queue_id: int, first: int, last: int, count: int, session: str | None, store: Store
) -> Steps[tuple[list[ScheduledRow], int]]:
    """Scheduled messages up to ``last``, and the number up to which there are no others."""
    found: list[ScheduledRow] = []
    name = None if session is None else session.encode()
    size, after = 0, first - 1
    while True:
        rows_max = _STEP_ROWS if name is not None else min(_STEP_ROWS, count - len(found))
        rows = store.load_scheduled(queue_id, after, rows_max, _STEP_BYTES)
        for row in rows:
            if row.seq > last:
                return found, last
            after = row.seq
            if name is not None and not _is_of_session(row, name):
                continue
            found.append(row)
            size += len(row.blob)
            if len(found) >= count or size >= REPLY_BYTES_MAX:
                return found, after
        if not rows:
            return found, last
        yield


def _is_of_session(row: ScheduledRow, name: bytes) -> bool:
    """Only messages whose bytes contain the session's name are decoded."""
    return name in row.blob and facts_of(row.blob).session_id == name.decode()


def _live_count(chunk: Chunk, first: int, now_ms: int) -> int:
    """How many messages from ``first`` on are neither removed nor expired."""
    begin = max(0, first - chunk.first_seq)
    live = ~chunk.gone & span_mask(begin, max(0, chunk.count - begin))
    if chunk.expires_ms is not None and chunk.expires_ms <= now_ms:
        for index, at_ms in chunk.expiries.items():
            if at_ms <= now_ms:
                live &= ~(1 << index)
    return live.bit_count()


def peeked(
    queue: Queue, found: Found, first: int, count: int, now: Instant
) -> Steps[list[dict[str, Any]]]:
    """The messages from ``first`` on for the reply, active and scheduled ones by number.

    Each is built when it is needed, a few at a time, so that the cost depends on the result.
    """
    active = _active_messages(queue, found.chunks, first, now)
    scheduled = _scheduled_messages(queue, found.scheduled)
    size = 0
    reply: list[dict[str, Any]] = []
    for seq, build in merge(active, scheduled, key=itemgetter(0)):
        if seq > found.through_seq or len(reply) == count:
            break
        message = build()
        if message is None:
            continue
        size += len(message)
        if reply and size > REPLY_BYTES_MAX:
            break
        reply.append({"message": message})
        if len(reply) % BUILT_PER_TURN == 0:
            yield
    return reply


_Built = Iterator[tuple[int, Callable[[], bytes | None]]]
"""Numbers, ascending, and how the message of each is built."""


def _active_messages(queue: Queue, chunks: list[Chunk], first: int, now: Instant) -> _Built:
    # All at once: a chunk that is in memory now may be dropped before the last turn.
    for built, chunk in [(built, queue.chunk_cache.current(built)) for built in chunks]:
        blob = built.blob or b""
        for index in range(max(0, first - chunk.first_seq), chunk.count):
            if chunk.gone >> index & 1 or chunk.expiries.get(index, now.wall_ms + 1) <= now.wall_ms:
                continue
            build = partial(delivered_message, chunk, blob, index)
            yield chunk.first_seq + index, build


def _scheduled_messages(queue: Queue, rows: list[ScheduledRow]) -> _Built:
    for row in rows:
        if queue.is_still_scheduled(row.seq):
            yield row.seq, partial(_scheduled_message, row)


def _scheduled_message(row: ScheduledRow) -> bytes | None:
    """A scheduled message; None if a fault hides an active one as scheduled (rule F3)."""
    record = unpack_record(row.blob, 0, len(row.blob))
    if SCHEDULED.encode() not in record.annotation_pairs:
        return None
    return encode_record(record, row.seq, row.due_ms, state=STATE_SCHEDULED)


def read_deferred(queue: Queue, seqs: list[int], store: Store) -> Steps[list[Chunk | None] | None]:
    """The chunk of each of ``seqs``; None when they are too large for one request."""
    found: dict[int, Chunk | None] = {}
    size = 0
    last: Chunk | None = None
    for seq in sorted(seqs):
        if last is None or seq > last.last_seq:
            row = store.load_chunk_holding(queue.queue_id, seq) if 1 <= seq <= SEQ_MAX else None
            last = None if row is None else Chunk.from_store(row)
            size += 0 if row is None else len(row.row.blob)
            if size > DEFERRED_BYTES_MAX:
                return None
            yield
        found[seq] = last
    return [found[seq] for seq in seqs]


def read_scheduled(queue: Queue, seqs: list[int], store: Store) -> Steps[list[ScheduledSize]]:
    """The sizes of the scheduled messages with these numbers, as far as they exist."""
    found: list[ScheduledSize] = []
    for seq in sorted(set(seqs)):
        rows = store.load_scheduled(queue.queue_id, seq - 1, 1) if 1 <= seq <= SEQ_MAX else []
        found += [size_of(row) for row in rows if row.seq == seq]
        if len(found) % _STEP_ROWS == 0 or any(len(row.blob) > _LARGE_BYTES for row in rows):
            yield
    return found


def deferred_message(grant: DeliveryBatch) -> dict[str, Any]:
    """A deferred message for the reply."""
    seq = grant.chunk.first_seq + grant.start
    if grant.run is None:
        return {"message": delivered_message(grant.chunk, grant.blob, grant.start)}
    token = grant.run.token(seq)
    message = delivered_message(
        grant.chunk,
        grant.blob,
        grant.start,
        token=token,
        locked_until_ms=grant.run.locked_until_ms,
    )
    return {"message": message, "lock-token": token_uuid(token)}
