"""The interface of a store, and the values that the broker and a store exchange.

One store contains one namespace. The unit of storage is the *chunk*: a run of consecutive sequence
numbers of one queue, stored as one row with one blob whose content the store does not parse.

    loop thread --ops--> writer thread: commit(), maintain()   --> the store
    loop thread <-rows-- reader thread: load_*(), next_*()     <-- the store

Rule 1: a list of operations is applied in order and as a whole: all of it or nothing.
Rule 2: ``commit`` returns once the operations are durable, never before.
Rule 3: exactly one thread writes and exactly one reads; any thread may call ``statistics``.
Rule 4: damage is reported as ``StoreCorrupt``, never skipped and never shortened.

Values are plain slotted records because one is built for every send and settlement; no code
changes one after building it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

# A row id is queue_id << 40 | seq. SQLite's row ids are signed 64-bit numbers, which leaves
# 23 bits for the queue: eight million queues over the lifetime of a namespace, a million million
# messages over the lifetime of a queue.
SEQ_BITS: Final = 40
SEQ_MAX: Final = (1 << SEQ_BITS) - 1
QUEUE_ID_MAX: Final = (1 << 23) - 1

# A load is short, whatever was stored: the details of this many messages take about 20 ms.
LOAD_MESSAGES_MAX: Final = 16_384
NO_BYTES_MAX: Final = (1 << 63) - 1

# Counted for each session state besides its name and its bytes, so that empty ones count too.
SESSION_STATE_ROW_BYTES: Final = 64

MetaValue: TypeAlias = str | int | bytes


@dataclass(slots=True)
class ChunkRow:
    """``count`` consecutive messages of one queue, starting at ``first_seq``."""

    queue_id: int
    first_seq: int
    count: int
    enqueued_ms: int
    expires_ms: int | None
    """The earliest expiry of any message in the chunk, or None when none expires."""
    blob: bytes
    session: str | None = None
    """The session that all of them belong to, in a queue with sessions."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


@dataclass(slots=True, eq=False)
class SharedBody:
    """Messages that several chunks of one commit share, as one blob."""

    count: int
    blob: bytes


@dataclass(slots=True, eq=False)
class SharedBodySelection:
    """The messages of a chunk as a selection from a shared body, in the same order."""

    sheet: SharedBody
    selection: int
    """Bit i stands for message i of the shared body."""


@dataclass(slots=True)
class LoadedChunk:
    """A chunk with the messages that are gone, and the states of others."""

    row: ChunkRow
    gone: list[tuple[int, int]]
    """Settled messages as merged, ascending (first_seq, last_seq) runs."""
    states: dict[int, tuple[int, bool]]
    """seq -> (delivery_count, deferred), only for messages that have a state row."""


@dataclass(slots=True)
class ScheduledRow:
    """A message that enters its queue at ``due_ms``."""

    queue_id: int
    seq: int
    due_ms: int
    blob: bytes


class SessionCounts(NamedTuple):
    """The messages of one session of a queue."""

    session: str
    active_count: int
    """Messages that are neither gone nor deferred."""
    last_seq: int
    """The last sequence number of its newest chunk."""


def session_state_bytes(session: str, state: bytes) -> int:
    """The bytes that a session's state uses of its queue's quota."""
    return len(session.encode()) + len(state) + SESSION_STATE_ROW_BYTES


@dataclass(slots=True)
class SeenRow:
    """Ids of messages that arrived at a queue together, for duplicate detection."""

    queue_id: int
    page: int
    """Counts up from 1; a later page has later ids."""
    at_ms: int
    digests: bytes
    """Digests of 16 bytes each, one after the other."""


