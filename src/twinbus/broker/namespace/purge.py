"""Purge of a queue in short slices, and reset of a namespace.

    read a slice --> mark it as removed --> commit --> progress --> the next slice

A reset deletes everything in a namespace, or only the messages.

Rule 1: a purge removes what was in the queue when it began. Later messages stay, so that a purge
        ends however busy the senders are.
Rule 2: a message that a receiver has locked stays, and is counted.
Rule 3: a slice is one transaction among others; sends and receives continue between two of them.
Rule 4: if the disk is full the purge ends, and the messages of the refused slice are unchanged
        (rule M15). Those of the previous slices are removed, as the progress reported.
Rule 5: a reset is one transaction. After a crash it has happened completely or not at all; on a
        full disk it is refused, and nothing has changed (rule M15).
Rule 6: an entity that a reset keeps is created again, with another id: its messages, locks and
        history belong to the deleted one, its links are detached, and housekeeping removes its
        rows.
Rule 7: an entity that a reset keeps has the same description, also if the target of its forward is
        deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.amqp.errors import AmqpError
from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.audit_hooks import MessageEvent, MessageEventRange
from twinbus.broker.engine.chunk import span_mask
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import size_of
from twinbus.broker.namespace.administrative_changes import FutureCommit
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.storage.interface import LoadedChunk, ScheduledRow, Store
from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace

# About as much as one read for a receiver; a purge of a gigabyte is a thousand short turns.
SLICE_BYTES = 1 << 20
SLICE_CHUNKS = 256
SLICE_SCHEDULED = 1_000

Progress = Callable[[int], None]
"""Called with the number of messages that were removed so far."""


class Purged(NamedTuple):
    """The result of a purge."""

    removed_count: int
    locked_count: int
    """Messages that receivers had locked; they stay in the queue."""


class PurgeInterrupted(TwinbusError):
    """The queue was deleted during the purge."""


def would_purge(queue: Queue, *, deferred: bool = True, scheduled: bool = True) -> Purged:
    """The result that a purge would have now."""
    held_count = queue.locked_count
    count = queue.message_count - held_count
    if not deferred:
        count -= queue.deferred_count
    if scheduled:
        count += queue.scheduled_count
    return Purged(max(0, count), held_count)


async def purge_machine(
    namespace: Namespace,
    queue: Queue,
    *,
    deferred: bool = True,
    scheduled: bool = True,
    progress: Progress | None = None,
) -> Purged:
    """Remove the messages of one queue or dead-letter queue."""
    purge = _Purge(namespace, queue, progress)
    await purge.remove_messages(deferred)
    if scheduled:
        await purge.remove_scheduled()
    return Purged(purge.removed_count, purge.locked_count)


class _Purge:
    """One purge in progress."""

    def __init__(self, namespace: Namespace, queue: Queue, progress: Progress | None) -> None:
        self._namespace = namespace
        self._queue = queue
        self._progress = progress
        self._last_seq = queue.next_seq - 1
        self._slice: list[Callable[[], None]] = []
        """Functions that undo the slice in progress."""
        self.removed_count = 0
        self.locked_count = 0

    async def remove_messages(self, deferred: bool) -> None:
        after_seq = 0
        while after_seq < self._last_seq:
            rows = await self._read(
                partial(_next_chunks, self._queue.queue_id, after_seq),
                partial(self._remove_chunks, deferred),
            )
            if not rows:
                return
            after_seq = rows[-1].row.last_seq
            await self._stored()

    def _remove_chunks(self, deferred: bool, rows: list[LoadedChunk]) -> None:
        for row in rows:
            if row.row.first_seq <= self._last_seq:
                self._remove_chunk(row, deferred)

    def _remove_chunk(self, row: LoadedChunk, deferred: bool) -> None:
        queue = self._queue
        chunk = queue.chunk_cache.adopt(row)
        held = (chunk.locked | chunk.moving) & ~chunk.gone
        mask = span_mask(0, chunk.count) & ~(chunk.gone | held)
        if not deferred:
            mask &= ~chunk.deferred
        self.locked_count += held.bit_count()
        self.removed_count += mask.bit_count()
        aside, expiries = chunk.deferred & mask, dict(chunk.expiries)
        message_transitions.note(queue, MessageEvent.PURGED, chunk, mask)
        message_transitions.remove(queue, chunk, mask)
        queue.chunk_cache.put_back(chunk)

        def undo() -> None:
            chunk.expiries = {**expiries, **chunk.expiries}
            message_transitions.restore(queue, chunk, mask, aside)
            chunk.refresh_expiry()

        if mask:
            self._slice.append(undo)

    async def remove_scheduled(self) -> None:
        after_seq = 0
        while after_seq < self._last_seq:
            rows = await self._read(
                partial(_next_scheduled, self._queue.queue_id, after_seq), self._remove_scheduled
            )
            if not rows:
                return
            after_seq = rows[-1].seq
            await self._stored()

    def _remove_scheduled(self, rows: list[ScheduledRow]) -> None:
        queue = self._queue
        known = [row for row in rows if queue.is_still_scheduled(row.seq)]
        known = [row for row in known if row.seq <= self._last_seq]
        self.removed_count += len(known)
        sizes = [size_of(row) for row in known]
        queue.cancel_scheduled(sizes, _IgnoredCommit(), MessageEvent.PURGED)
        self._slice.append(lambda: queue.restore_scheduled(sizes))

    async def _read(self, job: Callable[[Store], Any], act: Callable[[Any], None]) -> Any:
        """Read, and handle the rows in the same turn of the loop."""
        self._check_is_there()
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def found(rows: Any) -> None:
            act(rows)
            if not done.done():
                done.set_result(rows)

        def lost() -> None:
            if not done.done():
                done.set_exception(self._namespace.failure or self._interrupted())

        self._namespace.read(self._queue, job, found, lost)
        return await done

    def _interrupted(self) -> PurgeInterrupted:
        return PurgeInterrupted(
            f"The queue {self._queue.description.path!r} was deleted during the purge",
            hint="Purge the new queue with this name, if there is one",
        )

    def _check_is_there(self) -> None:
        """Raise when the queue was deleted or the disk failed: a commit would never be reported."""
        if self._namespace.failure is not None:
            raise self._namespace.failure
        if self._queue.is_deleted:
            raise self._interrupted()

    async def _stored(self) -> None:
        """Wait until the slice is removed on disk."""
        self._check_is_there()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slice_, self._slice = self._slice, []
        ticket = _SliceCommit(done, partial(self._undo, slice_))
        self._queue.batch.tickets.append(ticket)
        self._namespace.touch(self._queue)
        self._namespace.on_failure.add(ticket.failed)
        try:
            await done
        except AmqpError as error:
            # The error of operations that wait for a queue that is deleted.
            raise self._interrupted() from error
        finally:
            self._namespace.on_failure.discard(ticket.failed)
        if self._progress is not None:
            self._progress(self.removed_count)

    def _undo(self, slice_: list[Callable[[], None]]) -> None:
        """The disk refused a slice: its messages are unchanged."""
        queue = self._queue
        if queue.is_deleted or self._namespace.failure is not None:
            return
        notes = queue.batch.notes
        notes[:] = [
            each
            for each in notes
            if not (isinstance(each, MessageEventRange) and each.what is MessageEvent.PURGED)
        ]
        for undo in slice_:
            undo()
        self._namespace.touch(queue)


def _next_chunks(queue_id: int, after_seq: int, store: Store) -> list[LoadedChunk]:
    return store.load_chunks(queue_id, after_seq, SLICE_BYTES, SLICE_CHUNKS)


def _next_scheduled(queue_id: int, after_seq: int, store: Store) -> list[ScheduledRow]:
    return store.load_scheduled(queue_id, after_seq, SLICE_SCHEDULED, SLICE_BYTES)


class _SliceCommit(FutureCommit):
    """A purge that waits for a slice, which is undone at once if the disk refuses it."""

    def __init__(self, done: asyncio.Future[None], undo: Callable[[], None]) -> None:
        super().__init__(done)
        self._undo = undo

    def failed(self, error: Exception) -> None:
        self._undo()
        super().failed(error)


class _IgnoredCommit:
    """A callback without effect: the purge waits for its slice in another way."""

    def stored(self, seqs: range) -> None: ...

    def failed(self, error: Exception) -> None: ...


async def reset_namespace(namespace: Namespace, *, keep_entities: bool = False) -> int:
    """Remove all messages and, unless they are kept, all entities; returns their number."""
    count = 0

    def plan(draft: Draft) -> None:
        nonlocal count
        count = draft.reset(keep_entities=keep_entities, at_ms=namespace.now().wall_ms)

    await namespace.changed(plan)
    return count
