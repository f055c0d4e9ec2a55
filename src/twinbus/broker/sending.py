"""The end of a link on which a client sends into a queue.

Every refusal is a rejected delivery with its own condition, because that is the only form in
which the Azure SDK shows the reason to its caller; the link stays up. An acknowledgement is
written after the commit, and neighbours share one frame.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twinbus.amqp.delivery_states import STATE_ACCEPTED, Error, Rejected, encode_state
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import DeliveriesReceived, DeliveryReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import ReceivingLink
from twinbus.amqp.transfers import encode_disposition
from twinbus.broker.access.claims import Claim
from twinbus.broker.entities.description import EntityStatus
from twinbus.broker.entities.partitions import Spread
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.record import IncomingMessage
from twinbus.broker.faults.sends import SilentTicket, catch_send
from twinbus.broker.ingest import FORMAT_MESSAGE, Ingested, ingest, ingest_run, plain_messages
from twinbus.core.costs import Operation, units_of

if TYPE_CHECKING:
    from twinbus.broker.peer import Peer

# Credit for a sender: enough that a pipeline never waits for a flow frame.
SEND_CREDIT = 2_000
# The Azure SDK assumes 10,000 credits before it has seen any; more at once is a flood.
UNACKNOWLEDGED_MAX = 20_000
# A run that would wrap around is taken one by one.
DELIVERY_ID_MAX = 0xFFFFFFFF
# Deliveries and outcomes remembered for the Azure SDK: its aio sender, used from several tasks
# at once, sends a transfer twice, and also two messages under one delivery id.
REJECTIONS_REMEMBERED = 64
DELIVERIES_REMEMBERED = 16
# Of a longer payload only both ends are compared.
COMPARED_BYTES_MAX = 4_096


class SendTicket:
    """Deliveries that came together and wait for their commit."""

    __slots__ = ("_delivery_ids", "_link", "_size")

    def __init__(self, link: SendingEnd, delivery_ids: range, size: int) -> None:
        self._link = link
        self._delivery_ids = delivery_ids
        self._size = size

    def stored(self, seqs: range) -> None:
        self._link.acknowledge(self._delivery_ids, self._size)

    def failed(self, error: Exception) -> None:
        self._link.refuse_stored(self._delivery_ids, self._size, error)


class SendingEnd:
    """Receives what a client sends."""

    claim = Claim.SEND

    def __init__(self, peer: Peer, link: ReceivingLink, queue: Queue, path: str) -> None:
        self._peer = peer
        self._link = link
        self.queue = queue
        self.path = path
        self._accepted: list[range] = []
        self._waiting: set[int] = set()
        self._again: dict[int, int] = {}
        """How many more deliveries wait under an id that is in use already."""
        self._recent: deque[tuple[int, object]] = deque(maxlen=DELIVERIES_REMEMBERED)
        self._rejected: dict[int, AmqpError] = {}
        self._plain = plain_messages()
        self._spread = Spread()
        self._sent = peer.namespace.meter.tally(path, Operation.SEND)

    def opened(self) -> None:
        self._link.grant(SEND_CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        mark = (event.delivery_id, _comparable(event.payload))
        if event.is_repeat and mark in self._recent:
            self._answer_again(event.delivery_id)
            return
        self._recent.append(mark)
        if len(self._waiting) >= UNACKNOWLEDGED_MAX:
            raise AmqpError(
                Condition.LINK_TRANSFER_LIMIT_EXCEEDED,
                f"{UNACKNOWLEDGED_MAX} deliveries wait for their acknowledgement already.",
            )
        try:
            self._take(event)
        except AmqpError as error:
            self._reject(event.delivery_id, error, settled=event.settled)
        self._link.replenish()

    def take_run(self, event: DeliveriesReceived) -> bool:
        """Take deliveries that need no look at each; False leaves all of them to on_delivery().

        Whatever is special about one of them (a ping, a mistake, a full queue) is decided there.
        """
        peer, queue, payloads = self._peer, self.queue, event.payloads
        namespace, description = peer.namespace, queue.description
        last_id = event.first_id + len(payloads) - 1
        if (
            event.message_format != FORMAT_MESSAGE
            or event.settled
            or last_id > DELIVERY_ID_MAX
            or description.status is not EntityStatus.ACTIVE
            or namespace.failure is not None
            or not namespace.faults.is_calm
            or len(self._waiting) + len(payloads) > UNACKNOWLEDGED_MAX
        ):
            return False
        sizes = list(map(len, payloads))
        size = sum(sizes)
        try:
            messages = ingest_run(payloads, description, peer.limits, peer.now, self._plain)
            if messages is None or not queue.has_room_for(size):
                return False
            self._check_rate(messages, 0)
        except AmqpError:
            return False
        ids = range(event.first_id, last_id + 1)
        self._recent.extend(
            (last_id - back, _comparable(payloads[-1 - back]))
            for back in reversed(range(min(len(payloads), DELIVERIES_REMEMBERED)))
        )
        self._waiting.update(ids)
        self._sent.took_in(len(sizes), len(sizes), units_of(sizes), size)
        peer.began_storing(size)
        queue.enqueue(messages, SendTicket(self, ids, size))
        namespace.touch(queue)
        self._link.replenish()
        return True

    def _take(self, event: DeliveryReceived) -> None:
        peer, queue = self._peer, self.queue
        namespace, description, now = peer.namespace, queue.description, peer.now
        if description.status is not EntityStatus.ACTIVE and not description.status.can_send:
            raise AmqpError(
                Condition.ENTITY_DISABLED,
                f"The {description.kind} {description.display_path!r} takes no messages: it is "
                f"{description.status}.",
            )
        if namespace.failure is not None:
            raise AmqpError(Condition.INTERNAL_ERROR, "The broker's disk failed.")
        taken = ingest(
            event.payload, event.message_format, description, peer.limits, now, self._plain
        )
        self._check_rate(taken.messages, taken.ping_count)
        if not queue.has_room_for(taken.byte_count):
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"The {description.kind} {description.display_path!r} is full: "
                f"{description.max_size_mb} MB are its quota. Receive from it, or raise "
                "max_size_mb.",
            )
        if not namespace.faults.is_calm and catch_send(namespace.faults, self, event, taken, now):
            return
        if not event.settled and taken.messages:
            self._await(event.delivery_id)
        self.store_held(event, taken)

    def _check_rate(self, messages: list[IncomingMessage], ping_count: int) -> None:
        """Raise ServerBusy if the namespace, the entity or one of the partitions has too much."""
        description, shares = self.queue.description, None
        if description.enable_partitioning:
            shares = self._spread.assign(messages, description, ping_count)
        count, now_s = len(messages) + ping_count, self._peer.now.monotonic_s
        self._peer.namespace.throttle.check(self.queue.queue_id, count, now_s, shares)

    def store_held(self, event: DeliveryReceived, taken: Ingested) -> None:
        """Store what was checked and is waited for; a ping is only acknowledged."""
        peer, queue, namespace = self._peer, self.queue, self._peer.namespace
        if taken.ping_count:
            pinged = namespace.meter.tally(self.path, Operation.PING)
            pinged.took_in(1, taken.ping_count, taken.ping_count, 0)
        if not taken.messages:
            self._accept_unstored(event)
            return
        units = units_of([len(message.record) for message in taken.messages])
        self._sent.took_in(1, len(taken.messages), units, taken.byte_count)
        peer.began_storing(taken.byte_count)
        ids = range(event.delivery_id, event.delivery_id + 1)
        queue.enqueue(taken.messages, SendTicket(self, ids, taken.byte_count))
        namespace.touch(queue)

    def store_silently(self, messages: list[IncomingMessage], ticket: SilentTicket) -> None:
        """Store messages whose sender is never told."""
        self.queue.enqueue(messages, ticket)
        self._peer.namespace.touch(self.queue)

    def hold(self, event: DeliveryReceived) -> None:
        """The answer comes later or never; until then the same transfer is not answered."""
        if not event.settled:
            self._await(event.delivery_id)

    def detach(self, error: AmqpError) -> None:
        """End the link from our side."""
        self._peer.detach(self._link, error)

    def _accept_unstored(self, event: DeliveryReceived) -> None:
        """A ping is answered like a message, and that is all that happens to it (M7)."""
        if not event.settled:
            self._waiting.discard(event.delivery_id)
            self._accepted.append(range(event.delivery_id, event.delivery_id + 1))
            self._peer.wants_flush(self)

    def _await(self, delivery_id: int) -> None:
        if delivery_id in self._waiting:
            self._again[delivery_id] = self._again.get(delivery_id, 0) + 1
        self._waiting.add(delivery_id)

    def _waits_for_another(self, delivery_id: int) -> bool:
        """One of several deliveries with this id is stored; the last one is acknowledged."""
        left = self._again.pop(delivery_id, 0)
        if left > 1:
            self._again[delivery_id] = left - 1
        return left > 0

    def acknowledge(self, ids: range, size: int) -> None:
        self._peer.ended_storing(size)
        if self._again:
            for delivery_id in ids:
                if not self._waits_for_another(delivery_id):
                    self._accept(range(delivery_id, delivery_id + 1))
        else:
            self._accept(ids)

    def _accept(self, ids: range) -> None:
        if ids.start in self._waiting:
            self._waiting.difference_update(ids)
            self._accepted.append(ids)
            self._peer.wants_flush(self)

    def refuse_stored(self, ids: range, size: int, error: Exception) -> None:
        self._peer.ended_storing(size)
        for delivery_id in ids:
            self._again.pop(delivery_id, None)
            if delivery_id in self._waiting:
                self._waiting.discard(delivery_id)
                self._reject(delivery_id, as_amqp_error(error), settled=False)
        self._peer.wants_flush(self)

    def _reject(self, delivery_id: int, error: AmqpError, *, settled: bool) -> None:
        if settled or self._link.is_detached:
            return
        self._rejected[delivery_id] = error
        if len(self._rejected) > REJECTIONS_REMEMBERED:
            del self._rejected[next(iter(self._rejected))]
        state = encode_state(Rejected(Error(error.condition, error.description, error.info)))
        self._write(delivery_id, delivery_id, state)

    def _answer_again(self, delivery_id: int) -> None:
        """The same transfer again: answer it as before, and never store it twice."""
        if delivery_id in self._waiting or any(delivery_id in ids for ids in self._accepted):
            return
        error = self._rejected.get(delivery_id)
        if error is not None:
            self._reject(delivery_id, error, settled=False)
        else:
            self._write(delivery_id, delivery_id, STATE_ACCEPTED)

    def flush(self) -> None:
        """Write the acknowledgements that have gathered, neighbours in one frame."""
        accepted, self._accepted = self._accepted, []
        if self._link.is_detached or not accepted:
            return
        first, behind = accepted[0].start, accepted[0].stop
        for ids in accepted[1:]:
            if ids.start != behind:
                self._write(first, behind - 1, STATE_ACCEPTED)
                first = ids.start
            behind = ids.stop
        self._write(first, behind - 1, STATE_ACCEPTED)

    def _write(self, first: int, last: int, state: bytes) -> None:
        session = self._link.session
        body = encode_disposition(True, first, last, True, state)
        session.connection.write(encode_frame(session.channel, body))

    def detached(self) -> None:
        """The link is gone; what waits for a commit is stored all the same."""
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Nobody is told any more what became of what was sent."""
        self._waiting.clear()
        self._again.clear()
        self._accepted.clear()


def _comparable(payload: bytes) -> object:
    """What tells one delivery from another under the same id."""
    if len(payload) <= COMPARED_BYTES_MAX:
        return payload
    half = COMPARED_BYTES_MAX // 2
    return len(payload), payload[:half], payload[-half:]


def as_amqp_error(error: Exception) -> AmqpError:
    """What a peer is told when the store refused its change."""
    if isinstance(error, AmqpError):
        return error
    if getattr(error, "is_transient", False):
        return AmqpError(
            Condition.SERVER_BUSY, "The broker's disk is full. Wait 10 seconds and try again."
        )
    return AmqpError(Condition.INTERNAL_ERROR, "The broker could not store the change.")
