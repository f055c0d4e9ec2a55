"""A peer that says whatever a case wants, byte by byte, and tells how the broker answered.

    RawPeer(port).to(Stage.OPENED).say(b"...").verdict()

Rule 1: nothing here is checked before it is sent; that is the point.
Rule 2: a verdict is the first thing that ends something (a connection, a session, a link, a
        delivery), with the condition that was told, and it must come within the time given.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.frames import HEAD_BYTES, PROTOCOL_AMQP, PROTOCOL_SASL, encode_frame
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Rejected,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)

ANSWER_TIMEOUT_S = 1.0
CHANNEL = 0
# Handles of the links that a peer in stage AUTHORIZED has.
CBS_REPLIES, CBS_REQUESTS = 0, 1
FIRST_FREE_HANDLE = 2


class Stage(IntEnum):
    """How far the handshake went before the hostile part begins."""

    CONNECTED = auto()
    SASL = auto()
    SASL_DONE = auto()
    HEADER_SENT = auto()
    OPENED = auto()
    BEGUN = auto()
    AUTHORIZED = auto()


@dataclass(frozen=True)
class Verdict:
    """What was ended, and why."""

    level: str
    condition: str | None = None

    def __repr__(self) -> str:
        return self.level if self.condition is None else f"{self.level}({self.condition})"


DROPPED = Verdict("dropped")
"""The connection was closed without a word; before the open there is no word for it."""
NOTHING = Verdict("nothing")
"""The broker goes on as if nothing had happened."""


def closed(condition: str) -> Verdict:
    return Verdict("close", condition)


def ended(condition: str) -> Verdict:
    return Verdict("end", condition)


def detached(condition: str) -> Verdict:
    return Verdict("detach", condition)


def rejected(condition: str) -> Verdict:
    return Verdict("rejected", condition)


class RawPeer:
    """One connection to the broker, with nothing between the case and the socket."""

    def __init__(self, port: int, token: str = "", *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard = bytearray()
        """Everything the broker said."""
        self.payload = b""
        """What followed the performative that was heard last."""
        self._port = port
        self._token = token
        self._position = 0
        self.is_at_end = False

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- saying ---------------------------------------------------------------------------

    def say(self, *parts: bytes | Performative) -> RawPeer:
        """Send bytes as they are, and performatives as frames on our channel."""
        data = b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)
        try:
            self.socket.settimeout(10)
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # The broker did not want the rest; what it said before is what counts.
            pass
        return self

    def to(self, stage: Stage) -> RawPeer:
        """Behave until the handshake has come that far."""
        if stage >= Stage.SASL:
            self.say(PROTOCOL_SASL)
            self.wait_for_header(PROTOCOL_SASL)
        if stage >= Stage.SASL_DONE:
            self.say(sasl_frame(SaslInit(Symbol("ANONYMOUS"), b"", "localhost")))
            assert self.wait_for(SaslOutcome).code == 0
        if stage >= Stage.HEADER_SENT:
            self.say(PROTOCOL_AMQP)
            self.wait_for_header(PROTOCOL_AMQP)
        if stage >= Stage.OPENED:
            self.say(Open(container_id="raw", hostname="localhost"))
            self.wait_for(Open)
        if stage >= Stage.BEGUN:
            self.say(Begin(next_outgoing_id=0, incoming_window=2_048, outgoing_window=2_048))
            self.wait_for(Begin)
        if stage >= Stage.AUTHORIZED:
            self.put_token()
        return self

    def put_token(self) -> None:
        self.ask_for_token_answer()
        self.wait_for(Transfer)

    def ask_for_token_answer(self) -> None:
        """Put the token, and do not wait for what the broker says to it."""
        self.say(
            receiver("$cbs", CBS_REPLIES, name="replies"),
            sender("$cbs", CBS_REQUESTS, name="requests"),
            flow(handle=CBS_REPLIES, link_credit=10),
            frame(
                Transfer(CBS_REQUESTS, delivery_id=0, delivery_tag=b"t", settled=True),
                payload=token_request(self._token, self._port),
            ),
        )

    # -- hearing --------------------------------------------------------------------------

    def wait_for(self, kind: type[Any]) -> Any:
        """The next performative of a kind; others are passed over."""
        while True:
            heard = self.next_frame()
            assert heard is not None, f"no {kind.__name__} came, only {bytes(self.heard)[-200:]!r}"
            if isinstance(heard, kind):
                return heard

    def wait_for_header(self, expected: bytes) -> None:
        deadline = time.monotonic() + 5
        while len(self.heard) - self._position < len(expected):
            assert self._read(deadline), f"no header came, only {bytes(self.heard)!r}"
        start, self._position = self._position, self._position + len(expected)
        assert bytes(self.heard[start : self._position]) == expected

    def forget_heard(self) -> None:
        """Keep nothing of what was heard: for a peer that hears megabytes."""
        del self.heard[: self._position]
        self._position = 0

    def next_frame(self, timeout_s: float = 5.0) -> Performative | None:
        """The next performative; None at the end of the stream or of the time."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._cut_frame()
            if found is not None:
                return found
            if not self._read(deadline):
                return None

    def _cut_frame(self) -> Performative | None:
        while True:
            start = self._position
            head = bytes(self.heard[start : start + HEAD_BYTES])
            size = int.from_bytes(head[:4], "big")
            if len(head) < HEAD_BYTES or len(self.heard) - start < size:
                return None
            self._position = start + size
            body = bytes(self.heard[start + HEAD_BYTES : start + size])
            if body:
                performative, position = decode_performative(body, 0, len(body), Budget())
                self.payload = body[position:]
                return performative

    def _read(self, deadline: float) -> bool:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or self.is_at_end:
            return False
        self.socket.settimeout(left_s)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            return False
        except ConnectionError:
            data = b""
        self.is_at_end = not data
        self.heard += data
        return bool(data)

    def verdict(self) -> Verdict:
        """How the broker answered, within the time that an answer may take."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            heard = self.next_frame(max(0.001, deadline - time.monotonic()))
            if heard is None:
                return DROPPED if self.is_at_end else NOTHING
            verdict = _verdict_of(heard)
            if verdict is not None:
                if verdict.level == "close":
                    self.await_end()
                return verdict

    def await_end(self) -> bytes:
        """Wait until the broker closes its side; what it said meanwhile."""
        before = len(self.heard)
        deadline = time.monotonic() + self.timeout_s
        while self._read(deadline):
            pass
        assert self.is_at_end, "the broker did not close the connection"
        return bytes(self.heard[before:])


def _verdict_of(heard: Performative) -> Verdict | None:
    match heard:
        case Close():
            return Verdict("close", _condition(heard.error))
        case End():
            return Verdict("end", _condition(heard.error))
        case Detach():
            return Verdict("detach", _condition(heard.error))
        case Disposition(state=Rejected(error=error)) if error is not None:
            return rejected(str(error.condition))
        case Disposition(role=True):
            return Verdict(type(heard.state).__name__.lower())
    return None


def _condition(error: Any) -> str | None:
    """The condition of an error that is also a sentence for people."""
    if error is None:
        return None
    assert error.description and error.description.rstrip().endswith("."), error
    assert len(error.description) < 400, "a sentence, not an essay"
    return str(error.condition)


# -- what can be said ---------------------------------------------------------------------------


def frame(performative: Performative, channel: int = CHANNEL, payload: bytes = b"") -> bytes:
    return encode_frame(channel, encode_performative(performative), payload)


def raw_frame(body: bytes, channel: int = CHANNEL, frame_type: int = 0) -> bytes:
    """A frame around any bytes."""
    return encode_frame(channel, body, frame_type=frame_type)


def sasl_frame(performative: Performative) -> bytes:
    return encode_frame(0, encode_performative(performative), frame_type=1)


def sender(address: str | None, handle: int, *, name: str | None = None, **fields: Any) -> bytes:
    """The attach of a peer that wants to send."""
    return frame(
        Attach(
            name=name or f"link-{handle}",
            handle=handle,
            role=False,
            source=fields.pop("source", Source(address="here")),
            target=fields.pop("target", Target(address=address)),
            initial_delivery_count=0,
            **fields,
        )
    )


def receiver(address: str | None, handle: int, *, name: str | None = None, **fields: Any) -> bytes:
    """The attach of a peer that wants to receive."""
    return frame(
        Attach(
            name=name or f"link-{handle}",
            handle=handle,
            role=True,
            source=fields.pop("source", Source(address=address)),
            target=fields.pop("target", Target(address="here")),
            **fields,
        )
    )


def flow(**fields: Any) -> bytes:
    fields.setdefault("next_incoming_id", 0)
    fields.setdefault("incoming_window", 2_048)
    fields.setdefault("next_outgoing_id", 0)
    fields.setdefault("outgoing_window", 2_048)
    if "link_credit" in fields:
        fields.setdefault("delivery_count", 0)
    return frame(Flow(**fields))


def transfer(handle: int, delivery_id: int | None, payload: bytes = b"", **fields: Any) -> bytes:
    fields.setdefault("delivery_tag", None if delivery_id is None else b"tag%d" % delivery_id)
    return frame(Transfer(handle, delivery_id=delivery_id, **fields), payload=payload)


def token_request(token: str, port: int) -> bytes:
    return Message(
        properties=Properties(message_id="token", reply_to="here"),
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": f"sb://localhost:{port}/",
        },
        body=AmqpValue(token),
    ).encode()
