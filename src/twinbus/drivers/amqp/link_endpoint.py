"""Our endpoint of a link: what senders, receivers and requests have in common.

    LinkEndpoint            a session of its own with a link in it
    ├── SenderEndpoint      sender_endpoint.py
    ├── ReceiverEndpoint    receiver_endpoint.py
    └── RequestNode         request_nodes.py: two links, for requests and for their responses

Rule 1: every endpoint has a session of its own, so that delivery ids of one receiver follow one
        another (a thousand messages are settled with one frame), and a failure affects one link.
Rule 2: an endpoint is lost once and for good, with a ConnectionLoss; a new one replaces it when a
        call needs it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from twinbus.amqp.events import (
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetachedEvent,
    LinkDrained,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach, Source, Target
from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.errors import ConnectionLoss, closed_loss, detach_loss

UNSETTLED: Final = 0
SETTLED: Final = 1
FIRST: Final = 0
SECOND: Final = 1

AnyLink = TypeVar("AnyLink", SenderLink, ReceiverLink)


class LinkEndpoint:
    """One session and the links in it."""

    holds_connection = True
    """Whether a retired connection is still needed because of it."""

    def __init__(self, connection: AmqpConnection, path: str) -> None:
        self.connection = connection
        self.path = path
        self.loss: ConnectionLoss | None = None
        self.session = connection.begin(self)
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._links: list[SenderLink | ReceiverLink] = []
        self._unanswered_count = 0
        self._is_replaced = False

    @property
    def is_open(self) -> bool:
        return self.loss is None

    @property
    def is_fresh(self) -> bool:
        """Whether a new call should use it."""
        return self.loss is None and self.connection.is_usable

    # -- attaching ------------------------------------------------------------------------

    def attach_sender(self, address: str, name: str) -> SenderLink:
        link = self.session.attach_sender(
            Attach(
                name=name,
                handle=len(self._links),
                role=ROLE_SENDER,
                snd_settle_mode=UNSETTLED,
                rcv_settle_mode=FIRST,
                source=Source(address=name),
                target=Target(address=address),
                initial_delivery_count=0,
            )
        )
        return self._expect(link)

    def attach_receiver(
        self,
        source: Source,
        name: str,
        *,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        properties: dict[Any, Any] | None = None,
    ) -> ReceiverLink:
        link = self.session.attach_receiver(
            Attach(
                name=name,
                handle=len(self._links),
                role=ROLE_RECEIVER,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=Target(address=name),
                properties=properties,
            )
        )
        return self._expect(link)

    def _expect(self, link: AnyLink) -> AnyLink:
        link.owner = self
        self._links.append(link)
        self._unanswered_count += 1
        self.connection.wants_flush()
        return link

    async def wait_attached(self) -> None:
        """Wait until the service has answered every attach; closes everything if it does not, or
        if the caller's time is over."""
        try:
            await asyncio.shield(self._attached)
        except BaseException:
            self.close()
            raise

    def _on_attached(self, event: LinkAttached) -> None:
        answer = event.link.peer
        terminus = answer.target if isinstance(event.link, SenderLink) else answer.source
        if terminus is None:
            return  # A refusal: the reason follows in a detach.
        self._unanswered_count -= 1
        if not self._unanswered_count and not self._attached.done():
            self._attached.set_result(None)
            self.on_open()

    # -- events -----------------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        """Handle an event of this session; events after the loss are ignored."""
        if self.loss is not None:
            return
        match event:
            case DeliveriesReceived():
                self.on_deliveries(event)
            case DispositionReceived():
                self.on_disposition(event)
            case DeliveryReceived():
                self.on_delivery(event)
            case CreditChanged() | WindowOpened() | SessionBegun():
                self.on_room()
            case LinkDrained():
                self.on_drained()
            case LinkAttached():
                self._on_attached(event)
            case LinkDetachedEvent() | SessionEnded():
                self.lost(detach_loss(event.error, self.path, was_open=self._attached.done()))
                if isinstance(event, LinkDetachedEvent):
                    self.close()

    def on_open(self) -> None:
        """Every link is attached."""

    def on_room(self) -> None:
        """There may be credit, window or buffer space to send more."""

    def on_delivery(self, event: DeliveryReceived) -> None:
        """A message has arrived."""

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Messages have arrived."""
        for single in event.singles():
            self.on_delivery(single)

    def on_disposition(self, event: DispositionReceived) -> None:
        """The service reports the outcome of deliveries."""

    def on_drained(self) -> None:
        """The service has returned the credit."""

    def lost(self, loss: ConnectionLoss) -> None:
        """The link, the session or the connection is gone."""
        if self.loss is not None:
            return
        self.loss = loss
        self.connection.leave(self)
        if not self._attached.done():
            self._attached.set_exception(loss.error(self.path, was_sent=False))
            self._attached.exception()  # The caller that attaches may have been cancelled.
        self.abort(loss)

    def abort(self, loss: ConnectionLoss) -> None:
        """End every call that waits here."""

    @property
    def is_busy(self) -> bool:
        """Whether a call waits here."""
        return False

    def close_when_idle(self) -> None:
        """Another endpoint has replaced this one: close as soon as no call waits here."""
        self._is_replaced = True
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if self._is_replaced and not self.is_busy:
            self.close()

    def close(self) -> None:
        """Close links and session. For the service, the end of a session detaches all links in
        it."""
        self.lost(closed_loss(f"The link to {self.path!r}"))
        if not self.session.is_ended and self.connection.loss is None:
            self.session.end()
            self.connection.wants_flush()
