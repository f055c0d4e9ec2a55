"""A small blocking AMQP 1.0 client on our own engine, for tests that need exact control.

It reads and answers frames until what the test waits for has happened. For hostile bytes,
write to ``socket`` directly.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import (
    ConnectionClosed,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    Opened,
    SessionBegun,
)
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted, Attach, Disposition, Error, Source, Target
from twinbus.amqp.session import Session

TIMEOUT_S = 5.0


class WireClient:
    """One connection with one session."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        limits: AmqpLimits | None = None,
        timeout_s: float = TIMEOUT_S,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """``context`` is for TLS; without one it is plain text."""
        self.port = port
        self.timeout_s = timeout_s
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._prepare(
            Connection(
                Role.CLIENT,
                ConnectionOptions(
                    container_id="wire-test", hostname="localhost", limits=limits or AmqpLimits()
                ),
            )
        )

    def _prepare(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self._handle = 0
        self._session: Session | None = None
        self._nodes: dict[str, tuple[SenderLink, ReceiverLink]] = {}

    # -- plumbing -------------------------------------------------------------------------

    def flush(self) -> None:
        data = self.connection.take_output()
        if data:
            self.socket.sendall(data)

    def pump(self, timeout_s: float = 0.05) -> bool:
        """Read once; False when nothing came or the broker closed."""
        self.flush()
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(1 << 20)
        except (TimeoutError, ConnectionError):
            return False
        if not data:
            self.events.append(ConnectionClosed(None))
            return False
        for event in self.connection.receive(data):
            self.events += event.singles() if isinstance(event, DeliveriesReceived) else [event]
        self.flush()
        return True

    def wait_for(
        self, kind: type[Any], matches: Callable[[Any], bool] = lambda _event: True
    ) -> Any:
        """Take the first event of a kind out of those that came, waiting for it if needed."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            for event in self.events:
                if isinstance(event, kind) and matches(event):
                    self.events.remove(event)
                    return event
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {kind.__name__} came; only {self.events!r:.400}")
            if any(isinstance(event, ConnectionClosed) for event in self.events):
                raise ConnectionError(f"no {kind.__name__} will come: {self.events!r:.400}")
            self.pump()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- the usual steps ------------------------------------------------------------------

    def open(self) -> WireClient:
        self.wait_for(Opened)
        return self

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.connection.begin_session()
            self.wait_for(SessionBegun)
        return self._session

    def attach_sender(self, address: str | None, **fields: Any) -> SenderLink:
        """Ask for a link to send on; the answer may be a refusal, see refusal()."""
        handle, self._handle = self._handle, self._handle + 1
        link = self.session.attach_sender(
            Attach(
                name=fields.pop("name", f"sender-{handle}"),
                handle=handle,
                role=False,
                snd_settle_mode=0,
                rcv_settle_mode=0,
                source=fields.pop("source", Source(address=f"sender-{handle}")),
                target=fields.pop("target", Target(address=address)),
                initial_delivery_count=0,
                **fields,
            )
        )
        self.wait_for(LinkAttached, lambda event: event.link is link)
        return link

    def attach_receiver(self, address: str | None, **fields: Any) -> ReceiverLink:
        """Ask for a link to receive on."""
        handle, self._handle = self._handle, self._handle + 1
        link = self.session.attach_receiver(
            Attach(
                name=fields.pop("name", f"receiver-{handle}"),
                handle=handle,
                role=True,
                snd_settle_mode=fields.pop("snd_settle_mode", 0),
                rcv_settle_mode=1,
                source=fields.pop("source", Source(address=address)),
                target=fields.pop("target", Target(address=f"receiver-{handle}")),
                **fields,
            )
        )
        self.wait_for(LinkAttached, lambda event: event.link is link)
        return link

    def refusal(self, link: SenderLink | ReceiverLink) -> str:
        """The condition with which the broker detached a link."""
        return str(self.detach_error(link).condition)

    def detach_error(self, link: SenderLink | ReceiverLink) -> Error:
        """The error with which the broker detached a link."""
        event = self.wait_for(LinkDetachedEvent, lambda detached: detached.link is link)
        assert event.error is not None
        error: Error = event.error
        return error

    def node(self, address: str) -> tuple[SenderLink, ReceiverLink]:
        """The links for requests to ``$cbs`` or a management node, and for its replies."""
        if address not in self._nodes:
            replies = self.attach_receiver(address, target=Target(address="reply-here"))
            replies.grant(10)
            requests = self.attach_sender(address)
            self._await_credit(requests)
            self._nodes[address] = requests, replies
        return self._nodes[address]

    def ask(self, node: str, message: Message) -> Message:
        """Send a request to ``$cbs`` or a management node and wait for its reply."""
        requests, replies = self.node(node)
        replies.grant(10)
        self._await_credit(requests)
        requests.send(message.encode(), b"request", settled=True)
        self.flush()
        event = self.wait_for(DeliveryReceived, lambda received: received.link is replies)
        return Message.decode(event.payload)

    def token_request(self, token: Any, **properties: Any) -> Message:
        """What put_token() sends; ``properties`` replace those of a good request."""
        return Message(
            properties=Properties(message_id="token", reply_to="reply-here"),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": f"sb://localhost:{self.port}/",
                **properties,
            },
            body=AmqpValue(token),
        )

    def show_token(self, token: Any, **properties: Any) -> tuple[int, str]:
        """Show a token; the status code and the sentence of the answer."""
        told = self.ask("$cbs", self.token_request(token, **properties)).application_properties
        assert told is not None
        return int(told["status-code"]), str(told["status-description"])

    def put_token(self, token: str) -> int:
        """Show a token; the status code of the answer."""
        return self.show_token(token)[0]

    def manage(self, entity: str, operation: str, body: Any) -> Message:
        """One management request."""
        return self.ask(
            f"{entity}/$management",
            Message(
                properties=Properties(message_id="manage", reply_to="reply-here"),
                application_properties={"operation": operation, "type": "entity-mgmt"},
                body=AmqpValue(body),
            ),
        )

    def _await_credit(self, link: SenderLink) -> None:
        deadline = time.monotonic() + self.timeout_s
        while link.credit <= 0:
            if time.monotonic() > deadline:
                raise TimeoutError("the broker granted no credit")
            self.pump()

    def send(self, link: SenderLink, payload: bytes, *, message_format: int = 0) -> Any:
        """Send one delivery and wait for its outcome."""
        self._await_credit(link)
        tag = link.delivery_count.to_bytes(4, "big")
        delivery_id = link.send(payload, tag, settled=False, message_format=message_format)
        self.flush()
        return self.outcome(delivery_id)

    def outcome(self, delivery_id: int) -> Any:
        """What the broker says about a delivery that we sent."""
        event = self.wait_for(
            DispositionReceived, lambda seen: seen.role and seen.first <= delivery_id <= seen.last
        )
        return event.state

    def settle(self, first: int, last: int, state: Any, *, settled: bool = False) -> None:
        """Say what became of deliveries that the broker sent."""
        self.session.send(Disposition(True, first, last, settled, state))
        self.flush()

    def settled(self, first: int, state: Any, last: int | None = None) -> Any:
        """Settle deliveries and wait for the broker's answer: the state it confirms."""
        self.settle(first, first if last is None else last, state)
        event = self.wait_for(
            DispositionReceived, lambda seen: not seen.role and seen.first <= first <= seen.last
        )
        return event.state

    def complete(self, delivery_id: int) -> None:
        """Complete one message; it is gone when this returns."""
        state = self.settled(delivery_id, Accepted())
        assert state == Accepted(), state


def connected(port: int, token: str, *, context: ssl.SSLContext | None = None) -> WireClient:
    """A client that has opened and shown a token."""
    client = WireClient(port, context=context)
    try:
        status = client.open().put_token(token)
        assert status == 202, status
    except BaseException:
        client.close()
        raise
    return client
