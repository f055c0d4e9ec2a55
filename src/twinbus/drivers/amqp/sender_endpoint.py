"""Our endpoint of a link to a queue or topic: deliveries out, outcomes in.

    post() --> waiting --credit, window, buffer--> under way --disposition--> outcome

Rule 1: as many deliveries are under way as the service grants credit for; none waits for the
        outcome of the one before.
Rule 2: bytes that were written to the socket are never sent again here. A delivery that was not
        written when the link was lost is NotSent, and may be sent on another link.
Rule 3: the outcome decides, whatever the service calls it: only "accepted" is a success.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.delivery_states import Accepted, DeliveryState, Received, Rejected
from twinbus.amqp.events import DispositionReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.performatives import ROLE_SENDER
from twinbus.amqp.transfers import encode_disposition
from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.errors import ABOUT_ONE_MESSAGE, ConnectionLoss, refusal
from twinbus.drivers.amqp.link_endpoint import LinkEndpoint
from twinbus.drivers.interface import LinkProperties
from twinbus.errors import LinkDetached, ServiceError, ServiceInternalError

_NULL: Final = b"\x40"

# The limit of Service Bus if it reports none: its Standard tier.
MESSAGE_BYTES_MAX_DEFAULT: Final = 262_144
BATCH_BYTES_MAX: Final = Symbol("com.microsoft:max-message-batch-size")


class NotSent(Exception):
    """The link was lost before a delivery was written to the socket."""

    def __init__(self, loss: ConnectionLoss) -> None:
        self.loss = loss
        super().__init__(loss)


class PendingDelivery:
    """One delivery under way, and the call that waits for it."""

    __slots__ = ("future", "message_format", "payload", "written_at_flush")

    def __init__(self, payload: bytes, message_format: int, future: asyncio.Future[None]) -> None:
        self.payload = payload
        self.message_format = message_format
        self.future = future
        self.written_at_flush: int | None = None
        """The connection's count of flushes when it was written; None while it waits."""

    def expire(self) -> None:
        """The caller's time is over."""
        if not self.future.done():
            self.future.set_exception(TimeoutError())


class SenderEndpoint(LinkEndpoint):
    """Sends deliveries to one entity."""

    def __init__(self, connection: AmqpConnection, path: str, name: str) -> None:
        super().__init__(connection, path)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingDelivery] = deque()
        self._under_way: dict[int, PendingDelivery] = {}
        self.link = self.attach_sender(path, name)
        self.facts = LinkProperties(MESSAGE_BYTES_MAX_DEFAULT)

    def on_open(self) -> None:
        answer = self.link.peer
        batch_bytes_max = (answer.properties or {}).get(BATCH_BYTES_MAX)
        self.facts = LinkProperties(
            answer.max_message_size or MESSAGE_BYTES_MAX_DEFAULT,
            batch_bytes_max if isinstance(batch_bytes_max, int) else None,
        )

    def post(self, payload: bytes, message_format: int) -> PendingDelivery:
        """Send one delivery, now or as soon as there is credit; its future is the outcome."""
        outgoing = PendingDelivery(payload, message_format, self._loop.create_future())
        if self.loss is not None:
            outgoing.future.set_exception(NotSent(self.loss))
        elif self._waiting or not self._has_room:
            self._waiting.append(outgoing)
        else:
            self._write(outgoing)
        return outgoing

    def has_left(self, outgoing: PendingDelivery) -> bool:
        """Whether bytes of it may have reached the service."""
        written = outgoing.written_at_flush
        return written is not None and self.connection.flush_count > written

    @property
    def _has_room(self) -> bool:
        return self.link.credit > 0 and self.connection.can_write and not self.session.is_blocked

    def _write(self, outgoing: PendingDelivery) -> None:
        link = self.link
        tag = link.delivery_count.to_bytes(4, "big")
        outgoing.written_at_flush = self.connection.flush_count
        delivery_id = link.send(
            outgoing.payload, tag, settled=False, message_format=outgoing.message_format
        )
        outgoing.payload = b""
        self._under_way[delivery_id] = outgoing
        self.connection.wants_flush()

    def on_room(self) -> None:
        waiting = self._waiting
        while waiting and self._has_room:
            outgoing = waiting.popleft()
            if not outgoing.future.done():
                self._write(outgoing)

    def forget(self, outgoing: PendingDelivery) -> None:
        """No call waits for it any more; if it was not written yet, it is not sent."""
        outgoing.payload = b""
        waiting = self._waiting
        while waiting and waiting[0].future.done():
            waiting.popleft()
        self.close_if_unused()

    # -- outcomes -------------------------------------------------------------------------

    def on_disposition(self, event: DispositionReceived) -> None:
        if not event.role or isinstance(event.state, Received):
            return
        if event.state is None and not event.settled:
            return
        if not event.settled:
            self._settle(event.first, event.last)
        for delivery_id in self._named(event.first, event.last):
            outgoing = self._under_way.pop(delivery_id)
            if outgoing.future.done():
                continue
            if type(event.state) is Accepted:
                outgoing.future.set_result(None)
            else:
                outgoing.future.set_exception(self._refusal(event.state))
        self.close_if_unused()

    def _named(self, first: int, last: int) -> list[int]:
        """The deliveries under way in the range of a disposition."""
        under_way, span = self._under_way, (last - first) & UINT_MAX
        if span == 0:
            return [first] if first in under_way else []
        if span < len(under_way):
            ids = ((first + offset) & UINT_MAX for offset in range(span + 1))
            return [each for each in ids if each in under_way]
        return [each for each in under_way if (each - first) & UINT_MAX <= span]

    def _settle(self, first: int, last: int) -> None:
        """A service that settles second waits until we have settled."""
        body = encode_disposition(ROLE_SENDER, first, last, True, _NULL)
        self.connection.write(encode_frame(self.session.channel, body))

    def _refusal(self, state: DeliveryState | None) -> ServiceError:
        if isinstance(state, Rejected) and state.error is not None:
            return refusal(state.error, path=self.path)
        outcome = "none" if state is None else type(state).__name__.lower()
        error = ServiceInternalError(
            f"The service did not accept a message for {self.path!r}: outcome is {outcome!r}",
            path=self.path,
        )
        error.is_ambiguous = state is None
        return error

    # -- the end --------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return any(not each.future.done() for each in self._all())

    def _all(self) -> list[PendingDelivery]:
        return [*self._under_way.values(), *self._waiting]

    def abort(self, loss: ConnectionLoss) -> None:
        pending = [each for each in self._all() if not each.future.done()]
        if len(pending) > 1 and issubclass(loss.kind, ABOUT_ONE_MESSAGE):
            loss = ConnectionLoss(LinkDetached, loss.sentence, loss.condition)
        self._under_way.clear()
        self._waiting.clear()
        for outgoing in pending:
            # Our own close is written after these frames, so they are sent as well.
            is_sent_yet = loss.is_final and outgoing.written_at_flush is not None
            if is_sent_yet or self.has_left(outgoing):
                outgoing.future.set_exception(loss.error(self.path, was_sent=True))
            else:
                outgoing.future.set_exception(NotSent(loss))
