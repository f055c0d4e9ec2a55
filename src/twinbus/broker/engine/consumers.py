"""The receivers of a queue: how many messages each can get, and their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.locks import LockRun

if TYPE_CHECKING:
    from twinbus.broker.engine.sessions import SessionLock


def _ignore() -> None:
    """The connection is closed: there is no receiver to notify."""


class UnsettledQuota:
    """The unsettled messages of all receivers of one connection, and their maximum."""

    def __init__(self, unsettled_max: int, has_room: Callable[[], None]) -> None:
        self._unsettled_max = unsettled_max
        self._has_room = has_room
        self._unsettled = 0

    def close(self) -> None:
        """The connection is closed. Its locks may stay; no receiver waits for quota."""
        self._has_room = _ignore

    @property
    def left(self) -> int:
        return self._unsettled_max - self._unsettled

    def take(self, count: int) -> None:
        self._unsettled += count

    def give_back(self, count: int) -> None:
        """Return quota; the receivers are notified if it was used up."""
        was_used_up = self._unsettled >= self._unsettled_max
        self._unsettled -= count
        if was_used_up:
            self._has_room()


@dataclass(slots=True, eq=False)
class Consumer:
    """One receiving link."""

    deliver: Callable[[DeliveryBatch], None]
    """Sends messages to the client; called by the namespace, never by the engine."""
    unsettled_max: int
    """With this many unsettled messages it gets no more."""
    deletes_on_receipt: bool = False
    """Receive-and-delete: what is delivered is removed."""
    credit: int = 0
    """How many messages the client accepts now."""
    unsettled: int = 0
    is_paused: bool = False
    """Its connection cannot accept more bytes at present."""
    is_listed: bool = False
    """It is in the queue's list of receivers that may accept messages."""
    allowance: UnsettledQuota | None = None
    """The quota of its connection, if there is one."""
    session: SessionLock | None = None
    """The session it receives from, in a queue with sessions."""

    def room(self) -> int:
        """How many messages it can get now."""
        if self.is_paused:
            return 0
        if self.deletes_on_receipt:
            return self.credit
        room = min(self.credit, self.unsettled_max - self.unsettled)
        return room if self.allowance is None else min(room, self.allowance.left)

    def took(self, count: int) -> None:
        """Count messages that were locked for it."""
        self.unsettled += count
        if self.allowance is not None:
            self.allowance.take(count)

    def gave_back(self, count: int) -> None:
        """Count locks of it that ended: settled or expired."""
        self.unsettled -= count
        if self.allowance is not None:
            self.allowance.give_back(count)


@dataclass(slots=True)
class DeliveryBatch:
    """Messages for one consumer: ``count`` of them from index ``start`` of the chunk.

    It has the blob, because the chunk may free its own reference at once.
    """

    consumer: Consumer
    chunk: Chunk
    blob: bytes
    start: int
    count: int
    run: LockRun | None


class RoundRobin:
    """The receivers of a queue; those that may accept messages take turns."""

    def __init__(self) -> None:
        self._consumers: set[Consumer] = set()
        self._ready: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        self._consumers.add(consumer)

    def discard(self, consumer: Consumer) -> None:
        self._consumers.discard(consumer)
        consumer.credit = 0

    def clear(self) -> None:
        """Remove all receivers."""
        for consumer in list(self._consumers):
            self.discard(consumer)

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    def credit_available(self, consumer: Consumer) -> None:
        """The receiver may accept messages now."""
        if not consumer.is_listed and consumer.room() > 0:
            consumer.is_listed = True
            self._ready.append(consumer)

    def first(self) -> Consumer | None:
        """The receiver whose turn it is; None if no receiver accepts messages."""
        while self._ready:
            consumer = self._ready[0]
            if consumer.room() > 0:
                return consumer
            self._ready.popleft().is_listed = False
        return None

    def next(self) -> None:
        """The first one has had its turn."""
        self._ready.rotate(-1)
