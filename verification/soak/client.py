"""A lean asyncio client on our own AMQP engine: one connection, one session, a few links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    Opened,
    SessionBegun,
)
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted, Attach, Disposition, Source, Target
from twinbus.amqp.session import Session

ANSWER_TIMEOUT_S = 60.0
SESSION_FILTER = Symbol("com.microsoft:session-filter")


class ClientError(Exception):
    """The broker did not do what it was asked."""


class Client(asyncio.Protocol):
    """One connection. Waiters are futures by what they wait for; deliveries go to a callback."""

    def __init__(self) -> None:
        self._connection = Connection(
            Role.CLIENT, ConnectionOptions(container_id="soak", hostname="localhost")
        )
        self._transport: asyncio.Transport | None = None
        self._waiters: dict[Any, asyncio.Future[Any]] = {}
        self._takers: dict[int, Callable[[DeliveryReceived], None]] = {}
        self._handle = 0
        self._session: Session | None = None
        self.is_closed = False

    @classmethod
    async def connect(cls, port: int, token: str) -> Client:
        """Open a connection and show a token."""
        loop = asyncio.get_running_loop()
        _transport, client = await loop.create_connection(cls, "127.0.0.1", port)
        await client._wait(Opened)
        client._session = client._connection.begin_session()
        await client._wait(SessionBegun)
        await client._show(token, port)
        return client

    # -- plumbing -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.note_read(time.monotonic())
        for event in self._connection.receive(data):
            if isinstance(event, DeliveriesReceived):
                for single in event.singles():
                    self._on_event(single)
            else:
                self._on_event(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ClientError("the connection was lost"))
        self._waiters.clear()

    def _flush(self) -> None:
        if self._transport is not None and self._connection.has_output:
            self._transport.write(self._connection.take_output())

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveryReceived():
                self._takers[id(event.link)](event)
            case DispositionReceived():
                for delivery_id in range(event.first, event.last + 1):
                    self._tell((event.role, delivery_id), event.state)
            case LinkAttached():
                self._tell(id(event.link), event.link)
            case LinkDetachedEvent():
                error = ClientError(f"a link was detached: {event.error}")
                self._tell(id(event.link), error)
                self._tell(("credit", id(event.link)), error)
            case CreditChanged():
                self._tell(("credit", id(event.link)), None)
            case ConnectionClosed():
                if self._transport is not None:
                    self._transport.close()
            case Opened() | SessionBegun():
                self._tell(type(event), None)

    def _tell(self, what: Any, result: Any) -> None:
        waiter = self._waiters.pop(what, None)
        if waiter is None or waiter.done():
            return
        if isinstance(result, ClientError):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)

    async def _wait(self, what: Any) -> Any:
        if self.is_closed:
            raise ClientError("the connection is closed")
        waiter = self._waiters[what] = asyncio.get_running_loop().create_future()
        self._flush()
        return await asyncio.wait_for(waiter, ANSWER_TIMEOUT_S)

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise ClientError("the session is not open")
        return self._session

    def close(self) -> None:
        if self._transport is not None:
            self._connection.close()
            self._flush()
            self._transport.close()

    # -- links ----------------------------------------------------------------------------

    async def sender(self, address: str) -> SenderLink:
        handle, self._handle = self._handle, self._handle + 1
        link = self._open_session.attach_sender(
            Attach(
                name=f"soak-{handle}",
                handle=handle,
                role=False,
                snd_settle_mode=0,
                rcv_settle_mode=0,
                source=Source(address=f"soak-{handle}"),
                target=Target(address=address),
                initial_delivery_count=0,
            )
        )
        await self._wait(id(link))
        while link.credit <= 0:
            await self._wait(("credit", id(link)))
        return link

    async def receiver(
        self, address: str, take: Callable[[DeliveryReceived], None], **source: Any
    ) -> ReceiverLink:
        handle, self._handle = self._handle, self._handle + 1
        link = self._open_session.attach_receiver(
            Attach(
                name=f"soak-{handle}",
                handle=handle,
                role=True,
                snd_settle_mode=0,
                rcv_settle_mode=1,
                source=Source(address=address, **source),
                target=Target(address=f"soak-{handle}"),
            )
        )
        self._takers[id(link)] = take
        await self._wait(id(link))
        return link

    def grant(self, link: ReceiverLink, credit: int) -> None:
        link.grant(credit)
        self._flush()

    async def detach(self, link: SenderLink | ReceiverLink) -> None:
        link.detach()
        self._takers.pop(id(link), None)
        self._flush()

    # -- work -----------------------------------------------------------------------------

    async def send(self, link: SenderLink, payload: bytes) -> None:
        """Send one message; it is on disk when this returns."""
        while link.credit <= 0:
            await self._wait(("credit", id(link)))
        tag = link.delivery_count.to_bytes(4, "big")
        delivery_id = link.send(payload, tag, settled=False)
        state = await self._wait((True, delivery_id))
        if state != Accepted():
            raise ClientError(f"a send was not accepted: {state}")

    async def settle(self, delivery_id: int, state: Any) -> Any:
        """Say what became of a delivery; what the broker answers."""
        self._open_session.send(Disposition(True, delivery_id, delivery_id, False, state))
        return await self._wait((False, delivery_id))

    async def ask(self, node: str, message: Message) -> Message:
        """One request to a node, on links of its own."""
        replies: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        receiving = await self.receiver(node, lambda event: replies.set_result(event.payload))
        self.grant(receiving, 1)
        sending = await self.sender(node)
        sending.send(message.encode(), b"ask", settled=True)
        self._flush()
        payload = await asyncio.wait_for(replies, ANSWER_TIMEOUT_S)
        await self.detach(sending)
        await self.detach(receiving)
        return Message.decode(payload)

    async def _show(self, token: str, port: int) -> None:
        reply = await self.ask(
            "$cbs",
            Message(
                properties=Properties(message_id="token"),
                application_properties={
                    "operation": "put-token",
                    "type": "servicebus.windows.net:sastoken",
                    "name": f"sb://localhost:{port}/",
                },
                body=AmqpValue(token),
            ),
        )
        if (reply.application_properties or {}).get("status-code") != 202:
            raise ClientError(f"the token was refused: {reply.application_properties}")

    async def manage(self, entity: str, operation: str, body: dict[str, Any]) -> Message:
        return await self.ask(
            f"{entity}/$management",
            Message(
                properties=Properties(message_id="manage"),
                application_properties={"operation": f"com.microsoft:{operation}"},
                body=AmqpValue(body),
            ),
        )