@dataclass(slots=True)
class QueueCounters:
    """The counters of one queue. ``open`` checks all of them except ``byte_count``."""

    queue_id: int
    next_seq: int = 1
    """The next sequence number to assign: above every number ever used."""
    message_count: int = 0
    """Messages in chunks that are not gone, the deferred ones included."""
    byte_count: int = 0
    """Computed by the caller; the store only keeps it."""
    deferred_count: int = 0
    scheduled_count: int = 0

    def values(self) -> tuple[int, int, int, int, int, int]:
        """All of them, in the order in which they are stored and checksummed."""
        return (
            self.queue_id,
            self.next_seq,
            self.message_count,
            self.byte_count,
            self.deferred_count,
            self.scheduled_count,
        )


@dataclass(slots=True)
class EntityRow:
    """A queue, or anything else that owns a run of sequence numbers."""

    queue_id: int
    path: str
    kind: str
    description_json: str


@dataclass(slots=True)
class PutChunk:
    """Store a new chunk. Its sequence numbers must be free.

    With a ``share`` the store may keep the shared body once for all chunks of the commit that
    select from it; the row has its blob as well, and loads the same.
    """

    row: ChunkRow
    share: SharedBodySelection | None = None


@dataclass(slots=True)
class DeleteChunks:
    """Drop every chunk whose first_seq lies in the range, with its tombstones and states."""

    queue_id: int
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class Tombstone:
    """These messages are settled while their chunk stays; their states go with them.

    The range lies inside one chunk. It may touch an earlier tombstone, never overlap one.
    """

    queue_id: int
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class PutState:
    """Store (or overwrite) the delivery count of a message and whether it is deferred."""

    queue_id: int
    seq: int
    delivery_count: int
    deferred: bool


@dataclass(slots=True)
class ClearState:
    """Delete the states in the range."""

    queue_id: int
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class SetChunkExpiry:
    """Replace the earliest expiry of a chunk; nothing happens when the chunk is gone."""

    queue_id: int
    first_seq: int
    expires_ms: int | None


@dataclass(slots=True)
class PutScheduled:
    """Store a scheduled message. Its sequence number must be free among the scheduled."""

    queue_id: int
    seq: int
    due_ms: int
    blob: bytes


@dataclass(slots=True)
class DeleteScheduled:
    """Delete a scheduled message (it was cancelled, or the same ops put it in a chunk)."""

    queue_id: int
    seq: int


@dataclass(slots=True)
class PutSeen:
    """Store the ids of messages for duplicate detection. The page must be free."""

    row: SeenRow


@dataclass(slots=True)
class ForgetSeen:
    """Delete the ids on every page up to this one."""

    queue_id: int
    through_page: int


@dataclass(slots=True)
class PutSessionState:
    """Store the state of a session; None deletes it."""

    queue_id: int
    session: str
    state: bytes | None
    updated_ms: int


@dataclass(slots=True)
class PutCounters:
    """Replace the counters of a queue."""

    counters: QueueCounters


@dataclass(slots=True)
class PutEntity:
    """Create an entity (its id above every id ever used) or replace its description."""

    entity: EntityRow


@dataclass(slots=True)
class DeleteEntity:
    """Delete the entity, if it exists, and its counters; ``maintain`` deletes its rows in slices.

    A later op that removes something from the queue or updates it is ignored; one that would
    add a message to it is refused.
    """

    queue_id: int


@dataclass(slots=True)
class PutMeta:
    """Store one value for the namespace."""

    key: str
    value: MetaValue


Op: TypeAlias = (
    PutChunk
    | DeleteChunks
    | Tombstone
    | PutState
    | ClearState
    | SetChunkExpiry
    | PutScheduled
    | DeleteScheduled
    | PutSeen
    | ForgetSeen
    | PutSessionState
    | PutCounters
    | PutEntity
    | DeleteEntity
    | PutMeta
)


