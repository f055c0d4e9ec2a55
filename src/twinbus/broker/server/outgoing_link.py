"""The handler of a link on which a client receives from a queue or subscription.

Deliveries are remembered as runs: one entry for the messages that were delivered together.
A disposition names delivery ids; the ledger of the session finds the runs behind them, so that
settling a thousand messages, or a hostile range of four thousand million, touches a few entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.link import SenderLink
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch, UnsettledQuota
from twinbus.broker.engine.locks import TOKEN, LockRun
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.sessions import SessionLock
from twinbus.broker.fairness.shares import SharedCapacity
from twinbus.broker.server.delivery_encoder import (
    PLAIN_FRAME_OVERHEAD_BYTES,
    delivered_message,
    plain_frames,
)
from twinbus.cost.units import Operation, units_between

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

# Entries whose messages are all settled are dropped when there are more than this many.
LEDGER_SWEEP = 64


@dataclass(slots=True)
class DeliveryRun:
    """A run of deliveries of one link: delivery id ``first + i`` is chunk index ``start + i``."""

    first: int
    count: int
    run: LockRun
    end: OutgoingLink


class UnsettledDeliveries:
    """What was sent on a session and is not settled, in the order of delivery ids.

    Ids are kept as numbers that never wrap; the 32-bit ones of the wire are mapped onto them.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._entries: list[DeliveryRun] = []
        self._next_id = 0
        self._sweep_at_count = LEDGER_SWEEP
        self._passed_count = 0
        """Settled entries that the last search passed."""

    def add(self, first_id: int, count: int, run: LockRun, end: OutgoingLink) -> None:
        """Remember ``count`` delivery ids from ``first_id`` on."""
        if len(self._entries) >= self._sweep_at_count:
            self._sweep()
        # The ids between were used for settled deliveries and replies: nothing to remember.
        first = self._next_id + ((first_id - self._next_id) & UINT_MAX)
        self._firsts.append(first)
        self._entries.append(DeliveryRun(first, count, run, end))
        self._next_id = first + count

    def _sweep(self) -> None:
        self._passed_count = 0
        kept = [entry for entry in self._entries if entry.run.unsettled]
        self._entries = kept
        self._firsts = [entry.first for entry in kept]
        # Twice what was kept, so that the work stays in proportion to what is delivered.
        self._sweep_at_count = 2 * len(kept) + LEDGER_SWEEP

    def span(self, first: int, last: int) -> tuple[int, int]:
        """A range of wire ids as numbers that do not wrap, up to the last one sent so far."""
        distance = ((first - self._next_id + 0x80000000) & UINT_MAX) - 0x80000000
        low = self._next_id + distance
        return max(0, low), min(self._next_id - 1, low + ((last - first) & UINT_MAX))

    def find(self, first: int, last: int) -> Iterator[tuple[int, int, DeliveryRun | None]]:
        """The parts of a range of wire ids that were sent: (first, count, entry or None).

        None is for ids without a lock; consecutive ones are one part.
        """
        return self.find_in(*self.span(first, last))

    def find_in(self, at: int, high: int) -> Iterator[tuple[int, int, DeliveryRun | None]]:
        """The same for a span()."""
        if self._passed_count > LEDGER_SWEEP:
            # A client may settle the same thousands again and again: they are searched once.
            self._sweep()
        passed = 0
        for index in range(max(0, bisect_right(self._firsts, at) - 1), len(self._entries)):
            entry = self._entries[index]
            if entry.first > high:
                break
            start, stop = max(at, entry.first), min(high + 1, entry.first + entry.count)
            if stop > start and entry.run.unsettled:
                if start > at:
                    yield at, start - at, None
                yield start, stop - start, entry
                at = stop
            else:
                passed += 1
        self._passed_count = max(passed, self._passed_count)
        if high >= at:
            yield at, high - at + 1, None


class SharedUnsettledQuota(UnsettledQuota):
    """The unsettled messages of a connection: its own limit, and its share of the namespace's.

    A connection whose share is used up is woken when another connection settles messages.
    """

    def __init__(
        self, unsettled_max: int, has_room: Callable[[], None], shared: SharedCapacity
    ) -> None:
        super().__init__(unsettled_max, has_room)
        self._shared = shared
        self.holder = shared.join()

    @property
    def left(self) -> int:
        own, room = super().left, self._shared.room(self.holder.account)
        if room <= 0 < own:
            self._shared.waiting[self._wake] = None
        return min(own, room)

    def take(self, count: int) -> None:
        super().take(count)
        self._shared.take(self.holder, count)

    def give_back(self, count: int) -> None:
        super().give_back(count)
        shared = self._shared
        shared.give_back(self.holder, count)
        if shared.waiting:
            waiting, shared.waiting = shared.waiting, {}
            for wake in waiting:
                wake()

    def _wake(self) -> None:
        self._has_room()

    def close(self) -> None:
        super().close()
        self._shared.leave(self.holder)


