"""The changes for the next commit: the open batch, its store operations and shared bodies.

One transaction of the store contains the batches of all changed queues. While it is being written,
the next batch collects changes. If the store refuses it (disk full), clients get an error and their
new messages are dropped; settlements, expiries and the broker's own moves stay and are tried again
(``undo``).

A batch is closed at one moment (``freeze``), with its sequence numbers and counters; later changes
belong to the next one. Then it is turned into operations in steps (``write_down``). Sequence
numbers are assigned when the batch is closed, because only one batch of a queue is written at
a time: if the store refuses it, the numbers are taken back and there is no gap.

Copies of a topic's message for several subscriptions share one stored body:

    topic --place()--> draft --packed()--> one blob that all chunks select from

Rule 1: a draft belongs to one transaction; nothing is added after it was packed.
Rule 2: a draft is never larger than a chunk, so that the selection of a subscription fits into one.
Rule 3: a chunk whose messages are not in one shared body in order has its own bytes, which is
        always correct and only larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from twinbus.broker.engine.audit_hooks import BatchAudit, MessageEventRange, UnstoredMessageEvent
from twinbus.broker.engine.chunk import Chunk, spans_of
from twinbus.broker.engine.stored_message import IncomingMessage, pack_chunk, session_of
from twinbus.broker.storage.interface import (
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
    SeenRow,
    SetChunkExpiry,
    SharedBody,
    SharedBodySelection,
    Tombstone,
)
from twinbus.common.clock import Instant

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue

# A chunk is what is read, locked and deleted as a unit: large enough that a row's cost
# disappears, small enough that one redelivery does not read megabytes.
CHUNK_COUNT_MAX = 1024
CHUNK_BYTES_MAX = 256 * 1024


class CommitCallback(Protocol):
    """Called when a change is on disk, or was refused."""

    def stored(self, seqs: range) -> None:
        """The change is on disk; ``seqs`` are its sequence numbers, if any."""

    def failed(self, error: Exception) -> None:
        """The change was not stored."""


class IncomingBatch(NamedTuple):
    """Messages that were sent together."""

    messages: list[IncomingMessage]
    ticket: CommitCallback | None
    is_ours: bool
    """The broker itself moves them: if the store refuses them, it tries again."""


class NotedState(NamedTuple):
    """A session state that is to be written."""

    state: bytes | None
    """None deletes it."""
    size: int
    """The part of the queue's quota that it uses."""
    size_before: int
    """The same for the state on disk before this batch."""


@dataclass(slots=True)
class Batch:
    """The changes of one queue that belong into one transaction."""

    arrivals: list[IncomingBatch] = field(default_factory=list)
    scheduled: list[IncomingBatch] = field(default_factory=list)
    unscheduled: list[int] = field(default_factory=list)
    touched: dict[int, Chunk] = field(default_factory=dict)
    """Chunks with messages that are newly gone, by their first number."""
    gone: dict[int, int] = field(default_factory=dict)
    """Which messages of those chunks."""
    states: dict[int, tuple[Chunk, int, bool]] = field(default_factory=dict)
    """Sequence number to (chunk, delivery count, deferred)."""
    state_chunks: dict[int, Chunk] = field(default_factory=dict)
    """The chunks of those messages."""
    returns: list[tuple[Chunk, int]] = field(default_factory=list)
    """Messages to deliver again when their delivery count is on disk."""
    expiries: dict[int, Chunk] = field(default_factory=dict)
    """Chunks whose earliest expiry changed."""
    session_states: dict[str, NotedState] = field(default_factory=dict)
    """New session states."""
    tickets: list[CommitCallback] = field(default_factory=list)
    notes: list[MessageEventRange | UnstoredMessageEvent] = field(default_factory=list)
    """Events for the audit sink."""
    seen_through: int = 0
    """Message ids are removed up to this page (duplicate_detection.py)."""
    swept: bool = False
    """It handles expired or due messages, so the next such time must be read after it."""

    def is_empty(self) -> bool:
        return not (
            self.arrivals
            or self.scheduled
            or self.unscheduled
            or self.touched
            or self.states
            or self.expiries
            or self.tickets
            or self.seen_through
            or self.notes
        )

    def chunks(self) -> list[Chunk]:
        """Every chunk that these changes touch."""
        return list({**self.touched, **self.expiries, **self.state_chunks}.values())

    def changes(self, chunk: Chunk) -> bool:
        """Whether they touch this chunk."""
        first_seq = chunk.first_seq
        return (
            first_seq in self.touched
            or first_seq in self.expiries
            or first_seq in self.state_chunks
        )