@dataclass(slots=True)
class Recovered:
    """What ``open`` found. Messages stay on disk until they are loaded."""

    entities: list[EntityRow] = field(default_factory=list)
    counters: dict[int, QueueCounters] = field(default_factory=dict)
    meta: dict[str, MetaValue] = field(default_factory=dict)
    next_queue_id: int = 1
    """The lowest queue id that was never used."""
    seen: dict[int, list[SeenRow]] = field(default_factory=dict)
    """The pages of ids of each queue with duplicate detection, ascending."""
    sessions: dict[int, list[SessionCounts]] = field(default_factory=dict)
    """The sessions with messages of each queue that has any, in the order of their oldest chunk."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """The bytes of session states of each queue that has any; counted from the rows."""
    path: str = ":memory:"
    """The path of the store, for messages and logs."""


class StoreStatistics(NamedTuple):
    """Numbers for an operator; sizes are those on disk."""

    file_bytes: int
    wal_bytes: int
    free_pages: int
    page_bytes: int
    commit_number: int
    engine: str


class Store(Protocol):
    """The storage of one namespace."""

    def open(self) -> Recovered:
        """Recover and check the store; raises StoreCorrupt or StoreVersionMismatch."""

    def commit(self, ops: Sequence[Op]) -> None:
        """Apply the ops in order as one transaction and return once it is durable.

        ValueError: an op breaks this interface's rules; nothing was stored, the store goes on.
        StoreFull: nothing was stored, the store goes on.
        StoreFailed: the disk failed; every later commit raises it too, because after a failed
        fsync the content of the disk is unknown.
        """

    def load_chunks(
        self,
        queue_id: int,
        after_seq: int,
        bytes_max: int,
        count_max: int,
        session: str | None = None,
    ) -> list[LoadedChunk]:
        """Chunks with first_seq > after_seq, ascending, at most ``count_max`` of them.

        With ``session``, only those of that session.
        Stops at the chunk with which the blobs reach ``bytes_max``, or the messages
        LOAD_MESSAGES_MAX, so that a queue with anything left always returns at least one chunk.
        """

    def load_chunk_holding(self, queue_id: int, seq: int) -> LoadedChunk | None:
        """The chunk that covers ``seq`` (the message itself may be gone)."""

    def load_expired(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[LoadedChunk]:
        """Chunks with expires_ms <= now_ms, earliest expiry first.

        Here and below, ``bytes_max`` ends a load as it does in load_chunks().
        """

    def next_expiry(self, queue_id: int) -> int | None:
        """The earliest expires_ms of the queue."""

    def load_due(
        self, queue_id: int, now_ms: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        """Scheduled messages with due_ms <= now_ms, earliest first, then by seq."""

    def next_due(self, queue_id: int) -> int | None:
        """The earliest due_ms of the queue."""

    def load_scheduled(
        self, queue_id: int, after_seq: int, count_max: int, bytes_max: int = NO_BYTES_MAX
    ) -> list[ScheduledRow]:
        """Scheduled messages with seq > after_seq, ascending by seq."""

    def load_deferred_seqs(self, queue_id: int, after_seq: int, count_max: int) -> list[int]:
        """Sequence numbers above after_seq of deferred messages, ascending."""

    def load_session_state(self, queue_id: int, session: str) -> bytes | None:
        """The stored state of the session."""

    def load_sessions_updated(
        self, queue_id: int, since_ms: int, after: str | None, count_max: int
    ) -> tuple[list[str], str | None]:
        """Read the next sessions with a state after ``after`` (None: from the first), by name.

        Reads at most ``count_max``. Returns those whose state was stored at ``since_ms`` or
        later, and the name to continue from, which is None when there are no more.
        """

    def maintain(self) -> bool:
        """One slice (about 20 ms) of housekeeping, by the writer when idle.

        True while there is more to do: rows of deleted entities, free space to return, a log to
        shorten.
        """

    def verify_all(self) -> None:
        """Read every row and check it; raise StoreCorrupt at the first damage."""

    def statistics(self) -> StoreStatistics:
        """Sizes and versions; cheap, and safe from any thread."""

    def close(self) -> None:
        """Make everything durable in the main file and release it."""
