"""Receivers as the queue machine sees them: what each may be given, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.locks import LockRun

if TYPE_CHECKING:
    from twinbus.broker.engine.sessions import SessionLock


def _nobody() -> None:
    """Nobody to be told."""


class UnsettledQuota:
    """What all the receivers of one connection may hold together."""

    def __init__(self, unsettled_max: int, has_room: Callable[[], None]) -> None:
        self._unsettled_max = unsettled_max
        self._has_room = has_room
        self._unsettled = 0

    def close(self) -> None:
        """The connection is gone. Its locks may stay; nobody waits for room."""
        self._has_room = _nobody

    @property
    def left(self) -> int:
        return self._unsettled_max - self._unsettled

    def take(self, count: int) -> None:
        self._unsettled += count

    def give_back(self, count: int) -> None:
        """Whoever waits for room is told when there was none."""
        was_used_up = self._unsettled >= self._unsettled_max
        self._unsettled -= count
        if was_used_up:
            self._has_room()


@dataclass(slots=True, eq=False)
class Consumer:
    """One receiving link."""

    deliver: Callable[[DeliveryBatch], None]
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
    allowance: UnsettledQuota | None = None
    """What its connection may hold, if that is limited."""
    session: SessionLock | None = None
    """The session it receives from, in a queue that has sessions."""

    def room(self) -> int:
        """How many messages it can be given right now."""
        if self.is_paused:
            return 0
        if self.deletes_on_receipt:
            return self.credit
        room = min(self.credit, self.unsettled_max - self.unsettled)
        return room if self.allowance is None else min(room, self.allowance.left)

    def took(self, count: int) -> None:
        """So many messages were locked for it."""
        self.unsettled += count
        if self.allowance is not None:
            self.allowance.take(count)

    def gave_back(self, count: int) -> None:
        """So many of its locks are gone: settled, or run out."""
        self.unsettled -= count
        if self.allowance is not None:
            self.allowance.give_back(count)


@dataclass(slots=True)
class DeliveryBatch:
    """Messages for one consumer: ``count`` of them from index ``start`` of the chunk.

    The blob travels with the grant, because the chunk may give its own copy back at once.
    """

    consumer: Consumer
    chunk: Chunk
    blob: bytes
    start: int
    count: int
    run: LockRun | None


class RoundRobin:
    """The receivers of a queue; those that may have room take turns."""

    def __init__(self) -> None:
        self._consumers: set[Consumer] = set()
        self._ready: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        self._consumers.add(consumer)

    def discard(self, consumer: Consumer) -> None:
        self._consumers.discard(consumer)
        consumer.credit = 0

    def clear(self) -> None:
        """Nobody is to be given anything any more."""
        for consumer in list(self._consumers):
            self.discard(consumer)

    @property
    def has_anyone(self) -> bool:
        return bool(self._consumers)

    def credit_available(self, consumer: Consumer) -> None:
        """The consumer may have room now."""
        if not consumer.is_listed and consumer.room() > 0:
            consumer.is_listed = True
            self._ready.append(consumer)

    def first(self) -> Consumer | None:
        """Whose turn it is, or None when nobody has room."""
        while self._ready:
            consumer = self._ready[0]
            if consumer.room() > 0:
                return consumer
            self._ready.popleft().is_listed = False
        return None

    def next(self) -> None:
        """The first has had its turn."""
        self._ready.rotate(-1)
