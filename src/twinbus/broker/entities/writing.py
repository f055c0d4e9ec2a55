"""From the changes of a queue to store operations, and back again when the store refuses.

Sequence numbers are given out here, when the batch is closed, because only one batch of a
queue is ever on its way: if the store refuses it, the numbers are taken back and no gap
remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING

from twinbus.broker.entities.batch import (
    CHUNK_BYTES_MAX,
    CHUNK_COUNT_MAX,
    Arrival,
    Batch,
    Ticket,
)
from twinbus.broker.entities.chunk import Chunk, spans_of
from twinbus.broker.entities.facts import session_of
from twinbus.broker.entities.record import IncomingMessage
from twinbus.broker.entities.sheets import on_sheets, packed
from twinbus.broker.entities.witness import Closed, Note
from twinbus.broker.store.port import (
    ChunkRow,
    DeleteChunks,
    DeleteScheduled,
    ForgetSeen,
    Op,
    PutChunk,
    PutCounters,
    PutScheduled,
    PutSeen,
    PutSessionState,
    PutState,
    QueueCounters,
    SetChunkExpiry,
    Tombstone,
)
from twinbus.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue


def close(queue: Queue, now: Instant) -> list[Op]:
    """Turn the queue's open batch into operations; a new batch is open afterwards."""
    batch = queue.in_flight = queue.batch
    queue.batch = Batch()
    ops: list[Op] = []
    _put_chunks(queue, batch, now, ops)
    _put_scheduled(queue, batch, ops)
    _put_removals(queue, batch, ops)
    _put_states(queue, batch, ops)
    _put_expiries(queue, batch, now, ops)
    _put_seen(queue, batch, now, ops)
    for session, state in batch.session_states.items():
        ops.append(PutSessionState(queue.queue_id, session, state, now.wall_ms))
    ops.append(PutCounters(counters_of(queue)))
    return ops


def counters_of(queue: Queue) -> QueueCounters:
    return QueueCounters(
        queue.queue_id,
        queue.next_seq,
        queue.message_count,
        queue.byte_count,
        queue.deferred_count,
        queue.scheduled_count,
    )


def _put_chunks(queue: Queue, batch: Batch, now: Instant, ops: list[Op]) -> None:
    for session, messages in _portions(queue, batch.arrivals):
        blob, share = packed(messages)
        expiries = [m.expires_ms for m in messages if m.expires_ms is not None]
        expires_ms = min(expiries) if expiries else None
        first_seq, count = queue.next_seq, len(messages)
        queue.next_seq += count
        queue.message_count += count
        row = ChunkRow(queue.queue_id, first_seq, count, now.wall_ms, expires_ms, blob, session)
        ops.append(PutChunk(row, share))
        chunk = Chunk(first_seq, count, now.wall_ms, expires_ms, blob, session)
        queue.shelf.expect(chunk)
        queue.saving.append(chunk)


def _portions(
    queue: Queue, arrivals: list[Arrival]
) -> Iterator[tuple[str | None, list[IncomingMessage]]]:
    """Everything that arrived, in order; a portion is of one session if the queue has those."""
    arrived = chain.from_iterable(arrival.messages for arrival in arrivals)
    if queue.sessions is None:
        for portion in _chunk_sized(arrived):
            yield from ((None, messages) for messages in on_sheets(portion))
        return
    # The numbers follow the order of arrival, so a chunk ends where another session begins.
    for session, together in groupby(arrived, key=session_of):
        for portion in _chunk_sized(together):
            yield from ((session or "", messages) for messages in on_sheets(portion))


def _chunk_sized(messages: Iterable[IncomingMessage]) -> Iterator[list[IncomingMessage]]:
    """The messages, in order, in portions that make a good chunk."""
    portion: list[IncomingMessage] = []
    size = 0
    for message in messages:
        length = len(message.record)
        if portion and (len(portion) == CHUNK_COUNT_MAX or size + length > CHUNK_BYTES_MAX):
            yield portion
            portion, size = [], 0
        portion.append(message)
        size += length
    if portion:
        yield portion


def _put_scheduled(queue: Queue, batch: Batch, ops: list[Op]) -> None:
    for seq in batch.unscheduled:
        ops.append(DeleteScheduled(queue.queue_id, seq))
    for arrival in batch.scheduled:
        for message in arrival.messages:
            due_ms = message.due_ms or 0
            ops.append(PutScheduled(queue.queue_id, queue.next_seq, due_ms, message.record))
            queue.next_seq += 1
            queue.scheduled_count += 1


