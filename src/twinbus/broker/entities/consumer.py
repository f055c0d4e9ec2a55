"""A receiver as the queue machine sees it: how much it may be given, and what it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.locks import LockRun


@dataclass(slots=True, eq=False)
class Consumer:
    """One receiving link."""

    deliver: Callable[[Grant], None]
    """Hands messages to the peer; called by whoever runs the machine, never by the machine."""
    unsettled_max: int
    """With this many messages locked and not settled it is given no more."""
    deletes_on_receipt: bool = False
    """Receive-and-delete: what is handed over is gone."""
    credit: int = 0
    """How many messages the peer is willing to take now."""
    unsettled: int = 0
    is_paused: bool = False
    """Its connection cannot take more bytes at the moment."""
    is_listed: bool = False
    """It is in the queue's list of consumers that may have room."""

    def room(self) -> int:
        """How many messages it can be given right now."""
        if self.is_paused:
            return 0
        if self.deletes_on_receipt:
            return self.credit
        return min(self.credit, self.unsettled_max - self.unsettled)


@dataclass(slots=True)
class Grant:
    """Messages for one consumer: ``count`` of them from index ``start`` of the chunk.

    The blob travels with the grant, because the chunk may give its own copy back at once.
    """

    consumer: Consumer
    chunk: Chunk
    blob: bytes
    start: int
    count: int
    run: LockRun | None
