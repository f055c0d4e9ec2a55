"""State changes of messages: each function changes a chunk and adds the change to the open batch.

    remove                  removed
    return_to_queue         to be delivered again, at once
    count_failed_delivery   counted, then returned or dead-lettered
    defer                   deferred
    dead_letter             moved to the dead-letter queue
    expire                  removed or dead-lettered, if its time to live has ended

Rule 1: a chunk with changes in the batch is unsaved, and an unsaved chunk stays in memory.
Rule 2: a message that waits to be moved is not delivered and does not expire meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from twinbus.broker.engine.audit_hooks import MessageEvent, MessageEventRange
from twinbus.broker.engine.chunk import Chunk, spans_of
from twinbus.broker.engine.descriptions import DELIVERY_COUNT_MAX
from twinbus.broker.engine.outcomes import (
    EXPIRED,
    MAX_DELIVERIES,
    TEXT_CHARACTERS_MAX,
    DeadLetter,
    dead_lettered,
    shorten,
    text_bytes,
)
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.engine.write_batch import CommitCallback

# A message takes about 15 microseconds to be moved: a turn is about a millisecond.
MOVES_PER_TURN_MAX: Final = 64
# Moved without waiting for a turn, in each batch; a receiver seldom dead-letters more at once.
MOVES_AT_ONCE_MAX: Final = 128
# Moved with one batch. The texts of one frame are added to many messages, and all queues of
# a namespace wait for one commit: the rest follows with the next ones.
MOVED_BYTES_MAX: Final = 512 * 1024


def _indexes(mask: int) -> Iterator[int]:
    for start, count in spans_of(mask):
        yield from range(start, start + count)


def note(queue: Queue, what: MessageEvent, chunk: Chunk, mask: int, reason: str = "") -> None:
    """Add an event to the batch, if the queue has an audit sink."""
    if queue.audit_sink is not None:
        queue.batch.notes.append(MessageEventRange(what, chunk.first_seq, mask, reason))


def remove(queue: Queue, chunk: Chunk, mask: int) -> None:
    """The messages are removed for good when the batch is on disk."""
    mask &= ~chunk.gone
    if not mask:
        return
    queue.deferred_count -= (chunk.deferred & mask).bit_count()
    if queue.sessions is not None:
        queue.sessions.left(chunk.session or "", (mask & ~chunk.deferred).bit_count())
    queue.message_count -= mask.bit_count()
    queue.byte_count -= chunk.size_of(mask)
    chunk.mark_gone(mask)
    chunk.unsaved = True
    batch, first_seq = queue.batch, chunk.first_seq
    batch.touched[first_seq] = chunk
    batch.gone[first_seq] = batch.gone.get(first_seq, 0) | mask


def restore(queue: Queue, chunk: Chunk, mask: int, deferred: int) -> None:
    """Messages stay, because the store refused the batch that removed them.

    The opposite of remove(); ``deferred`` are those of them that were deferred.
    """
    batch, first_seq = queue.batch, chunk.first_seq
    chunk.gone &= ~mask
    chunk.deferred |= deferred
    queue.deferred_count += deferred.bit_count()
    if queue.sessions is not None:
        queue.sessions.left(chunk.session or "", -(mask & ~deferred).bit_count())
    queue.message_count += mask.bit_count()
    queue.byte_count += chunk.size_of(mask)
    still_gone = batch.gone.get(first_seq, 0) & ~mask
    if still_gone:
        batch.gone[first_seq] = still_gone
    else:
        batch.gone.pop(first_seq, None)
        batch.touched.pop(first_seq, None)
    restore_expiry(queue, chunk)
    chunk.unsaved = batch.changes(chunk)
    return_to_queue(queue, chunk, mask)


def return_to_queue(queue: Queue, chunk: Chunk, mask: int) -> None:
    """Deliver the messages again, in their old order. Deferred ones stay deferred."""
    mask &= ~(chunk.gone | chunk.deferred | chunk.locked | chunk.moving)
    if mask:
        stream = queue.stream_of(chunk)
        if stream is None:
            chunk.set_free(mask)
        else:
            stream.returned.add(chunk, mask)
    queue.chunk_cache.release(chunk)


def count_failed_delivery(queue: Queue, chunk: Chunk, mask: int) -> None:
    """Count the delivery; after the last allowed one the message is dead-lettered."""
    note(queue, MessageEvent.ABANDONED, chunk, mask)
    exhausted = 0
    for index in _indexes(mask):
        attempts = chunk.delivery_counts.get(index, 0) + 1
        if attempts >= queue.description.max_delivery_count and queue.dead_letters:
            exhausted |= 1 << index
        else:
            # A dead-letter queue has no dead-letter queue: the count stops before it overflows.
            chunk.delivery_counts[index] = min(attempts, DELIVERY_COUNT_MAX)
            _save_state(queue, chunk, index)
    if exhausted:
        dead_letter(queue, chunk, exhausted, MAX_DELIVERIES, None)
    if mask & ~exhausted:
        queue.batch.returns.append((chunk, mask & ~exhausted))
        if queue.sessions is not None:
            queue.sessions.returning(chunk.session or "")
        restore_expiry(queue, chunk)


def defer(queue: Queue, chunk: Chunk, mask: int) -> None:
    note(queue, MessageEvent.DEFERRED, chunk, mask)
    newly = (mask & ~chunk.deferred).bit_count()
    queue.deferred_count += newly
    if queue.sessions is not None:
        queue.sessions.left(chunk.session or "", newly)
    chunk.deferred |= mask
    for index in _indexes(mask):
        _save_state(queue, chunk, index)
    restore_expiry(queue, chunk)


def _save_state(queue: Queue, chunk: Chunk, index: int) -> None:
    chunk.unsaved = True
    state = (chunk, chunk.delivery_counts.get(index, 0), bool(chunk.deferred >> index & 1))
    queue.batch.states[chunk.first_seq + index] = state
    queue.batch.state_chunks[chunk.first_seq] = chunk


@dataclass(slots=True)
class Move:
    """Messages of one chunk that are being moved to the dead-letter queue."""

    chunk: Chunk
    blob: bytes
    mask: int
    """The messages that are still to be moved."""
    outcome: DeadLetter
    ticket: CommitCallback | None


def dead_letter(
    queue: Queue, chunk: Chunk, mask: int, outcome: DeadLetter, ticket: CommitCallback | None
) -> None:
    """Move messages to the dead-letter queue, each in one transaction with its removal.

    One frame may settle thousands: after MOVES_AT_ONCE_MAX the others wait for the queue's turns.
    """

    def begin() -> None:
        if ticket is not None:
            queue.unread.pop(id(ticket), None)
        queue.moves.append(Move(chunk, chunk.blob or b"", mask, outcome, ticket))
        while queue.can_move and queue.moved_count < MOVES_AT_ONCE_MAX:
            advance_moves(queue)

    chunk.moving |= mask
    if ticket is not None and chunk.blob is None:
        queue.unread[id(ticket)] = ticket
    queue.with_blob(chunk, begin)


def advance_moves(queue: Queue) -> None:
    """Move a few of the waiting messages."""
    move, target = queue.moves[0], queue.dead_letters
    if target is None:
        raise RuntimeError("A dead-letter queue has no dead-letter queue")
    chunk, outcome, path = move.chunk, move.outcome, queue.description.path
    count = min(MOVES_PER_TURN_MAX, 1 + MOVED_BYTES_MAX // (1 + text_bytes(outcome)))
    indexes = list(islice(_indexes(move.mask), count))
    mask = move.mask & ((2 << indexes[-1]) - 1)
    if not queue.has_room_for(len(indexes) * text_bytes(outcome)):
        outcome = shorten(outcome)
    size_before = queue.used_bytes
    moved = [dead_lettered(chunk, index, outcome, path, move.blob) for index in indexes]
    note(queue, MessageEvent.DEAD_LETTERED, chunk, mask, outcome.reason[:TEXT_CHARACTERS_MAX])
    remove(queue, chunk, mask)
    target.enqueue(moved, None)
    queue.grew(queue.used_bytes - size_before)
    queue.moved_count += len(moved)
    queue.moved_bytes += sum(len(message.record) for message in moved)
    move.mask &= ~mask
    if not move.mask:
        queue.moves.popleft()
        if move.ticket is not None:
            queue.batch.tickets.append(move.ticket)


def expire(queue: Queue, chunk: Chunk, now: Instant) -> bool:
    """Remove expired messages that are not locked; returns whether there were any."""
    if chunk.expires_ms is None or chunk.expires_ms > now.wall_ms:
        return False
    mask = 0
    for index, expires_ms in chunk.expiries.items():
        if expires_ms <= now.wall_ms:
            mask |= 1 << index
    mask &= ~(chunk.gone | chunk.locked | chunk.moving)
    if not mask:
        return False
    chunk.busy |= mask
    chunk.returned &= ~mask
    if queue.description.dead_lettering_on_expiration and queue.dead_letters:
        dead_letter(queue, chunk, mask, EXPIRED, None)
    else:
        note(queue, MessageEvent.EXPIRED, chunk, mask)
        remove(queue, chunk, mask)
    chunk.refresh_expiry()
    _save_expiry(queue, chunk)
    return True


def restore_expiry(queue: Queue, chunk: Chunk) -> None:
    """While a message was locked, the disk may have a later expiry for it: write it again."""
    if chunk.expires_ms is not None:
        _save_expiry(queue, chunk)


def postpone_expiry(queue: Queue, chunk: Chunk) -> None:
    """Expired messages are locked: check again when the lock has expired."""
    _save_expiry(queue, chunk)


def _save_expiry(queue: Queue, chunk: Chunk) -> None:
    chunk.unsaved = True
    queue.batch.expiries[chunk.first_seq] = chunk
    queue.batch.swept = True