class SharedBodyDraft:
    """A shared body that is being filled."""

    __slots__ = ("_body", "_records", "_size")

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._size = 0
        self._body: SharedBody | None = None

    def has_room_for(self, record: bytes) -> bool:
        if self._body is not None or len(self._records) == CHUNK_COUNT_MAX:
            return False
        return not self._records or self._size + len(record) <= CHUNK_BYTES_MAX

    def place(self, record: bytes) -> int:
        """Add a message; returns its place in the body."""
        self._records.append(record)
        self._size += len(record)
        return len(self._records) - 1

    def body(self) -> SharedBody:
        """The complete body; from now on nothing can be added."""
        if self._body is None:
            self._body = SharedBody(len(self._records), pack_chunk(self._records))
        return self._body


@dataclass(slots=True)
class SharedMessage(IncomingMessage):
    """A copy in a shared body."""

    draft: SharedBodyDraft | None = None
    place: int = 0


class SharedBodyWriter:
    """Places the copies of one transaction in shared bodies."""

    def __init__(self) -> None:
        self._draft = SharedBodyDraft()

    def place(self, message: IncomingMessage) -> SharedMessage:
        if not self._draft.has_room_for(message.record):
            self._draft = SharedBodyDraft()
        draft = self._draft
        place = draft.place(message.record)
        return SharedMessage(
            message.record,
            message.expires_ms,
            None,
            message.facts,
            message.trail,
            draft=draft,
            place=place,
        )


def group_by_shared_body(messages: list[IncomingMessage]) -> Iterator[list[IncomingMessage]]:
    """The messages, in order, in runs of one shared body; without shared bodies, all together."""
    if type(messages[0]) is not SharedMessage:
        yield messages
        return
    for _draft, run in groupby(messages, key=_draft_of):
        yield list(run)


def _draft_of(message: IncomingMessage) -> SharedBodyDraft | None:
    return message.draft if type(message) is SharedMessage else None


def packed(messages: list[IncomingMessage]) -> tuple[bytes, SharedBodySelection | None]:
    """The blob of a chunk, and its selection of a shared body, if there is one."""
    share = _select_shared_body(messages) if type(messages[0]) is SharedMessage else None
    if share is None or len(messages) < share.sheet.count:
        return pack_chunk([message.record for message in messages]), share
    return share.sheet.blob, share


def _select_shared_body(messages: list[IncomingMessage]) -> SharedBodySelection | None:
    draft: SharedBodyDraft | None = None
    selection = 0
    for message in messages:
        if type(message) is not SharedMessage or message.draft is None:
            return None
        draft = draft or message.draft
        if message.draft is not draft or selection >> message.place:
            return None
        selection |= 1 << message.place
    return None if draft is None else SharedBodySelection(draft.body(), selection)


# Costs in about microseconds: a queue, a message, a chunk with its row, a change of a stored
# message, a callback.
QUEUE_COST = 5.0
MESSAGE_COST = 0.3
CHUNK_COST = 5.0
CHANGE_COST = 1.5
TICKET_COST = 1.5
# Changes of one kind that become operations in one step.
CHANGES_IN_STEP = 256


def cost_of(queue: Queue) -> float:
    """The maximum cost of closing the open batch; making it visible costs as much again."""
    batch = queue.batch
    arrivals = batch.arrivals
    message_count = 0
    for arrival in arrivals:
        message_count += len(arrival.messages)
    # Each message may belong to another session, and then it has a chunk of its own.
    each = MESSAGE_COST if queue.sessions is None else CHUNK_COST
    changes = len(batch.touched) + len(batch.states) + len(batch.returns) + len(batch.expiries)
    for arrival in batch.scheduled:
        changes += len(arrival.messages)
    return (
        QUEUE_COST
        + message_count * each
        + (changes + len(batch.unscheduled)) * CHANGE_COST
        + (len(batch.tickets) + len(arrivals)) * TICKET_COST
    )


class Frozen(NamedTuple):
    """A closed batch with its sequence numbers and counters."""

    batch: Batch
    first_seq: int
    """The first sequence number of its messages."""
    scheduled_seq: int
    """The first sequence number of its scheduled messages."""
    counters: QueueCounters
    seen: SeenRow | None


def freeze(queue: Queue, now: Instant) -> Frozen:
    """Close the queue's open batch and open a new one."""
    batch = queue.in_flight = queue.batch
    queue.batch = Batch()
    first_seq = queue.next_seq
    count = later = 0
    for arrival in batch.arrivals:
        count += len(arrival.messages)
    for arrival in batch.scheduled:
        later += len(arrival.messages)
    queue.message_count += count
    queue.scheduled_count += later
    queue.next_seq += count + later
    seen = None if queue.history is None else queue.history.close(queue.queue_id, now.wall_ms)
    return Frozen(batch, first_seq, first_seq + count, counters_of(queue), seen)


