"""The handler of a link on which a client sends to a queue or topic.

Every refusal is a rejected delivery with its own condition, because that is the only form in
which the Azure SDK passes the reason to its caller; the link stays attached. An acknowledgement is
written after the commit, and consecutive ones share one frame.

Rule 1: of a delivery only its numbers and the state that answered it are kept. A kept
        error would keep its traceback, the traceback its frames, and the frames the payload.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from twinbus.amqp.delivery_states import STATE_ACCEPTED, Error, Rejected, encode_state
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import DeliveriesReceived, DeliveryReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.transfers import encode_disposition
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.descriptions import EntityStatus
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import IncomingMessage, PartitionAssigner
from twinbus.broker.faults.injection import SilentAck, inject_send
from twinbus.broker.server.ingest import (
    FORMAT_MESSAGE,
    Ingested,
    Ingestion,
    ingest_run,
    plain_messages,
)
from twinbus.broker.throttle import MESSAGE_OVERHEAD_BYTES
from twinbus.cost.units import Operation, units_of

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

# Credit for a sender: enough that a pipeline never waits for a flow frame.
SEND_CREDIT = 2_000
# The Azure SDK assumes 10,000 credits before it has received any; more at once is a flood.
UNACKNOWLEDGED_MAX = 20_000
# Deliveries and outcomes remembered for the Azure SDK: its aio sender, used from several tasks
# at once, sends a transfer twice, and also two messages under one delivery id. No rejection is
# needed that is older than these deliveries.
DELIVERIES_REMEMBERED = 16
# Of a longer payload only both ends are compared.
COMPARED_BYTES_MAX = 4_096


class SendAck:
    """Deliveries that were received together and wait for their commit."""

    __slots__ = ("_delivery_ids", "_link", "_load")

    def __init__(self, link: IncomingLink, delivery_ids: range, load: int) -> None:
        self._link = link
        self._delivery_ids = delivery_ids
        self._load = load

    def stored(self, seqs: range) -> None:
        self._link.acknowledge(self._delivery_ids, self._load)

    def failed(self, error: Exception) -> None:
        self._link.refuse_stored(self._delivery_ids, self._load, error)


class IncomingLink:
    """Handles the deliveries of a client that sends."""

    claim = Claim.SEND

    def __init__(self, peer: ClientConnection, link: ReceiverLink, queue: Queue, path: str) -> None:
        self._peer = peer
        self._link = link
        self.queue = queue
        self.path = path
        self._accepted: list[range] = []
        self._waiting: set[int] = set()
        self._again: dict[int, int] = {}
        """How many more deliveries wait under an id that is already in use."""
        self._recent: deque[int] = deque(maxlen=DELIVERIES_REMEMBERED)
        """The marks of the last deliveries."""
        self._unmarked: tuple[int, list[bytes]] | None = None
        """The last id and payloads of a run that has no marks yet: see _remember_run()."""
        self._rejected: dict[int, bytes] = {}
        """The state with which each of them was rejected."""
        self._plain = plain_messages()
        self._spread = PartitionAssigner()
        self._sent = peer.namespace.meter.counter(path, Operation.SEND)

    def opened(self) -> None:
        self._link.grant(SEND_CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        self._mark_run()
        mark = mark_of(event.delivery_id, event.payload)
        if event.is_repeat and mark in self._recent:
            self._answer_again(event.delivery_id)
            return
        self._recent.append(mark)
        if len(self._waiting) >= UNACKNOWLEDGED_MAX:
            raise AmqpError(
                Condition.LINK_TRANSFER_LIMIT_EXCEEDED,
                f"A link must have at most {UNACKNOWLEDGED_MAX} unacknowledged deliveries.",
            )
        try:
            self._take(event)
        except AmqpError as error:
            self._reject(event.delivery_id, refusal(error), settled=event.settled)
        self._link.replenish()

    def take_run(self, event: DeliveriesReceived) -> int:
        """Accept deliveries that need no separate check; returns how many, from the first on.

        The others are left to on_delivery(), which handles every special case (a ping, an invalid
        message, a full queue).
        """
        peer, queue, payloads = self._peer, self.queue, event.payloads
        namespace, description = peer.namespace, queue.description
        if (
            event.message_format != FORMAT_MESSAGE
            or event.settled
            # The deliveries of a run that would wrap around are handled one by one.
            or event.first_id + len(payloads) - 1 > UINT_MAX
            or description.status is not EntityStatus.ACTIVE
            or queue.is_deleted
            or namespace.failure is not None
            or not namespace.faults.has_no_faults
            or len(self._waiting) + len(payloads) > UNACKNOWLEDGED_MAX
        ):
            return 0
        try:
            messages = ingest_run(
                payloads, description, peer.limits, peer.now, self._plain, peer.turn_ends_s
            )
            if len(messages) < len(payloads):
                if not messages:
                    return 0
                payloads = payloads[: len(messages)]
            sizes = list(map(len, payloads))
            size = sum(sizes)
            if not queue.has_room_for(size):
                return 0
            self._check_rate(Ingested(messages, 0, size))
        except AmqpError:
            return 0
        last_id = event.first_id + len(payloads) - 1
        ids = range(event.first_id, last_id + 1)
        self._remember_run(last_id, payloads)
        self._waiting.update(ids)
        self._sent.add_incoming(len(sizes), len(sizes), units_of(sizes), size)
        load = size + MESSAGE_OVERHEAD_BYTES * len(messages)
        peer.began_storing(load)
        queue.enqueue(messages, SendAck(self, ids, load))
        namespace.touch(queue)
        self._link.replenish()
        return len(payloads)

    def _remember_run(self, last_id: int, payloads: list[bytes]) -> None:
        """Remember the last deliveries of a run. Their marks are computed when a single delivery
        is received or the acknowledgements are written: a stream of runs needs those of the last
        one only, and the payloads are in memory until then anyway."""
        if len(payloads) < DELIVERIES_REMEMBERED:
            self._mark_run()
        self._unmarked = last_id, payloads[-DELIVERIES_REMEMBERED:]

    def _mark_run(self) -> None:
        if self._unmarked is not None:
            last_id, payloads = self._unmarked
            self._unmarked = None
            self._recent.extend(
                map(mark_of, range(last_id + 1 - len(payloads), last_id + 1), payloads)
            )

    def _take(self, event: DeliveryReceived) -> None:
        peer, description = self._peer, self.queue.description
        self._check_open()
        ingestion = Ingestion(
            event.payload,
            event.message_format,
            description,
            peer.limits,
            peer.now,
            self._plain,
            self._spread,
        )
        if ingestion.go_on(peer.turn_ends_s):
            self._take_whole(event, ingestion.taken)
        else:
            peer.unfinished = partial(self._go_on, event, ingestion)

    def _go_on(self, event: DeliveryReceived, ingestion: Ingestion, stop_s: float) -> bool:
        """Check the next slice of a batch; whether it was the last one.

        Meanwhile the link may have been closed, its token may have expired, or the queue may have
        been deleted: then nothing of the batch is stored, and it is not acknowledged.
        """
        if self._link.is_detached:
            return True
        try:
            if not ingestion.go_on(stop_s):
                return False
            self._check_open()
            self._take_whole(event, ingestion.taken)
        except AmqpError as error:
            self._reject(event.delivery_id, refusal(error), settled=event.settled)
        self._peer.wants_flush(self)
        return True

    def _check_open(self) -> None:
        """Raise unless the queue accepts messages and the disk works."""
        description = self.queue.description
        if description.status is not EntityStatus.ACTIVE and not description.status.can_send:
            raise AmqpError(
                Condition.ENTITY_DISABLED,
                f"The {description.kind} {description.display_path!r} does not accept messages: "
                f"its status is {description.status}.",
            )
        if self.queue.is_deleted:
            raise AmqpError(
                Condition.NOT_FOUND,
                f"The {description.kind} {description.display_path!r} was deleted.",
            )
        if self._peer.namespace.failure is not None:
            raise AmqpError(Condition.INTERNAL_ERROR, "The broker's disk failed.")

    def _take_whole(self, event: DeliveryReceived, taken: Ingested) -> None:
        """Store the checked messages, if there is room for all of them."""
        namespace, queue, now = self._peer.namespace, self.queue, self._peer.now
        description = queue.description
        self._check_rate(taken)
        if not queue.has_room_for(taken.byte_count):
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"The {description.kind} {description.display_path!r} is full: its quota is "
                f"{description.max_size_mb} MB. Receive messages, or raise max_size_mb.",
            )
        if not namespace.faults.has_no_faults and inject_send(
            namespace.faults, self, event, taken, now
        ):
            return
        if not event.settled and taken.messages:
            self._await(event.delivery_id)
        self.store_held(event, taken)

    def _check_rate(self, taken: Ingested) -> None:
        """Raise ServerBusy if the namespace, the entity or one of the partitions is throttled."""
        description, peer, shares = self.queue.description, self._peer, taken.shares
        count = len(taken.messages) + taken.ping_count
        if description.enable_partitioning:
            # Messages of slices already have their partitions, but pings do not.
            left = taken.messages if shares is None else []
            shares = self._spread.assign(left, description, taken.ping_count) + (
                shares or Counter()
            )
        now_s = peer.now.monotonic_s
        peer.namespace.throttle.check(self.queue.queue_id, count, now_s, shares, peer.pending)

    def store_held(self, event: DeliveryReceived, taken: Ingested) -> None:
        """Store the checked messages of a delivery; a ping is only acknowledged."""
        peer, queue, namespace = self._peer, self.queue, self._peer.namespace
        if taken.ping_count:
            pinged = namespace.meter.counter(self.path, Operation.PING)
            pinged.add_incoming(1, taken.ping_count, taken.ping_count, 0)
        if not taken.messages:
            self._accept_unstored(event)
            return
        units = units_of([len(message.record) for message in taken.messages])
        self._sent.add_incoming(1, len(taken.messages), units, taken.byte_count)
        load = taken.byte_count + MESSAGE_OVERHEAD_BYTES * len(taken.messages)
        peer.began_storing(load)
        ids = range(event.delivery_id, event.delivery_id + 1)
        queue.enqueue(taken.messages, SendAck(self, ids, load))
        namespace.touch(queue)

    def store_silently(self, messages: list[IncomingMessage], ticket: SilentAck) -> None:
        """Store messages that are never acknowledged."""
        self.queue.enqueue(messages, ticket)
        self._peer.namespace.touch(self.queue)

    def hold(self, event: DeliveryReceived) -> None:
        """The answer is sent later or never; until then a repeated transfer is not answered."""
        if not event.settled:
            self._await(event.delivery_id)

    def detach(self, error: AmqpError) -> None:
        """Detach the link from the broker's side."""
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

    def acknowledge(self, ids: range, load: int) -> None:
        self._peer.ended_storing(load)
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

    def refuse_stored(self, ids: range, load: int, error: Exception) -> None:
        self._peer.ended_storing(load)
        state = refusal(as_amqp_error(error))
        for delivery_id in ids:
            self._again.pop(delivery_id, None)
            if delivery_id in self._waiting:
                self._waiting.discard(delivery_id)
                self._reject(delivery_id, state, settled=False)
        self._peer.wants_flush(self)

    def _reject(self, delivery_id: int, state: bytes, *, settled: bool) -> None:
        if settled or self._link.is_detached:
            return
        self._rejected[delivery_id] = state
        if len(self._rejected) > DELIVERIES_REMEMBERED:
            del self._rejected[next(iter(self._rejected))]
        self._write(delivery_id, delivery_id, state)

    def _answer_again(self, delivery_id: int) -> None:
        """The same transfer again: answer it as before, and never store it twice."""
        if delivery_id in self._waiting or any(delivery_id in ids for ids in self._accepted):
            return
        state = self._rejected.get(delivery_id)
        if state is not None:
            self._reject(delivery_id, state, settled=False)
        else:
            self._write(delivery_id, delivery_id, STATE_ACCEPTED)

    def flush(self) -> None:
        """Write the collected acknowledgements, consecutive ones in one frame."""
        self._mark_run()
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
        """The link is detached; what waits for a commit is stored all the same."""
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Answer none of the deliveries that wait."""
        self._unmarked = None
        self._waiting.clear()
        self._again.clear()
        self._accepted.clear()
        self._rejected.clear()


def mark_of(delivery_id: int, payload: bytes) -> int:
    """A hash that distinguishes deliveries with the same id, without keeping the payload."""
    size = len(payload)
    if size > COMPARED_BYTES_MAX:
        half = COMPARED_BYTES_MAX // 2
        payload = payload[:half] + payload[-half:]
    return hash((delivery_id, size, payload))


def refusal(error: AmqpError) -> bytes:
    """The state that answers a refused delivery; equal ones are the same object."""
    if error.info:
        return encode_state(Rejected(Error(error.condition, error.description, error.info)))
    return _refusal(error.condition, error.description)


@lru_cache(maxsize=256)
def _refusal(condition: str, description: str) -> bytes:
    return encode_state(Rejected(Error(condition, description, None)))


def as_amqp_error(error: Exception) -> AmqpError:
    """The error for a client whose change was refused by the store."""
    if isinstance(error, AmqpError):
        return error
    if getattr(error, "is_transient", False):
        return AmqpError(
            Condition.SERVER_BUSY, "The broker's disk is full. Wait 10 seconds and try again."
        )
    return AmqpError(Condition.INTERNAL_ERROR, "The broker could not store the change.")