def _put_removals(queue: Queue, batch: Batch, ops: list[Op]) -> None:
    """Delete chunks that are empty now, neighbours together; mark the holes in the others."""
    first = last = 0
    for first_seq in sorted(batch.touched):
        chunk = batch.touched[first_seq]
        mask, chunk.newly_gone = chunk.newly_gone, 0
        batch.removed.append((chunk, mask))
        if not chunk.is_empty:
            for start, count in spans_of(mask):
                seq = first_seq + start
                ops.append(Tombstone(queue.queue_id, seq, seq + count - 1))
        elif last and first_seq == last + 1:
            last = chunk.last_seq
        else:
            if last:
                ops.append(DeleteChunks(queue.queue_id, first, last))
            first, last = first_seq, chunk.last_seq
    if last:
        ops.append(DeleteChunks(queue.queue_id, first, last))


def _put_states(queue: Queue, batch: Batch, ops: list[Op]) -> None:
    for seq, (chunk, delivery_count, deferred) in batch.states.items():
        if not chunk.gone >> (seq - chunk.first_seq) & 1:
            ops.append(PutState(queue.queue_id, seq, delivery_count, deferred))


def _put_expiries(queue: Queue, batch: Batch, now: Instant, ops: list[Op]) -> None:
    """When the sweeper should come back: what is held now is free when its lock has run out."""
    later_ms = now.wall_ms + queue.description.lock_duration_ms
    for chunk in batch.expiries.values():
        if not chunk.is_empty:
            expires_ms = chunk.sweep_ms(now.wall_ms, later_ms)
            ops.append(SetChunkExpiry(queue.queue_id, chunk.first_seq, expires_ms))


def _put_seen(queue: Queue, batch: Batch, now: Instant, ops: list[Op]) -> None:
    if queue.history is None:
        return
    row = queue.history.close(queue.queue_id, now.wall_ms)
    if row is not None:
        ops.append(PutSeen(row))
    if batch.seen_through:
        ops.append(ForgetSeen(queue.queue_id, batch.seen_through))


def closed_in(queue: Queue, batch: Batch) -> Closed:
    """What the witness is told of the batch that was closed last."""
    trails = [message.trail for arrival in batch.arrivals for message in arrival.messages]
    records = [message.record for arrival in batch.scheduled for message in arrival.messages]
    scheduled = list(enumerate(records, queue.next_seq - len(records)))
    return Closed(queue.saving, trails, scheduled, batch.notes)


def tickets_of(queue: Queue, batch: Batch) -> list[tuple[Ticket, range]]:
    """Who is told that the batch is on disk, and the numbers that their messages got."""
    told: list[tuple[Ticket, range]] = [(ticket, range(0)) for ticket in batch.tickets]
    seq = queue.saving[0].first_seq if queue.saving else 0
    for arrivals in (batch.arrivals, batch.scheduled):
        if arrivals is batch.scheduled:
            seq = queue.next_seq - sum(len(each.messages) for each in batch.scheduled)
        for messages, ticket, _is_ours in arrivals:
            if ticket is not None:
                told.append((ticket, range(seq, seq + len(messages))))
            seq += len(messages)
    return told


def undo(queue: Queue, batch: Batch) -> list[Ticket]:
    """The store refused ``batch``: keep what is ours for the next one, refuse the rest."""
    refused = list(batch.tickets)
    _take_back_numbers(queue, batch)
    kept = queue.batch
    for chunk, mask in batch.removed:
        chunk.newly_gone |= mask
        kept.touched[chunk.first_seq] = chunk
    for seq, state in batch.states.items():
        kept.states.setdefault(seq, state)
    for first_seq, chunk in batch.expiries.items():
        kept.expiries.setdefault(first_seq, chunk)
    kept.returns[:0] = batch.returns
    kept.unscheduled[:0] = batch.unscheduled
    kept.notes[:0] = [each for each in batch.notes if isinstance(each, Note) or each.is_ours]
    kept.swept |= batch.swept
    kept.seen_through = max(kept.seen_through, batch.seen_through)
    if queue.history is not None:
        queue.history.take_back()
    refused += _refuse(queue, batch.arrivals, kept.arrivals)
    refused += _refuse(queue, batch.scheduled, kept.scheduled)
    return refused


def _take_back_numbers(queue: Queue, batch: Batch) -> None:
    for chunk in queue.saving:
        queue.shelf.forget(chunk)
        queue.next_seq -= chunk.count
        queue.message_count -= chunk.count
    queue.saving = []
    for arrival in batch.scheduled:
        queue.next_seq -= len(arrival.messages)
        queue.scheduled_count -= len(arrival.messages)


def _refuse(queue: Queue, arrivals: list[Arrival], kept: list[Arrival]) -> list[Ticket]:
    """Keep the broker's own arrivals in front of ``kept``; the tickets of the others."""
    ours = [arrival for arrival in arrivals if arrival.is_ours]
    kept[:0] = ours
    refused = [arrival for arrival in arrivals if not arrival.is_ours]
    for arrival in refused:
        queue.byte_count -= sum(len(message.record) for message in arrival.messages)
    return [arrival.ticket for arrival in refused if arrival.ticket is not None]
