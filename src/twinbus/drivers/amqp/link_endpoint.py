"""Our end of a link: what senders, receivers and requests have in common.

    LinkEndpoint                a session of its own with a link in it
    ├── SendingEnd     sender_endpoint.py
    ├── ReceivingEnd   receiver_endpoint.py
    └── Node           request_nodes.py: two links, for requests and for their answers

Rule 1: every end has a session to itself, so that delivery ids of one receiver follow one another
        (a thousand messages are settled with one frame), and trouble stays where it began.
Rule 2: an end is lost once and for good, with a Loss; a new one takes its place when somebody
        needs it.
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
from twinbus.drivers.amqp.errors import ConnectionLoss, closed_by_us, detached

UNSETTLED: Final = 0
SETTLED: Final = 1
FIRST: Final = 0
SECOND: Final = 1

AnyLink = TypeVar("AnyLink", SenderLink, ReceiverLink)


class LinkEndpoint:
    """One session, the links in it, and what became of them."""

    holds_line = True
    """Whether a retired line is still needed because of it."""

    def __init__(self, line: AmqpConnection, path: str) -> None:
        self.line = line
        self.path = path
        self.loss: ConnectionLoss | None = None
        self.session = line.begin(self)
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._links: list[SenderLink | ReceiverLink] = []
        self._unanswered_count = 0
        self._is_leaving = False

    @property
    def is_open(self) -> bool:
        return self.loss is None

    @property
    def is_fresh(self) -> bool:
        """Whether a new call should use it."""
        return self.loss is None and self.line.is_usable

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
        self.line.wants_flush()
        return link

    async def attached(self) -> None:
        """Wait until the service has answered every attach; lets go of everything if it does not,
        or if the caller has no more time."""
        try:
            await asyncio.shield(self._attached)
        except BaseException:
            self.close()
            raise

    def _on_attached(self, event: LinkAttached) -> None:
        answer = event.link.peer
        place = answer.target if isinstance(event.link, SenderLink) else answer.source
        if place is None:
            return  # A refusal: the reason follows in a detach.
        self._unanswered_count -= 1
        if not self._unanswered_count and not self._attached.done():
            self._attached.set_result(None)
            self.opened()

    # -- what happens -----------------------------------------------------------------------

    def on_event(self, event: Any) -> None:
        """Something happened on this session; nothing is heard after the loss."""
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
                self.lost(detached(event.error, self.path, was_open=self._attached.done()))
                if isinstance(event, LinkDetachedEvent):
                    self.close()

    def opened(self) -> None:
        """Every link is attached."""

    def on_room(self) -> None:
        """There may be credit, window or buffer to send more."""

    def on_delivery(self, event: DeliveryReceived) -> None:
        """A message came."""

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Messages came."""
        for single in event.singles():
            self.on_delivery(single)

    def on_disposition(self, event: DispositionReceived) -> None:
        """The service says what became of deliveries."""

    def on_drained(self) -> None:
        """The service has given the credit back."""

    def lost(self, loss: ConnectionLoss) -> None:
        """The link, the session or the line is gone."""
        if self.loss is not None:
            return
        self.loss = loss
        self.line.leave(self)
        if not self._attached.done():
            self._attached.set_exception(loss.error(self.path, was_sent=False))
            self._attached.exception()  # The one who attaches may have left.
        self.abort(loss)

    def abort(self, loss: ConnectionLoss) -> None:
        """End every call that waits here."""

    @property
    def is_busy(self) -> bool:
        """Whether a call waits here."""
        return False

    def close_when_idle(self) -> None:
        """Another end took over: go as soon as nobody waits here any more."""
        self._is_leaving = True
        self.maybe_leave()

    def maybe_leave(self) -> None:
        if self._is_leaving and not self.is_busy:
            self.close()

    def close(self) -> None:
        """Let go of links and session. The service takes the end of a session for a detach of
        all that is in it."""
        self.lost(closed_by_us(f"the link to {self.path!r}"))
        if not self.session.is_ended and self.line.loss is None:
            self.session.end()
            self.line.wants_flush()
