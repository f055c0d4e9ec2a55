"""Connections without sockets: one end driven frame by frame, or two ends talking to each other."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import Event, LinkAttached, SessionBegun
from twinbus.amqp.frames import (
    PROTOCOL_AMQP,
    PROTOCOL_SASL,
    FrameBuffer,
    encode_frame,
)
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
    decode_performative,
    encode_performative,
)
from twinbus.amqp.session import Session

FRAME_BYTES_MAX = 16 << 20
BEGIN = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)


def connection(role: Role, limits: AmqpLimits | None = None) -> Connection:
    options = ConnectionOptions(
        container_id=role.name.lower(), hostname="localhost", limits=limits or AmqpLimits()
    )
    return Connection(role, options)


def frame(performative: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    return encode_frame(channel, encode_performative(performative), payload)


def sasl(performative: Performative) -> bytes:
    return encode_frame(0, encode_performative(performative), frame_type=1)


GREETING = PROTOCOL_SASL + sasl(SaslInit(Symbol("ANONYMOUS"), b"", "localhost"))
HANDSHAKE = GREETING + PROTOCOL_AMQP


def frames_in(data: bytes) -> list[tuple[int, Performative, bytes]]:
    """(channel, performative, payload) of every frame; protocol headers are passed over."""
    found = []
    buffer = FrameBuffer(FRAME_BYTES_MAX)
    buffer.feed(data.replace(PROTOCOL_SASL, b"").replace(PROTOCOL_AMQP, b""))
    while (each := buffer.next_frame()) is not None:
        if not each.is_empty:
            performative, position = decode_performative(each.buf, each.pos, each.end, Budget())
            found.append((each.channel, performative, each.buf[position : each.end]))
    return found


class Server:
    """The serving end; the test plays the client, one frame at a time."""

    def __init__(self, limits: AmqpLimits | None = None) -> None:
        self.connection = connection(Role.SERVER, limits)
        self.events: list[Event] = []

    def hear(self, data: bytes) -> list[Performative]:
        """Take bytes; what is said back."""
        self.events += self.connection.receive(data)
        return self.said()

    def say(
        self, performative: Performative, channel: int = 0, payload: bytes = b""
    ) -> list[Performative]:
        """Take one frame; what is said back."""
        return self.hear(frame(performative, channel, payload))

    def said(self) -> list[Performative]:
        return [each for _channel, each, _payload in frames_in(self.connection.take_output())]

    def opened(self, **fields: Any) -> Server:
        self.hear(HANDSHAKE + frame(Open(container_id="client", **fields)))
        return self

    def begun(self, **fields: Any) -> Server:
        self.opened()
        numbers = {"next_outgoing_id": 0, "incoming_window": 100, "outgoing_window": 100}
        self.say(Begin(**{**numbers, **fields}))
        self.events.clear()
        return self

    @property
    def session(self) -> Session:
        return self.connection.sessions[0]

    def take(self, kind: type[Any]) -> Any:
        """The first event of a kind."""
        event = next(event for event in self.events if isinstance(event, kind))
        self.events.remove(event)
        return event

    def incoming_link(self, handle: int = 0, credit: int = 100) -> ReceiverLink:
        """A link on which the client sends to us."""
        self.say(sending_attach(handle))
        link = self.take(LinkAttached).link
        assert isinstance(link, ReceiverLink)
        link.accept(source=Source(), target=Target())
        link.grant(credit)
        self.said()
        return link

    def outgoing_link(self, handle: int = 0) -> SenderLink:
        """A link on which the client receives from us."""
        self.say(receiving_attach(handle))
        link = self.take(LinkAttached).link
        assert isinstance(link, SenderLink)
        link.accept(source=Source(), target=Target())
        self.said()
        return link


def sending_attach(handle: int, name: str | None = None, **fields: Any) -> Attach:
    return Attach(
        name=name or f"link-{handle}",
        handle=handle,
        role=False,
        source=Source(address="here"),
        target=Target(address="queue"),
        initial_delivery_count=fields.pop("initial_delivery_count", 0),
        **fields,
    )


def receiving_attach(handle: int, name: str | None = None, **fields: Any) -> Attach:
    return Attach(
        name=name or f"link-{handle}",
        handle=handle,
        role=True,
        source=Source(address="queue"),
        target=Target(address="here"),
        **fields,
    )


class Pair:
    """Both ends, with nothing but memory between them."""

    def __init__(
        self, client_limits: AmqpLimits | None = None, server_limits: AmqpLimits | None = None
    ) -> None:
        self.client = connection(Role.CLIENT, client_limits)
        self.server = connection(Role.SERVER, server_limits)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []

    def settle(self) -> Pair:
        """Carry bytes to and fro until both have nothing more to say."""
        while self.client.has_output or self.server.has_output:
            self.server_events += self.server.receive(self.client.take_output())
            self.client_events += self.client.receive(self.server.take_output())
        return self

    def begun(self) -> Session:
        """The client's side of a session that both agree on."""
        self.settle()
        session = self.client.begin_session()
        self.settle()
        assert self.client_events.pop() == SessionBegun(session)
        self.client_events.clear()
        self.server_events.clear()
        return session

    def link(self, attach: Attach) -> tuple[Any, Any]:
        """A link that the client asked for: (client's side, server's side)."""
        session = next(iter(self.client.sessions.values()))
        ask = session.attach_receiver if attach.role else session.attach_sender
        ours = ask(attach)
        self.settle()
        theirs = next(e for e in self.server_events if isinstance(e, LinkAttached)).link
        theirs.accept(source=Source(), target=Target())
        self.settle()
        self.client_events.clear()
        self.server_events.clear()
        return ours, theirs
