"""What a queue wants written next, collected until the writer is free.

One transaction of the store takes the batches of every changed queue. While it is on its way
to disk the next batch fills. If the store refuses it (disk full), what a peer asked for is
refused to that peer, and what the broker itself had begun (a move to the dead-letter queue,
a settlement that was already promised to nobody else) stays and is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.record import IncomingMessage
from twinbus.broker.entities.witness import MessageEventRange, UnstoredMessageEvent

# A chunk is what is read, locked and deleted as a unit: large enough that a row's cost
# disappears, small enough that one redelivery does not read megabytes.
CHUNK_COUNT_MAX = 1024
CHUNK_BYTES_MAX = 256 * 1024


class CommitCallback(Protocol):
    """Whoever waits for a change to be on disk."""

    def stored(self, seqs: range) -> None:
        """The change is durable; ``seqs`` are the sequence numbers it was given, if any."""

    def failed(self, error: Exception) -> None:
        """The change was not stored."""


class IncomingBatch(NamedTuple):
    """Messages that came together."""

    messages: list[IncomingMessage]
    ticket: CommitCallback | None
    is_ours: bool
    """The broker itself moves them: if the store refuses them they are tried again."""


class NotedState(NamedTuple):
    """What the holder of a session noted down."""

    state: bytes | None
    """None forgets it."""
    size: int
    """What it takes of the queue's quota."""
    size_before: int
    """What the one takes that is on disk before this batch."""


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
    """Messages to hand out again once their delivery count is on disk."""
    expiries: dict[int, Chunk] = field(default_factory=dict)
    """Chunks whose earliest expiry changed."""
    session_states: dict[str, NotedState] = field(default_factory=dict)
    """What holders of sessions noted down."""
    tickets: list[CommitCallback] = field(default_factory=list)
    notes: list[MessageEventRange | UnstoredMessageEvent] = field(default_factory=list)
    """What the witness will be told."""
    seen_through: int = 0
    """Ids of messages are forgotten up to this page (history.py)."""
    swept: bool = False
    """It acts on expired or due messages, so the next such moment must be looked up after it."""

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