class OutgoingLink:
    """Sends a queue's messages to a client that receives."""

    claim = Claim.LISTEN

    def __init__(
        self,
        peer: ClientConnection,
        link: SenderLink,
        queue: Queue,
        path: str,
        *,
        deletes_on_receipt: bool,
        session: SessionLock | None = None,
    ) -> None:
        self._peer = peer
        self._link = link
        self.queue = queue
        self.path = path
        self.consumer = Consumer(
            deliver=self.deliver,
            unsettled_max=peer.limits.unsettled_per_link_max,
            deletes_on_receipt=deletes_on_receipt,
            allowance=peer.allowance,
            session=session,
        )
        self._received = peer.namespace.meter.counter(path, Operation.RECEIVE)
        self.settled = peer.namespace.meter.counter(path, Operation.SETTLE)
        self._has_granted = False
        self._has_handed_out = False
        self.use_count = 0
        """Grants of credit and settlements (broker/namespace/idle_links.py)."""

    @property
    def peer(self) -> ClientConnection:
        """The connection of the link."""
        return self._peer

    def opened(self) -> None:
        self.queue.attach(self.consumer)
        if self._link.credit or self._link.is_draining:
            # The answer to a session's attach may come later than the first flow.
            self.on_credit()

    def on_credit(self) -> None:
        """The client changed its credit, or drains the link."""
        self.use_count += 1
        if not self._link.is_draining:
            self._end_grant()
            self._has_granted = self._link.credit > 0
        self.consumer.credit = self._link.credit
        self.consumer.is_paused = self._is_held_up
        if not self.queue.description.status.can_receive:
            raise AmqpError(
                Condition.ENTITY_DISABLED,
                f"The queue {self.queue.description.display_path!r} cannot be received from: its "
                f"status is {self.queue.description.status}.",
            )
        self.queue.credit_available(self.consumer)
        self._peer.namespace.touch(self.queue)
        if self._link.is_draining:
            self._peer.namespace.drain(self.queue, self.drained)

    def _end_grant(self) -> None:
        """The last grant of credit has ended; an empty receive is counted (rule C1)."""
        if self._has_granted and not self._has_handed_out:
            empty = self._peer.namespace.meter.counter(self.path, Operation.EMPTY_RECEIVE)
            empty.add_request()
        self._has_granted = self._has_handed_out = False

    def drained(self) -> None:
        """Everything that was in memory has been sent."""
        if self.consumer.is_paused and self.consumer.credit:
            # It has not: resume() drains again.
            return
        if self._link.is_draining and not self._link.is_detached:
            self._end_grant()
            self.consumer.credit = 0
            self._link.complete_drain()
            self._peer.wants_flush()

    def deliver(self, grant: DeliveryBatch) -> None:
        link = self._link
        session = link.session
        first_id = link.reserve(grant.count)
        if grant.run is not None:
            self._peer.ledger(session).add(first_id, grant.count, grant.run, self)
        frames = None
        if self._fits_one_frame(grant):
            frames = plain_frames(grant, session.channel, link.handle, first_id)
        if frames is None:
            self._deliver_one_by_one(grant, first_id)
        else:
            session.write_transfers(frames)
        starts = grant.chunk.starts
        size = starts[grant.start + grant.count] - starts[grant.start]
        self._has_handed_out = True
        self._received.add_outgoing(
            grant.count, units_between(starts, grant.start, grant.count), size
        )
        self._peer.handed_out(size)
        if session.is_blocked and not self.consumer.is_paused:
            self._peer.pause_session(session)
        self._peer.wants_flush()

    def _fits_one_frame(self, grant: DeliveryBatch) -> bool:
        largest = self.queue.description.max_message_size_bytes + PLAIN_FRAME_OVERHEAD_BYTES
        return largest <= self._link.session.connection.remote_frame_size_bytes_max

    def _deliver_one_by_one(self, grant: DeliveryBatch, first_id: int) -> None:
        for offset in range(grant.count):
            index = grant.start + offset
            seq = grant.chunk.first_seq + index
            token = None if grant.run is None else grant.run.token(seq)
            payload = delivered_message(
                grant.chunk,
                grant.blob,
                index,
                token=token,
                locked_until_ms=None if grant.run is None else grant.run.locked_until_ms,
            )
            self._link.send_as(
                (first_id + offset) & UINT_MAX,
                payload,
                TOKEN.pack(0, seq) if token is None else token,
                settled=grant.run is None,
            )

    @property
    def may_settle(self) -> bool:
        """Locks of a detached link may be settled too, but only with the Listen claim (M2)."""
        return self._peer.authorization.may_listen(self.path)

    @property
    def _is_held_up(self) -> bool:
        """The session's window is closed, or the client does not read."""
        return self._link.session.is_blocked or self._peer.is_output_full

    def pause(self) -> None:
        self.consumer.is_paused = True

    def resume(self) -> None:
        if self.consumer.is_paused and not self._is_held_up:
            self.consumer.is_paused = False
            self.credit_available()
            if self._link.is_draining:
                self._peer.namespace.drain(self.queue, self.drained)

    def credit_available(self) -> None:
        """There may be room for more."""
        self.queue.credit_available(self.consumer)
        self._peer.namespace.touch(self.queue)

    @property
    def is_detached(self) -> bool:
        return self._link.is_detached

    def answered(self) -> None:
        """The answer to a settlement was written."""
        self._peer.wants_flush()

    def flush(self) -> None:
        """Nothing is collected here."""

    def detached(self) -> None:
        """The link is detached; its locks stay (rule M2), but no more messages are delivered."""
        self._end_grant()
        self.queue.detach(self.consumer)
        if self.consumer.session is not None:
            # Other receivers may lock the session now.
            self._peer.namespace.touch(self.queue)
        self.consumer.deliver = _nowhere


def _nowhere(_grant: DeliveryBatch) -> None:
    """A consumer without credit gets no messages."""
