"""Whoever is told what happens to messages, for an audit. Most queues have no witness.

Rule 1: what changes a queue is told when it is on disk, never before; what is handed out is
        told as it is handed out.
Rule 2: the bytes of a message are often no longer in memory when something happens to it. It is
        named by its sequence number then; its id was told when it was stored.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from twinbus.broker.entities.chunk import Chunk
    from twinbus.broker.entities.queue import Queue


class Happening(StrEnum):
    """What can happen to a message."""

    STORED = "stored"
    DELIVERED = "delivered"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    PURGED = "purged"


class Note(NamedTuple):
    """Something that happened to the messages of a chunk in ``mask``."""

    what: Happening
    chunk: Chunk
    mask: int
    reason: str = ""


class Witness(Protocol):
    """Hears everything about the queues it is given to."""

    def committed(self, queue: Queue, stored: list[Chunk], notes: list[Note]) -> None:
        """New chunks, with their bytes, and what happened to others: all of it is on disk."""

    def delivered(self, queue: Queue, chunk: Chunk, blob: bytes, start: int, count: int) -> None:
        """Messages were handed out."""
