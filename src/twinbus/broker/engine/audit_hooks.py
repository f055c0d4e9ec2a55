"""The events of messages for the audit log. Most queues have no audit sink.

Rule 1: changes of a queue are reported when its batch is closed, and are valid if the transaction
        of the batch succeeds; if the store refuses it, what stays is reported again with the next
        batch, but nothing that was refused to a sender.
        Deliveries are reported at once.
Rule 2: the bytes of a message are often not in memory when something happens to it. The event then
        has its sequence number only; its id was reported when it was stored.
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
    """It waits under a number of its own; at its time it is due, and then stored."""
    DUE = "due"
    CANCELLED = "cancelled"
    PUBLISHED = "published"
    """A topic received it and passed on copies, possibly none."""
    DUPLICATE = "duplicate"
    """Its id was seen before: it was dropped."""
    DELIVERED = "delivered"
    COMPLETED = "completed"
    FORWARDED = "forwarded"
    """It was moved to another entity, which stores it in the same transaction."""
    ABANDONED = "abandoned"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    PURGED = "purged"
    DELETED = "deleted"
    """The entity itself, with everything in it."""


def audited_path(queue: Queue) -> str:
    """The path of a queue in the audit log."""
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
    """The broker itself moves the message: if the store refuses it, the next batch contains it."""


class BatchAudit(NamedTuple):
    """The events of one closed batch."""

    stored: Sequence[Chunk]
    """With their bytes."""
    trails: Sequence[MessageOrigin | None]
    """Of all messages in them."""
    scheduled: Sequence[tuple[int, bytes]]
    """Numbers and records."""
    notes: Sequence[MessageEventRange | UnstoredMessageEvent]


class AuditSink(Protocol):
    """Gets all events of its queues."""

    def next_publication(self) -> int:
        """A unique number for a message that a topic passes on."""

    def closed(self, queue: Queue, batch: BatchAudit) -> None:
        """A batch was closed: all of it will be on disk, or nothing."""

    def delivered(self, queue: Queue, chunk: Chunk, blob: bytes, start: int, count: int) -> None:
        """Messages were delivered."""

    def deleted(self, queue: Queue) -> None:
        """The queue is gone, with everything in it."""