def write_down(queue: Queue, frozen: Frozen, now: Instant, ops: list[Op]) -> Iterator[float]:
    """Turn a closed batch into operations, in steps; each step yields its cost.

    ``ops`` is complete after the last.
    """
    batch, seq = frozen.batch, frozen.first_seq
    for session, messages in _portions(queue, batch.arrivals):
        _put_chunk(queue, session, messages, seq, now, ops)
        seq += len(messages)
        yield CHUNK_COST + MESSAGE_COST * len(messages)
    yield from _put_scheduled(queue, frozen, ops)
    if batch.touched:
        yield from _put_removals(queue, batch, ops)
    if batch.states:
        yield from _put_states(queue, batch, ops)
    if batch.expiries:
        yield from _put_expiries(queue, batch, now, ops)
    _put_seen(queue, frozen, ops)
    for session, noted in batch.session_states.items():
        ops.append(PutSessionState(queue.queue_id, session, noted.state, now.wall_ms))
    ops.append(PutCounters(frozen.counters))


def counters_of(queue: Queue) -> QueueCounters:
    return QueueCounters(
        queue.queue_id,
        queue.next_seq,
        queue.message_count,
        queue.byte_count,
        queue.deferred_count,
        queue.scheduled_count,
    )


def _put_chunk(
    queue: Queue,
    session: str | None,
    messages: list[IncomingMessage],
    first_seq: int,
    now: Instant,
    ops: list[Op],
) -> None:
    blob, share = packed(messages)
    expiries = [m.expires_ms for m in messages if m.expires_ms is not None]
    expires_ms = min(expiries) if expiries else None
    count = len(messages)
    row = ChunkRow(queue.queue_id, first_seq, count, now.wall_ms, expires_ms, blob, session)
    ops.append(PutChunk(row, share))
    chunk = Chunk(first_seq, count, now.wall_ms, expires_ms, blob, session)
    queue.chunk_cache.expect(chunk)
    queue.saving.append(chunk)


def _portions(
    queue: Queue, arrivals: list[IncomingBatch]
) -> Iterator[tuple[str | None, list[IncomingMessage]]]:
    """All new messages, in order; a portion has one session if the queue has sessions."""
    arrived = chain.from_iterable(arrival.messages for arrival in arrivals)
    if queue.sessions is None:
        for portion in _chunk_sized(arrived):
            yield from ((None, messages) for messages in group_by_shared_body(portion))
        return
    # The numbers follow the order of arrival, so a chunk ends where another session begins.
    for session, together in groupby(arrived, key=session_of):
        for portion in _chunk_sized(together):
            yield from ((session or "", messages) for messages in group_by_shared_body(portion))


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


def _put_scheduled(queue: Queue, frozen: Frozen, ops: list[Op]) -> Iterator[float]:
    batch, seq = frozen.batch, frozen.scheduled_seq
    for number, gone in enumerate(batch.unscheduled, 1):
        ops.append(DeleteScheduled(queue.queue_id, gone))
        if number % CHANGES_IN_STEP == 0:
            yield CHANGES_IN_STEP * CHANGE_COST
    for arrival in batch.scheduled:
        for message in arrival.messages:
            ops.append(PutScheduled(queue.queue_id, seq, message.due_ms or 0, message.record))
            seq += 1
            if seq % CHANGES_IN_STEP == 0:
                yield CHANGES_IN_STEP * CHANGE_COST


def _put_removals(queue: Queue, batch: Batch, ops: list[Op]) -> Iterator[float]:
    """Delete empty chunks, neighbours together; mark removed messages in the others."""
    first = last = 0
    for number, first_seq in enumerate(sorted(batch.touched), 1):
        chunk = batch.touched[first_seq]
        # What was removed after the batch was closed is not part of it.
        is_empty = chunk.gone & ~queue.batch.gone.get(first_seq, 0) == chunk.whole_mask
        if not is_empty:
            for start, count in spans_of(batch.gone[first_seq]):
                seq = first_seq + start
                ops.append(Tombstone(queue.queue_id, seq, seq + count - 1))
        elif last and first_seq == last + 1:
            last = chunk.last_seq
        else:
            if last:
                ops.append(DeleteChunks(queue.queue_id, first, last))
            first, last = first_seq, chunk.last_seq
        if number % CHANGES_IN_STEP == 0:
            yield CHANGES_IN_STEP * CHANGE_COST
    if last:
        ops.append(DeleteChunks(queue.queue_id, first, last))


