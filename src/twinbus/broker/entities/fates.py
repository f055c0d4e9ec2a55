"""What becomes of messages: each function changes a chunk and notes it in the open batch.

    remove        gone for good            give_back     to be handed out again, at once
    fail_attempt  counted, then given back or dead-lettered
    defer         put aside                dead_letter   moved
    expire        removed or moved, if the time has come

Rule 1: what is noted in the batch is unsaved, and an unsaved chunk stays in memory.
Rule 2: a message that waits to be moved belongs to nobody: it is not handed out, not taken and
        not expired meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinbus.broker.entities.chunk import Chunk, spans_of
from twinbus.broker.entities.dead_letter import dead_lettered
from twinbus.broker.entities.description import DELIVERY_COUNT_MAX
from twinbus.broker.entities.outcome import EXPIRED, MAX_DELIVERIES, DeadLetter
from twinbus.broker.entities.witness import Happening, Note
from twinbus.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.entities.batch import Ticket
    from twinbus.broker.entities.queue import Queue


def _indexes(mask: int) -> Iterator[int]:
    for start, count in spans_of(mask):
        yield from range(start, start + count)


def note(queue: Queue, what: Happening, chunk: Chunk, mask: int, reason: str = "") -> None:
    """Remember for the witness, if there is one, what the batch does to these messages."""
    if queue.witness is not None:
        queue.batch.notes.append(Note(what, chunk.first_seq, mask, reason))


def remove(queue: Queue, chunk: Chunk, mask: int) -> None:
    """The messages are gone for good once the batch is on disk."""
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
    queue.batch.touched[chunk.first_seq] = chunk


def give_back(queue: Queue, chunk: Chunk, mask: int) -> None:
    """Hand the messages out again, at their old place. Deferred ones stay put aside."""
    mask &= ~(chunk.gone | chunk.deferred | chunk.locked | chunk.moving)
    if mask:
        lane = queue.lane_of(chunk)
        if lane is None:
            chunk.set_free(mask)
        else:
            lane.returned.add(chunk, mask)
    queue.shelf.release(chunk)


def fail_attempt(queue: Queue, chunk: Chunk, mask: int) -> None:
    """Count the attempt; the last allowed one leads to the dead-letter queue."""
    note(queue, Happening.ABANDONED, chunk, mask)
    exhausted = 0
    for index in _indexes(mask):
        attempts = chunk.delivery_counts.get(index, 0) + 1
        if attempts >= queue.description.max_delivery_count and queue.dead_letters:
            exhausted |= 1 << index
        else:
            # Nothing is behind the dead letters: there the count stops, before it overflows.
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
    note(queue, Happening.DEFERRED, chunk, mask)
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


def dead_letter(
    queue: Queue, chunk: Chunk, mask: int, outcome: DeadLetter, ticket: Ticket | None
) -> None:
    """Move messages to the dead-letter queue, in one transaction with their removal."""

    def move() -> None:
        target = queue.dead_letters
        if target is None:
            raise RuntimeError("a dead-letter queue has no dead-letter queue")
        moved = [
            dead_lettered(chunk, index, outcome, queue.description.path) for index in _indexes(mask)
        ]
        note(queue, Happening.DEAD_LETTERED, chunk, mask, outcome.reason)
        remove(queue, chunk, mask)
        target.enqueue(moved, None)
        if ticket is not None:
            queue.batch.tickets.append(ticket)

    chunk.moving |= mask
    queue.with_blob(chunk, move)


def expire(queue: Queue, chunk: Chunk, now: Instant) -> bool:
    """Remove what has expired and nobody holds; whether anything was."""
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
        note(queue, Happening.EXPIRED, chunk, mask)
        remove(queue, chunk, mask)
    chunk.refresh_expiry()
    _save_expiry(queue, chunk)
    return True


def restore_expiry(queue: Queue, chunk: Chunk) -> None:
    """While a message was held, the disk may have had a later expiry for it: write it anew."""
    if chunk.expires_ms is not None:
        _save_expiry(queue, chunk)


def postpone_expiry(queue: Queue, chunk: Chunk) -> None:
    """What has expired is held: look again when the lock has run out."""
    _save_expiry(queue, chunk)


def _save_expiry(queue: Queue, chunk: Chunk) -> None:
    chunk.unsaved = True
    queue.batch.expiries[chunk.first_seq] = chunk
    queue.batch.swept = True
