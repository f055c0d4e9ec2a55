"""Whoever is told what happens to messages, for an audit. Most queues have no witness.

Rule 1: what changes a queue is told when its batch is closed, and holds if the transaction that
        takes the batch succeeds; if it is refused, whatever stays is told again with the next one,
        and nothing that was refused to a sender.
        What is handed out is told as it is handed out.
Rule 2: the bytes of a message are often no longer in memory when something happens to it. It is
        named by its sequence number then; its id was told when it was stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from twinbus.broker.engine.chunk import Chunk
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.engine.stored_message import IncomingMessage, MessageOrigin


class MessageEvent(StrEnum):
    """What can happen to a message."""

    STORED = "stored"
    SCHEDULED = "scheduled"
    """It waits for its time under a number of its own; when that comes it is due, and stored."""
    DUE = "due"
    CANCELLED = "cancelled"
    PUBLISHED = "published"
    """A topic took it and passed copies on, perhaps to nobody."""
    DUPLICATE = "duplicate"
    """Its id was seen before: it was dropped."""
    DELIVERED = "delivered"
    COMPLETED = "completed"
    FORWARDED = "forwarded"
    """It left for another entity, which stores it in the same transaction."""
    ABANDONED = "abandoned"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    PURGED = "purged"
    DELETED = "deleted"
    """The entity itself, with everything in it."""


def audited_path(queue: Queue) -> str:
    """What a queue is called in an audit."""
    path = queue.description.path
    return f"{path}/$deadletterqueue" if queue.is_dead_letter_queue else path


class MessageEventRange(NamedTuple):
    """Something that happened to messages of a queue: those in ``mask``, from ``first_seq``."""

    what: MessageEvent
    first_seq: int
    mask: int
    reason: str = ""


class UnstoredMessageEvent(NamedTuple):
    """Something that happened to a message before it had a number, or instead of one."""

    what: MessageEvent
    message: IncomingMessage
    takers: Sequence[Queue] | None = None
    """The subscriptions that get a copy, once for each; those that are deleted get none."""
    is_ours: bool = False
    """The broker itself moves the message: if the store refuses it, the next batch has it."""


class BatchAudit(NamedTuple):
    """What one closed batch does."""

    stored: Sequence[Chunk]
    """With their bytes."""
    trails: Sequence[MessageOrigin | None]
    """Of all messages in them."""
    scheduled: Sequence[tuple[int, bytes]]
    """Numbers and records."""
    notes: Sequence[MessageEventRange | UnstoredMessageEvent]


class AuditSink(Protocol):
    """Hears everything about the queues it is given to."""

    def next_publication(self) -> int:
        """A number for a message that a topic passes on; no other one has it."""

    def closed(self, queue: Queue, batch: BatchAudit) -> None:
        """All of it is on disk, or none."""

    def delivered(self, queue: Queue, chunk: Chunk, blob: bytes, start: int, count: int) -> None:
        """Messages were handed out."""

    def deleted(self, queue: Queue) -> None:
        """The queue is gone, with everything in it."""