def _put_states(queue: Queue, batch: Batch, ops: list[Op]) -> Iterator[float]:
    for number, (seq, (chunk, delivery_count, deferred)) in enumerate(batch.states.items(), 1):
        gone = chunk.gone & ~queue.batch.gone.get(chunk.first_seq, 0)
        if not gone >> (seq - chunk.first_seq) & 1:
            ops.append(PutState(queue.queue_id, seq, delivery_count, deferred))
        if number % CHANGES_IN_STEP == 0:
            yield CHANGES_IN_STEP * CHANGE_COST


def _put_expiries(queue: Queue, batch: Batch, now: Instant, ops: list[Op]) -> Iterator[float]:
    """When to check for expired messages: locked ones are checked when their lock has expired."""
    later_ms = now.wall_ms + queue.description.lock_duration_ms
    cost = 0.0
    for chunk in batch.expiries.values():
        if not chunk.is_empty:
            expires_ms = chunk.sweep_ms(now.wall_ms, later_ms)
            ops.append(SetChunkExpiry(queue.queue_id, chunk.first_seq, expires_ms))
        cost += CHANGE_COST + MESSAGE_COST * len(chunk.expiries)
        if cost > CHANGES_IN_STEP:
            yield cost
            cost = 0.0


def _put_seen(queue: Queue, frozen: Frozen, ops: list[Op]) -> None:
    if frozen.seen is not None:
        ops.append(PutSeen(frozen.seen))
    if frozen.batch.seen_through:
        ops.append(ForgetSeen(queue.queue_id, frozen.batch.seen_through))


def audit_events(queue: Queue, batch: Batch) -> BatchAudit:
    """The events of the batch that was closed last, for the audit sink."""
    trails = [message.trail for arrival in batch.arrivals for message in arrival.messages]
    records = [message.record for arrival in batch.scheduled for message in arrival.messages]
    scheduled = list(enumerate(records, queue.next_seq - len(records)))
    return BatchAudit(queue.saving, trails, scheduled, batch.notes)


def list_tickets(queue: Queue, batch: Batch) -> Iterator[tuple[CommitCallback, range]]:
    """The callbacks for a batch on disk, with the sequence numbers of their messages."""
    for ticket in batch.tickets:
        yield ticket, range(0)
    seq = queue.saving[0].first_seq if queue.saving else 0
    for arrivals in (batch.arrivals, batch.scheduled):
        if arrivals is batch.scheduled:
            seq = queue.next_seq - sum(len(each.messages) for each in batch.scheduled)
        for messages, waiting, _is_ours in arrivals:
            if waiting is not None:
                yield waiting, range(seq, seq + len(messages))
            seq += len(messages)


def undo(queue: Queue, batch: Batch) -> list[CommitCallback]:
    """The store refused ``batch``: keep the broker's own changes, refuse the rest."""
    refused = list(batch.tickets)
    _take_back_numbers(queue, batch)
    kept = queue.batch
    for first_seq, chunk in batch.touched.items():
        kept.touched[first_seq] = chunk
        kept.gone[first_seq] = kept.gone.get(first_seq, 0) | batch.gone[first_seq]
    for seq, state in batch.states.items():
        kept.states.setdefault(seq, state)
    kept.state_chunks.update(batch.state_chunks)
    for first_seq, chunk in batch.expiries.items():
        kept.expiries.setdefault(first_seq, chunk)
    kept.returns[:0] = batch.returns
    kept.unscheduled[:0] = batch.unscheduled
    kept.notes[:0] = [
        each for each in batch.notes if isinstance(each, MessageEventRange) or each.is_ours
    ]
    kept.swept |= batch.swept
    kept.seen_through = max(kept.seen_through, batch.seen_through)
    if queue.history is not None:
        queue.history.take_back()
    if queue.sessions is not None:
        queue.sessions.states_refused(batch.session_states)
    refused += _refuse(queue, batch.arrivals, kept.arrivals)
    refused += _refuse(queue, batch.scheduled, kept.scheduled)
    return refused


def _take_back_numbers(queue: Queue, batch: Batch) -> None:
    for chunk in queue.saving:
        queue.chunk_cache.forget(chunk)
        queue.next_seq -= chunk.count
        queue.message_count -= chunk.count
    queue.saving = []
    for arrival in batch.scheduled:
        queue.next_seq -= len(arrival.messages)
        queue.scheduled_count -= len(arrival.messages)


def _refuse(
    queue: Queue, arrivals: list[IncomingBatch], kept: list[IncomingBatch]
) -> list[CommitCallback]:
    """Put the broker's own messages in front of ``kept``; returns the tickets of the others."""
    ours = [arrival for arrival in arrivals if arrival.is_ours]
    kept[:0] = ours
    refused = [arrival for arrival in arrivals if not arrival.is_ours]
    for arrival in refused:
        queue.byte_count -= sum(len(message.record) for message in arrival.messages)
    return [arrival.ticket for arrival in refused if arrival.ticket is not None]
