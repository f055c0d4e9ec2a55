"""Request/reply links to ``$cbs`` and ``<entity>/$management``, and their status codes.

A client opens two links to such a node, one to send requests and one to receive replies. This
module decodes a request, finds the link for the reply, and waits for credit there. The replies
themselves are made in authorization.py and management_node.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.types import Int, Symbol
from twinbus.amqp.delivery_states import STATE_ACCEPTED
from twinbus.amqp.errors import AmqpError, Condition, CostlyValue
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties, decode_properties
from twinbus.amqp.message.sections import scan_to_body
from twinbus.amqp.transfers import encode_disposition
from twinbus.broker.access.rules import Claim
from twinbus.broker.server.incoming_link import as_amqp_error

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

REQUEST_CREDIT = 100
# Replies that wait for credit; a client that never grants any may not send more requests.
REPLIES_WAITING_MAX = 256


@dataclass(slots=True)
class Request:
    """One decoded request."""

    operation: str
    properties: dict[str, Any]
    body: Any
    message: Message
    size: int = 0
    """The bytes of the request."""
    is_too_long: bool = False
    """Its body has more values than are decoded for one request, and was left out."""


@dataclass(slots=True)
class Reply:
    """A reply: application properties as the node's protocol names them, and a body."""

    properties: dict[str, Any]
    body: Any = None


class ReplyLink:
    """The link on which replies go to the client."""

    claim: Claim | None = None

    def __init__(self, peer: ClientConnection, link: SenderLink, path: str) -> None:
        self._peer = peer
        self._link = link
        self.path = path
        self._waiting: deque[bytes] = deque()
        self._tag = 0

    def opened(self) -> None:
        """The client's first flow grants credit."""

    def reply(self, message: Message) -> None:
        if self._link.is_detached:
            return
        payload = message.encode()
        self._waiting.append(payload)
        self._peer.output.keeps_reply(len(payload))
        self.on_credit()

    def on_credit(self) -> None:
        link = self._link
        while self._waiting and link.credit > 0 and not link.session.is_blocked:
            self._tag += 1
            payload = self._waiting.popleft()
            self._peer.output.sends_reply(len(payload))
            link.send(payload, self._tag.to_bytes(4, "big"), settled=True)
        if self._link.is_draining:
            self._link.complete_drain()
        self._peer.reader_place.start_waiting()
        self._peer.wants_flush()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= REPLIES_WAITING_MAX or not self._peer.output.may_keep_replies

    def matches(self, session: object, path: str, reply_to: str | None) -> bool:
        """Whether this is the link for the reply to a request on that node."""
        if self._link.session is not session or self.path != path:
            return False
        target = self._link.peer.target
        address = getattr(target, "address", None)
        return reply_to is None or address is None or address == reply_to

    @property
    def session(self) -> object:
        return self._link.session

    def flush(self) -> None:
        """Nothing is collected here."""

    def pause(self) -> None:
        """Replies are few and bounded."""

    def resume(self) -> None:
        self.on_credit()

    def detached(self) -> None:
        self._peer.output.sends_reply(sum(map(len, self._waiting)))
        self._waiting.clear()


def _without_body(payload: bytes, limits: AmqpLimits) -> Message:
    """The sections of a request before its body, within the short limits."""
    short = limits.before_token()
    found = scan_to_body(payload, 0, len(payload), short)
    span, own = found.properties, found.application_properties
    return Message(
        properties=None if span is None else decode_properties(payload, span),
        application_properties=None
        if own is None
        else decode_value(payload, *own, Budget(short))[0],
    )


Handler = Callable[[Request, Callable[[Reply], None]], None]


