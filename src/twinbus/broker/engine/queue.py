"""One queue: its messages, their locks, and what happens next.

Rule 1: everything that can change a queue is in this file and in the parts it is made of.
Rule 2: it reads no clock, no random numbers and no disk. Time is passed as an ``Instant``, random
        numbers as a ``Random``, and reads are requested (store_requests.py).
Rule 3: nothing is visible before it is on disk. Changes are collected in a batch; close_batch()
        turns it into store operations, committed() makes it visible.

    send --> batch --commit--> window --deliver()--> locked --settle--> batch --commit--> gone
                                  ^                    |
                                  +----- returned <----+  abandon, release, lock expired
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import TypeVar

from twinbus.broker.engine import delivery_stream, message_transitions
from twinbus.broker.engine.audit_hooks import AuditSink, MessageEvent, MessageEventRange
from twinbus.broker.engine.chunk import Chunk, ChunkCache, span_mask
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.delivery_stream import DeliveryStream
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.duplicate_detection import (
    ADMITTED_IN_STEP,
    DuplicateHistory,
    drop_duplicates,
    sweep_history,
    without_duplicates,
)
from twinbus.broker.engine.locks import LockRun, LockTable
from twinbus.broker.engine.outcomes import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Release,
    SettlementOutcome,
)
from twinbus.broker.engine.sessions import Sessions
from twinbus.broker.engine.store_requests import (
    EngineTimers,
    FindTimes,
    LoadBlob,
    LoadNext,
    Request,
    ScheduledSize,
    size_of,
)
from twinbus.broker.engine.stored_message import IncomingMessage, expiry_of
from twinbus.broker.engine.write_batch import (
    CHANGE_COST,
    CHUNK_COST,
    QUEUE_COST,
    TICKET_COST,
    Batch,
    CommitCallback,
    Frozen,
    IncomingBatch,
    audit_events,
    cost_of,
    freeze,
    list_tickets,
    undo,
    write_down,
)
from twinbus.broker.storage.interface import LoadedChunk, Op, QueueCounters, ScheduledRow
from twinbus.common.clock import Instant

# Competing receivers take turns; this many messages are one turn.
GRANT_COUNT_MAX = 256

# Chunks that become visible, and other items that are processed, in one step.
PIECE_COUNT = 256

# A stuck receiver could renew a lock for ever; a day of one-minute locks is enough (M2).
RENEWALS_MAX = 1440
# Locks that expire in one turn, about 2 ms; a run of them costs as much as EXPIRED_RUN_COST locks.
EXPIRED_PER_TURN = 512
EXPIRED_RUN_COST = 4
# Deliveries that are counted in one transaction because their locks have expired.
STATES_PER_COMMIT = 2_048


class Queue:
    """The state machine of one queue or of its dead-letter queue."""

    def __init__(
        self,
        description: QueueDescription,
        counters: QueueCounters,
        chance: Random,
        dead_letters: Queue | None,
    ) -> None:
        self.description = description
        self.queue_id = counters.queue_id
        self.dead_letters = dead_letters
        self._source: weakref.ref[Queue] | None = None
        if dead_letters is not None:
            # A weak reference: a deleted queue is freed at once, without the garbage collector.
            dead_letters._source = weakref.ref(self)
        self.next_seq = counters.next_seq
        self.message_count = counters.message_count
        self.byte_count = counters.byte_count
        self.state_bytes = 0
        self.deferred_count = counters.deferred_count
        self.scheduled_count = counters.scheduled_count
        self.chunk_cache = ChunkCache()
        self.stream = DeliveryStream(self.chunk_cache, counters.next_seq - 1)
        self.sessions: Sessions | None = None
        if description.requires_session and dead_letters is not None:
            self.sessions = Sessions(self)
        self.locks = LockTable(chance)
        self.batch = Batch()
        self.in_flight: Batch | None = None
        self.saving: list[Chunk] = []
        self.moves: deque[message_transitions.Move] = deque()
        """Messages that are being moved to the dead-letter queue, a few in each turn."""
        self.unread: dict[int, CommitCallback] = {}
        """Tickets of moves whose bytes are still to be read, by id()."""
        self.moved_count = self.moved_bytes = 0
        """What the open batch moves to the dead-letter queue."""
        self.has_more = False
        """The last deliver() ended before everything was delivered that could be."""
        self.is_deleted = False
        self.audit_sink: AuditSink | None = None
        self.history: DuplicateHistory | None = None
        """The ids it has seen, if it detects duplicates; set by the catalogue."""
        self.accessed_at_ms = 0
        """Wall time of the last attach or change since the process started."""
        self.visit_count = 0
        self._timers = EngineTimers(self.chunk_cache.grace)
        self._requests: list[Request] = []
        self._load_count = 0
        self._blobs_asked: set[int] = set()
        if self.message_count or self.scheduled_count:
            self._requests.append(FindTimes())

    @property
    def family(self) -> Queue:
        """The entity it belongs to: itself, or the source of a dead-letter queue."""
        source = None if self._source is None else self._source()
        return self if source is None else source

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letters is None

    @property
    def is_dirty(self) -> bool:
        """There is something to write, and nothing is being written."""
        return self.in_flight is None and not self.batch.is_empty()

    @property
    def is_reading(self) -> bool:
        """Messages that could be delivered are being read from disk."""
        return self._load_count > 0 or bool(self._blobs_asked)

    @property
    def active_count(self) -> int:
        """Messages that can be, or are being, received."""
        return self.message_count - self.deferred_count

    @property
    def locked_count(self) -> int:
        return len(self.locks)

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    # -- sending --------------------------------------------------------------------------

    def has_room_for(self, byte_count: int) -> bool:
        """Whether the quota has room for that many bytes."""
        return self.used_bytes + byte_count <= self.description.max_size_mb << 20

    @property
    def used_bytes(self) -> int:
        """What counts against the quota: messages, dead letters, session states, ids seen."""
        used = self.byte_count + self.state_bytes
        if self.dead_letters is not None:
            used += self.dead_letters.byte_count
        if self.history is not None:
            used += self.history.byte_count
        return used

    def grow_states(self, byte_count: int) -> None:
        """Count a change in the size of its session states."""
        self.state_bytes += byte_count
        self.grew(byte_count)

    def grew(self, byte_count: int) -> None:
        """Count growth that was not sent to it; a subscription reports it to its topic."""

    def enqueue(self, messages: list[IncomingMessage], ticket: CommitCallback | None) -> None:
        """Accept messages; ``ticket`` is called when they are on disk."""
        if self.history is not None:
            messages = without_duplicates(self, self.history, messages, ticket)
            if not messages:
                return
        self._take_in(messages, ticket)

    def _take_in(self, messages: list[IncomingMessage], ticket: CommitCallback | None) -> None:
        is_ours = ticket is None
        if not self.count_in(messages):
            self.arrive(IncomingBatch(messages, ticket, is_ours))
            return
        later = [message for message in messages if message.due_ms is not None]
        visible = [message for message in messages if message.due_ms is None]
        self.batch.scheduled.append(IncomingBatch(later, ticket, is_ours))
        if visible:
            self.arrive(IncomingBatch(visible, None, is_ours))

    def arrive(self, arrival: IncomingBatch) -> None:
        """Add messages that are not scheduled to the batch."""
        self.batch.arrivals.append(arrival)

    def count_in(self, messages: list[IncomingMessage]) -> bool:
        """Count the bytes of new messages; returns whether any of them is scheduled."""
        size = 0
        has_later = False
        for message in messages:
            size += len(message.record)
            if message.due_ms is not None:
                has_later = True
        self.byte_count += size
        return has_later

    def cancel_scheduled(
        self,
        messages: Iterable[ScheduledSize],
        ticket: CommitCallback,
        what: MessageEvent = MessageEvent.CANCELLED,
    ) -> None:
        """Remove scheduled messages that were read for this purpose."""
        for message in messages:
            self._unschedule(message, what)
        self.batch.tickets.append(ticket)

    def restore_scheduled(self, messages: list[ScheduledSize]) -> None:
        """Scheduled messages stay, because the store refused their removal."""
        seqs = {message.seq for message in messages}
        self._timers.restore(seqs)
        self.batch.unscheduled = [seq for seq in self.batch.unscheduled if seq not in seqs]
        self.scheduled_count += len(messages)
        self.byte_count += sum(message.byte_count for message in messages)
        self._requests.append(FindTimes())

    def is_still_scheduled(self, seq: int) -> bool:
        return self._timers.is_scheduled(seq)

    def _unschedule(self, message: ScheduledSize, what: MessageEvent) -> None:
        if self.audit_sink is not None:
            self.batch.notes.append(MessageEventRange(what, message.seq, 1))
        self._timers.unschedule(message.seq)
        self.batch.unscheduled.append(message.seq)
        self.batch.swept = True
        self.scheduled_count -= 1
        self.byte_count -= message.byte_count

    # -- writing --------------------------------------------------------------------------

    @property
    def wants_turn(self) -> bool:
        """Whether take_turn() has something to do."""
        return (
            self.can_move
            or (self.sessions is not None and self.sessions.has_returning)
            or (self.history is not None and self.history.can_admit_waiting)
        )

    @property
    def can_move(self) -> bool:
        """Whether messages wait to be moved to the dead-letter queue, and this batch has room."""
        return bool(self.moves) and self.moved_bytes < message_transitions.MOVED_BYTES_MAX

    def take_turn(self, now: Instant) -> None:
        """Do a part of the long tasks."""
        if self.can_move:
            message_transitions.advance_moves(self)
        if self.sessions is not None and self.sessions.has_returning:
            self.sessions.return_some()
        if self.history is not None:
            self._admit_waiting(self.history)

    def _admit_waiting(self, history: DuplicateHistory) -> None:
        """Check some of the sends that waited for a message that was being written."""
        left = ADMITTED_IN_STEP
        while left > 0 and history.can_admit_waiting:
            messages, ticket = history.waiting.popleft()
            left -= len(messages)
            fresh = drop_duplicates(self, history, messages, ticket)
            if fresh:
                self._take_in(fresh, ticket)

    def joined_queues(self, now: Instant) -> Iterable[Queue]:
        """The queues whose changes belong into one transaction with those of this one.

        A dead-lettered message is removed from one queue and added to another: in two transactions
        a crash between them would lose it (rule M8).
        """
        return () if self.dead_letters is None else (self.dead_letters,)

    @property
    def closing_cost(self) -> float:
        """What it costs to close the open batch, in about microseconds."""
        return cost_of(self)

    def close_batch(self, now: Instant) -> list[Op]:
        """Return the collected changes as store operations; they are now in flight."""
        ops: list[Op] = []
        for _cost in self.write_down(self.freeze(now), now, ops):
            pass
        return ops

    def freeze(self, now: Instant) -> Frozen:
        """The same for many changes: they are in flight, and write_down() makes the operations."""
        self._begin_closing(now)
        return freeze(self, now)

    def write_down(self, frozen: Frozen, now: Instant, ops: list[Op]) -> Iterator[float]:
        """Put the operations into ``ops``, which is complete after the last step.

        Each step yields its cost.
        """
        yield from write_down(self, frozen, now, ops)
        if self.audit_sink is not None:
            self.audit_sink.closed(self, audit_events(self, frozen.batch))

    def _begin_closing(self, now: Instant) -> None:
        self.accessed_at_ms = now.wall_ms
        self.moved_count = self.moved_bytes = 0

    def committed(self) -> list[tuple[CommitCallback, range]]:
        """The changes in flight are on disk: make them visible, and return their tickets."""
        batch = self._take_in_flight()
        self._give_back(batch.returns)
        changed = batch.chunks()
        self._mark_saved(changed)
        self._mark_saved(self.saving)
        self._show(self.saving)
        self._release(changed)
        tickets = list(list_tickets(self, batch))
        self._finish_commit(batch)
        return tickets

    def commit_in_steps(self, tickets: list[tuple[CommitCallback, range]]) -> Iterator[float]:
        """The same in steps: messages become visible in order; ``tickets`` is complete at the end.

        Each step yields its cost.
        """
        batch = self.in_flight
        if batch is None:
            raise RuntimeError("No batch of this queue is being written to the store")
        for returns in _pieces(batch.returns):
            self._give_back(returns)
            yield len(returns) * CHUNK_COST
        for chunks in _pieces(batch.chunks()):
            self._mark_saved(chunks)
            self._release(chunks)
            yield len(chunks) * CHANGE_COST
        for chunks in _pieces(self.saving):
            self._mark_saved(chunks)
            self._show(chunks)
            yield len(chunks) * CHUNK_COST
        for waiting in _pieces(list_tickets(self, batch)):
            tickets += waiting
            yield len(waiting) * TICKET_COST
        self._finish_commit(self._take_in_flight())
        yield QUEUE_COST

    def _give_back(self, returns: list[tuple[Chunk, int]]) -> None:
        # Messages are marked as returned while their chunk is unsaved and so stays in memory.
        for chunk, mask in returns:
            message_transitions.return_to_queue(self, chunk, mask)
            if self.sessions is not None:
                self.sessions.returned(chunk.session or "")

    def _show(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._timers.note_expiry(chunk.expires_ms)
            if self.sessions is None:
                self.stream.append_committed(chunk)
            else:
                self.sessions.arrived(chunk)
        self._release(chunks)

    def _release(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.chunk_cache.release(chunk)

    def _finish_commit(self, batch: Batch) -> None:
        for arrival in batch.scheduled:
            self._timers.note_due(min(message.due_ms or 0 for message in arrival.messages))
        self._timers.commit_finished(batch.unscheduled)
        if batch.swept:
            self._requests.append(FindTimes())
        self.saving = []
        if self.sessions is not None:
            self.sessions.states_committed(batch.session_states)
        if self.history is not None:
            self.history.commit_finished()
            self._admit_waiting(self.history)

    def _take_in_flight(self) -> Batch:
        batch = self.in_flight
        if batch is None:
            raise RuntimeError("No batch of this queue is being written to the store")
        self.in_flight = None
        return batch

    def _mark_saved(self, landed: list[Chunk]) -> None:
        changes = self.batch.changes
        for chunk in landed:
            # It may have changed again while the batch was being written.
            chunk.unsaved = changes(chunk)

    def failed(self) -> list[CommitCallback]:
        """The store refused the changes in flight; returns the tickets to refuse."""
        refused = undo(self, self._take_in_flight())
        if self.history is not None:
            self._admit_waiting(self.history)
        return refused

    def discard(self) -> list[CommitCallback]:
        """The queue is deleted; returns the tickets of changes that will never be written."""
        self.is_deleted = True
        batch, self.batch = self.batch, Batch()
        arrivals = [*batch.arrivals, *batch.scheduled]
        waiting = [arrival.ticket for arrival in arrivals if arrival.ticket is not None]
        if self.history is not None:
            waiting += [each for _messages, each in self.history.take_waiting() if each is not None]
        moving = [move.ticket for move in self.moves if move.ticket is not None]
        moving += self.unread.values()
        self.moves.clear()
        self.unread.clear()
        return [*batch.tickets, *waiting, *moving]

    # -- receiving ------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        self._stream_for(consumer).turns.add(consumer)

    def detach(self, consumer: Consumer) -> None:
        """The receiver is gone. Its locks stay until they expire (rule M2); its session ends."""
        if self.sessions is not None and consumer.session is not None:
            self.sessions.release(consumer.session, is_failure=False)
            return
        self.stream.turns.discard(consumer)
        if not self.stream.turns.has_consumers:
            self.stream.rest()

    def credit_available(self, consumer: Consumer) -> None:
        """The receiver may accept messages now."""
        stream = self._stream_for(consumer)
        stream.turns.credit_available(consumer)
        if self.sessions is not None:
            self.sessions.mark_ready(stream)

    def _stream_for(self, consumer: Consumer) -> DeliveryStream:
        return self.stream if consumer.session is None else consumer.session.stream

    def stream_of(self, chunk: Chunk) -> DeliveryStream | None:
        """The stream that delivers the messages of a chunk; None if their session is not locked."""
        return (
            self.stream if self.sessions is None else self.sessions.stream_of(chunk.session or "")
        )

    def deliver(self, now: Instant) -> list[DeliveryBatch]:
        """Deliver what can be delivered, or a part of it: then has_more is true."""
        self.has_more = False
        if not self.description.status.can_receive:
            return []
        return delivery_stream.deliver(self, now)

    def grant(
        self, consumer: Consumer, chunk: Chunk, start: int, free: int, now: Instant
    ) -> DeliveryBatch:
        """Deliver as many of the free messages from ``start`` as the receiver accepts."""
        blob = chunk.blob
        if blob is None:
            raise RuntimeError("Messages must be in memory to be delivered")
        count = min(free, consumer.room(), GRANT_COUNT_MAX)
        chunk.mark_delivered(start, count)
        consumer.credit -= count
        run = None
        if self.audit_sink is not None:
            self.audit_sink.delivered(self, chunk, blob, start, count)
        if consumer.deletes_on_receipt:
            message_transitions.note(self, MessageEvent.COMPLETED, chunk, span_mask(start, count))
            message_transitions.remove(self, chunk, span_mask(start, count))
        else:
            consumer.took(count)
            run = self._lock(chunk, start, count, now, consumer)
        if not chunk.returned:
            chunk.drop_blob()
        return DeliveryBatch(consumer, chunk, blob, start, count, run)

    def _lock(
        self, chunk: Chunk, start: int, count: int, now: Instant, consumer: Consumer | None
    ) -> LockRun:
        if consumer is not None and consumer.session is not None:
            until_ms = consumer.session.locked_until_ms
            return self.locks.grant(chunk, start, count, math.inf, until_ms, consumer)
        duration_ms = self.description.lock_duration_ms
        deadline_s = now.monotonic_s + duration_ms / 1000
        return self.locks.grant(
            chunk, start, count, deadline_s, now.wall_ms + duration_ms, consumer
        )

    # -- settling -------------------------------------------------------------------------

    def settle(
        self,
        run: LockRun,
        mask: int,
        outcome: SettlementOutcome,
        now: Instant,
        ticket: CommitCallback | None,
    ) -> int:
        """Apply ``outcome`` to the messages of ``run`` in ``mask`` that are still locked.

        Returns the messages it applied to; the others have lost their lock. The ticket is called
        when the change is on disk; a release changes nothing on disk and calls no ticket.
        """
        mask &= run.unsettled & ~run.overdue(now.monotonic_s)
        if not mask:
            return 0
        self.locks.release(run, mask)
        if run.consumer is not None:
            self.credit_available(run.consumer)
        self._apply(run.chunk, mask, outcome, ticket)
        return mask

    def _apply(
        self, chunk: Chunk, mask: int, outcome: SettlementOutcome, ticket: CommitCallback | None
    ) -> None:
        match outcome:
            case Release():
                message_transitions.restore_expiry(self, chunk)
                message_transitions.return_to_queue(self, chunk, mask)
                return
            case DeadLetter():
                message_transitions.dead_letter(self, chunk, mask, outcome, ticket)
                return
            case Complete(target):
                what = MessageEvent.FORWARDED if target else MessageEvent.COMPLETED
                message_transitions.note(self, what, chunk, mask, target)
                message_transitions.remove(self, chunk, mask)
            case Abandon():
                message_transitions.count_failed_delivery(self, chunk, mask)
            case Defer():
                message_transitions.defer(self, chunk, mask)
        if ticket is not None:
            self.batch.tickets.append(ticket)

    # -- deferred messages ----------------------------------------------------------------

    def reserve_deferred(self, chunk: Chunk, index: int) -> None:
        """Reserve a message that is_deferred() for the request that will receive it."""
        chunk.moving |= 1 << index

    def take_deferred(
        self, chunk: Chunk, index: int, consumer: Consumer | None, now: Instant
    ) -> DeliveryBatch | None:
        """Deliver one reserved message; without a consumer it stays deferred."""
        chunk.moving &= ~(1 << index)
        return None if consumer is None else self.grant(consumer, chunk, index, 1, now)

    def is_deferred(self, chunk: Chunk, index: int, now: Instant) -> bool:
        """Whether a message is deferred and can be received."""
        is_fresh = chunk.expiries.get(index, now.wall_ms + 1) > now.wall_ms
        return is_fresh and bool(chunk.mark_deferred(1 << index))

    # -- locks ----------------------------------------------------------------------------

    def renew(self, token: bytes, now: Instant) -> int | None:
        """Renew one lock; returns its new end on the wall clock, or None if it is lost."""
        found = self.locks.find(token, now.monotonic_s)
        if found is None or found[0].renewals.get(found[1], 0) >= RENEWALS_MAX:
            return None
        duration_ms = self.description.lock_duration_ms
        self.locks.renew(*found, now.monotonic_s + duration_ms / 1000)
        return now.wall_ms + duration_ms

    def expire_locks(self, now: Instant) -> None:
        """Expired locks count as failed deliveries; of many, the rest follows with a timer.

        A check of a single lock does not depend on this: the lock itself has its deadline.
        """
        if self.sessions is not None:
            self.sessions.expire(now)
        if self._has_states_enough:
            return
        left = EXPIRED_PER_TURN
        for run, mask in self.locks.expired(now.monotonic_s):
            if run.consumer is not None:
                self.credit_available(run.consumer)
            message_transitions.count_failed_delivery(self, run.chunk, mask)
            left -= mask.bit_count() + EXPIRED_RUN_COST
            if left <= 0 or self._has_states_enough:
                break

    @property
    def _has_states_enough(self) -> bool:
        """One transaction counts no more deliveries, because other queues wait for it too."""
        return len(self.batch.states) >= STATES_PER_COMMIT

    # -- time -----------------------------------------------------------------------------

    def next_timer_s(self, now: Instant) -> float | None:
        """When to call handle_timer(), on the monotonic clock, or None."""
        # Expired locks that must wait for a commit are checked again when it has finished.
        locks_s = None if self._has_states_enough else self.locks.next_deadline_s()
        times = [locks_s, self._timers.next_timer_s(now)]
        if self.history is not None:
            at_ms = self.history.next_sweep_ms(self.description.duplicate_detection_window_ms)
            times.append(None if at_ms is None else now.later_s(at_ms))
        if self.sessions is not None:
            times.append(self.sessions.next_timer_s())
        return min((at for at in times if at is not None), default=None)

    def handle_timer(self, now: Instant) -> None:
        self.expire_locks(now)
        self._requests += self._timers.due_requests(now)
        if self.history is not None:
            sweep_history(self, self.history, now)

    # -- answers to requests --------------------------------------------------------------

    def chunks_loaded(self, request: LoadNext, loaded: Iterable[LoadedChunk]) -> None:
        stream = request.stream
        stream.is_loading = False
        self._load_count -= 1
        if stream.loaded_through == request.after_seq and stream.turns.has_consumers:
            stream.append_loaded(loaded, request.through_seq)
            if self.sessions is not None:
                self.sessions.mark_ready(stream)

    def blob_loaded(self, request: LoadBlob, loaded: LoadedChunk | None) -> None:
        chunk = request.chunk
        self._blobs_asked.discard(chunk.first_seq)
        waiters, chunk.waiters = chunk.waiters, []
        if loaded is None:
            return
        chunk.blob = loaded.row.blob
        for waiter in waiters:
            waiter()
        if not chunk.returned:
            chunk.drop_blob()
        self.chunk_cache.release(chunk)
        if self.sessions is not None and (stream := self.stream_of(chunk)) is not None:
            self.sessions.mark_ready(stream)

    def expired_loaded(self, loaded: Iterable[LoadedChunk], now: Instant) -> None:
        found = False
        for row in loaded:
            found = True
            chunk = self.chunk_cache.adopt(row)
            if not message_transitions.expire(self, chunk, now):
                message_transitions.postpone_expiry(self, chunk)
            if not chunk.returned:
                chunk.drop_blob()
        if not found:
            self._requests.append(FindTimes())

    def due_loaded(self, rows: Iterable[ScheduledRow]) -> None:
        """Scheduled messages become visible: appended as if they had been sent now."""
        found = False
        for row in rows:
            found = True
            if self._timers.is_scheduled(row.seq):
                self._unschedule(size_of(row), MessageEvent.DUE)
                # Its id was checked when it was scheduled. It cannot wait: it leaves the schedule
                # with this batch, and so must be in it.
                self._take_in([IncomingMessage(row.blob, expiry_of(row.blob, 0))], None)
        if not found:
            self._requests.append(FindTimes())

    def times_found(self, next_expiry_ms: int | None, next_due_ms: int | None) -> None:
        self._timers.note_expiry(next_expiry_ms)
        self._timers.note_due(next_due_ms)

    def ask_next(self, stream: DeliveryStream) -> None:
        """Request the next chunks of a stream, unless they are being read."""
        if not stream.is_loading and stream.needs_more():
            stream.is_loading = True
            self._load_count += 1
            self._requests.append(LoadNext(stream, stream.loaded_through, stream.committed_through))

    def with_blob(self, chunk: Chunk, action: Callable[[], None]) -> None:
        """Run an action that needs the chunk's bytes, now or when they have been read."""
        if chunk.blob is not None:
            action()
            return
        chunk.waiters.append(action)
        self.ask_blob(chunk)

    def ask_blob(self, chunk: Chunk) -> None:
        """Request the bytes of a chunk, unless they are being read."""
        if chunk.first_seq not in self._blobs_asked:
            self._blobs_asked.add(chunk.first_seq)
            self._requests.append(LoadBlob(chunk))


_Item = TypeVar("_Item")


def _pieces(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    rest = iter(items)
    while piece := list(islice(rest, PIECE_COUNT)):
        yield piece
