"""A service that does whatever a test wants: it speaks AMQP correctly until it is told not to.

rogue.on_attach     None: accept; otherwise called with the link instead
rogue.on_delivery   None: accept; otherwise called with the event instead
rogue.token_status  what $cbs answers; None: nothing
rogue.credit        what senders are given
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from twinbus.amqp.codec.types import Int
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import (
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
)
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Disposition
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions

NODE_CREDIT = 100

Hook = Callable[["Visit", Any], None]


class Rogue:
    """What all connections have in common."""

    def __init__(self) -> None:
        self.port = 0
        self.greeting: bytes | None = None
        """Bytes to send instead of AMQP; empty: say nothing at all."""
        self.on_attach: Hook | None = None
        self.on_delivery: Hook | None = None
        self.on_disposition: Hook | None = None
        self.on_request: Hook | None = None
        self.token_status: int | None = 202
        self.credit = 100
        self.limits = AmqpLimits()
        self.keeps_credit = False
        """Never answer a drain."""
        self.visits: list[Visit] = []
        self.tokens: list[Message] = []
        self.taken: list[bytes] = []

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=root;"
            "SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
        )

    def driver(self, options: AmqpOptions | None = None) -> AmqpDriver:
        return AmqpDriver.from_connection_string(self.connection_string, options)


class Visit(asyncio.Protocol):
    """One connection."""

    def __init__(self, rogue: Rogue) -> None:
        self.rogue = rogue
        self.replies: dict[str, SenderLink] = {}
        self.engine = Connection(
            Role.SERVER, ConnectionOptions(container_id="rogue", limits=rogue.limits)
        )
        self.is_over = False
        self.is_mute = False
        """Say nothing any more, and send no heartbeats."""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self.rogue.visits.append(self)
        if self.rogue.greeting:
            transport.write(self.rogue.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True

    def data_received(self, data: bytes) -> None:
        if self.rogue.greeting is not None:
            return
        self.engine.feed(data)
        while (events := self.engine.next_events()) is not None:
            for event in events:
                self._on_event(event)
        self.flush()

    def flush(self) -> None:
        data = self.engine.take_output()
        if data and not self.is_mute and not self.transport.is_closing():
            self.transport.write(data)

    def hang_up(self) -> None:
        self.transport.abort()

    def _on_event(self, event: Event) -> None:
        match event:
            case LinkAttached():
                self._on_attach(event.link)
            case DeliveriesReceived():
                for single in event.singles():
                    self._on_delivery(single)
            case DeliveryReceived():
                self._on_delivery(event)
            case CreditChanged() if event.link.is_draining and not self.rogue.keeps_credit:
                event.link.complete_drain()
            case DispositionReceived() if self.rogue.on_disposition is not None:
                self.rogue.on_disposition(self, event)

    def _on_attach(self, link: SenderLink | ReceiverLink) -> None:
        address = link.peer.target if isinstance(link, ReceiverLink) else link.peer.source
        node = str(address.address) if address is not None else ""  # type: ignore[union-attr]
        if "$" in node:
            self.accept(link)
            if isinstance(link, SenderLink):
                self.replies[node] = link
            else:
                link.owner = node
                link.grant(NODE_CREDIT)
        elif self.rogue.on_attach is not None:
            self.rogue.on_attach(self, link)
        else:
            self.accept(link)

    def accept(self, link: SenderLink | ReceiverLink) -> None:
        link.accept(source=link.peer.source, target=link.peer.target)
        if isinstance(link, ReceiverLink) and self.rogue.credit:
            link.grant(self.rogue.credit)

    def _on_delivery(self, event: DeliveryReceived) -> None:
        if event.link.owner == "$cbs":
            self._on_token(Message.decode(event.payload))
        elif event.link.owner is not None:
            if self.rogue.on_request is not None:
                self.rogue.on_request(self, (event.link.owner, Message.decode(event.payload)))
        elif self.rogue.on_delivery is not None:
            self.rogue.on_delivery(self, event)
        else:
            self.rogue.taken.append(event.payload)
            self.settle(event, Accepted())

    def _on_token(self, message: Message) -> None:
        self.rogue.tokens.append(message)
        if self.rogue.token_status is not None:
            told = {"status-code": Int(self.rogue.token_status), "status-description": "so it is"}
            self.reply("$cbs", message, told)

    def reply(self, node: str, question: Message, told: dict[str, Any], body: Any = None) -> None:
        assert question.properties is not None
        answer = Message(
            properties=Properties(correlation_id=question.properties.message_id),
            application_properties=told,
            body=AmqpValue(body),
        )
        self.replies[node].send(answer.encode(), b"reply", settled=True)

    def settle(self, event: DeliveryReceived, state: Any, *, settled: bool = True) -> None:
        self.disposition(event, event.delivery_id, event.delivery_id, state, settled=settled)

    def disposition(
        self, event: DeliveryReceived, first: int, last: int, state: Any, *, settled: bool = True
    ) -> None:
        event.link.session.send(Disposition(True, first, last, settled, state))


@asynccontextmanager
async def rogue_service() -> AsyncIterator[Rogue]:
    rogue = Rogue()
    server = await asyncio.get_running_loop().create_server(lambda: Visit(rogue), "127.0.0.1", 0)
    rogue.port = server.sockets[0].getsockname()[1]
    yield rogue
    server.close()
    for visit in rogue.visits:
        visit.transport.abort()
    await server.wait_closed()