class RequestLink:
    """The link on which requests come from the client."""

    claim: Claim | None = None

    def __init__(
        self, peer: ClientConnection, link: ReceiverLink, path: str, handler: Handler
    ) -> None:
        self._peer = peer
        self._link = link
        self.path = path
        self._handler = handler

    def opened(self) -> None:
        self._link.grant(REQUEST_CREDIT)

    def on_delivery(self, event: DeliveryReceived) -> None:
        limits = self._peer.connection.limits
        is_too_long = False
        try:
            message = Message.decode(event.payload, limits)
        except CostlyValue:
            if self.path == "$cbs":
                raise  # No token needs so many; the client may be unauthenticated.
            message, is_too_long = _without_body(event.payload, limits), True
        properties = message.application_properties or {}
        body = message.body.value if isinstance(message.body, AmqpValue) else message.body
        request = Request(
            str(properties.get("operation", "")),
            properties,
            body,
            message,
            size=len(event.payload),
            is_too_long=is_too_long,
        )
        session = self._link.session
        if not event.settled:
            accepted = encode_disposition(
                True, event.delivery_id, event.delivery_id, True, STATE_ACCEPTED
            )
            session.connection.write(encode_frame(session.channel, accepted))
        asked = message.properties or Properties()
        end = self._peer.reply_end(session, self.path, asked.reply_to)
        if end is None:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"No link is attached for replies from {self.path!r}. Attach one first.",
            )
        if end.is_full:
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"Too many replies from {self.path!r} wait for credit. Grant credit first.",
            )
        self._peer.began_asking()

        def answer(reply: Reply) -> None:
            self._peer.ended_asking()
            end.reply(
                Message(
                    properties=Properties(correlation_id=asked.message_id),
                    application_properties=reply.properties,
                    body=AmqpValue(reply.body),
                )
            )
            self._go_on()

        self._handler(request, answer)

    def _go_on(self) -> None:
        """Grant credit again with every reply, which is one frame more than necessary.

        Threads that share a client of the Azure SDK read its socket in turns. One that waits for
        a reply which another has read meanwhile blocks the socket for 0.2 s, unless a frame
        arrives: five threads renewed 33 locks a second, and with this flow 180 to 1,200.
        """
        if not self._link.is_detached:
            self._link.grant(REQUEST_CREDIT)
            self._peer.wants_flush()

    def flush(self) -> None:
        """Nothing is collected here."""

    def detached(self) -> None:
        """Nothing to release."""


_STATUS = {
    Condition.MESSAGE_LOCK_LOST: 410,
    Condition.SESSION_LOCK_LOST: 410,
    Condition.MESSAGE_NOT_FOUND: 404,
    Condition.NOT_FOUND: 404,
    Condition.UNAUTHORIZED_ACCESS: 401,
    Condition.NOT_IMPLEMENTED: 501,
    Condition.SERVER_BUSY: 503,
    Condition.INTERNAL_ERROR: 500,
    Condition.ENTITY_DISABLED: 403,
    Condition.RESOURCE_LIMIT_EXCEEDED: 403,
}

Answer = Callable[[Reply], None]


def ok(body: Any = None) -> Reply:
    return Reply({"statusCode": Int(200), "statusDescription": "OK"}, body)


def empty() -> Reply:
    return Reply({"statusCode": Int(204), "statusDescription": "No content"})


def refused(error: AmqpError) -> Reply:
    status = {str(key): value for key, value in _STATUS.items()}.get(error.condition, 400)
    return Reply(
        {
            "statusCode": Int(status),
            "statusDescription": error.description,
            "errorCondition": Symbol(error.condition),
        }
    )


class ReplyAck:
    """Replies to a request once its change is on disk."""

    def __init__(self, answer: Answer, body: Callable[[range], Any] = lambda _seqs: None) -> None:
        self._answer = answer
        self._body = body

    def stored(self, seqs: range) -> None:
        self._answer(ok(self._body(seqs)))

    def failed(self, error: Exception) -> None:
        self._answer(refused(as_amqp_error(error)))


def bad_request(reason: str) -> AmqpError:
    return AmqpError(Condition.ARGUMENT_ERROR, f"Invalid request: {reason}.")
