"""Requests and responses: ``$cbs``, which checks tokens, and ``<entity>/$management``.

Rule 1: any number of requests may wait for their responses, which have correlation ids.
Rule 2: a response for which no call waits any more is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from twinbus.amqp.codec.types import Symbol, UInt
from twinbus.amqp.delivery_states import STATE_ACCEPTED
from twinbus.amqp.errors import AmqpError
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import ROLE_RECEIVER, Source
from twinbus.amqp.transfers import encode_disposition
from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.errors import ConnectionLoss, quote, status_refusal
from twinbus.drivers.amqp.link_endpoint import FIRST, SETTLED, LinkEndpoint
from twinbus.errors import (
    AuthenticationFailed,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

# The number of responses that may be under way at once.
ANSWER_CREDIT: Final = 100
_MS_PER_S: Final = 1_000


class RequestNode(LinkEndpoint):
    """Two links to a node of the service."""

    def __init__(self, connection: AmqpConnection, path: str, node: str) -> None:
        super().__init__(connection, path)
        self._reply_to = f"reply-{uuid4()}"
        self._answers = self.attach_receiver(
            Source(address=node), self._reply_to, snd_settle_mode=SETTLED, rcv_settle_mode=FIRST
        )
        self._questions = self.attach_sender(node, f"ask-{uuid4()}")
        self._asked: dict[str, asyncio.Future[Message]] = {}
        self._waiting: dict[str, bytes] = {}
        """Requests by id, in their order, until there is credit for them."""
        self._count = 0

    @property
    def holds_connection(self) -> bool:  # type: ignore[override]
        """Only while a request waits."""
        return bool(self._asked)

    @property
    def is_busy(self) -> bool:
        return bool(self._asked)

    def on_open(self) -> None:
        self._answers.grant(ANSWER_CREDIT)
        self.connection.wants_flush()

    async def ask(self, body: Any, properties: dict[str, Any]) -> Message:
        """Send a request and wait for its response; the caller limits the time."""
        if self.loss is not None:
            raise self.loss.error(self.path, was_sent=False)
        self._count += 1
        name = str(self._count)
        message = Message(
            properties=Properties(message_id=name, reply_to=self._reply_to),
            application_properties=properties,
            body=AmqpValue(body),
        )
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[name] = answer
        self._waiting[name] = message.encode()
        self.on_room()
        try:
            return await answer
        finally:
            del self._asked[name]
            self._waiting.pop(name, None)
            self.close_if_unused()

    def on_room(self) -> None:
        link = self._questions
        while self._waiting and link.credit > 0 and not self.session.is_blocked:
            tag = link.delivery_count.to_bytes(4, "big")
            link.send(self._waiting.pop(next(iter(self._waiting))), tag, settled=True)
            self.connection.wants_flush()

    def on_delivery(self, event: DeliveryReceived) -> None:
        if not event.settled:
            first = event.delivery_id
            done = encode_disposition(ROLE_RECEIVER, first, first, True, STATE_ACCEPTED)
            self.connection.write(encode_frame(self.session.channel, done))
        self._answers.replenish()
        self.connection.wants_flush()
        try:
            message = Message.decode(event.payload, self.session.connection.limits)
        except AmqpError as error:
            self.lost(
                ConnectionLoss(ServiceInternalError, f"A response is not valid AMQP: {error}")
            )
            self.close()
            return
        name = None if message.properties is None else message.properties.correlation_id
        waiting = self._asked.get(str(name))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def abort(self, loss: ConnectionLoss) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(loss.error(self.path, was_sent=True))


class CbsNodeClient(RequestNode):
    """``$cbs``: sends tokens."""

    def __init__(self, connection: AmqpConnection) -> None:
        super().__init__(connection, "$cbs", "$cbs")

    async def put_token(self, *, path: str, audience: str, text: str, kind: str) -> None:
        """Return once the service has accepted the token."""
        answer = await self.ask(text, {"operation": "put-token", "type": kind, "name": audience})
        properties = answer.application_properties or {}
        status = _whole(properties.get("status-code"))
        if not 200 <= status < 300:
            raise _token_refusal(status, properties.get("status-description", ""), path)


def _token_refusal(status: int, text: object, path: str) -> ServiceError:
    sentence = f"The service refused the token for {path!r} (status {status}): {quote(text)}"
    if status == 503:
        return ServerBusy(sentence, path=path)
    if status >= 500:
        return ServiceInternalError(sentence, path=path)
    return AuthenticationFailed(
        sentence, path=path, hint="Check the key or the identity, and the clock of this machine"
    )


class ManagementNodeClient(RequestNode):
    """``<entity>/$management``: requests other than sending and receiving."""

    def __init__(self, connection: AmqpConnection, path: str) -> None:
        super().__init__(connection, path, f"{path}/$management")

    async def request(
        self, operation: str, body: Mapping[str, Any], *, timeout_s: float, link_name: str = ""
    ) -> dict[str, Any]:
        """The body of a successful response, empty if it has none; raises ServiceError."""
        timeout_ms = min(UINT_MAX, max(1, int(timeout_s * _MS_PER_S)))
        properties = {
            "operation": f"com.microsoft:{operation}",
            "type": "entity-mgmt",
            "com.microsoft:server-timeout": UInt(timeout_ms),
        }
        if link_name:
            properties["associated-link-name"] = link_name
        answer = await self.ask(dict(body), properties)
        found = answer.application_properties or {}
        status = _whole(found.get("statusCode"))
        if not 200 <= status < 300:
            condition = str(found.get("errorCondition") or "")
            raise status_refusal(
                status, condition, found.get("statusDescription", ""), path=self.path
            )
        value = answer.body.value if isinstance(answer.body, AmqpValue) else None
        return _plain_keys(value) if isinstance(value, dict) else {}


def _plain_keys(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(key) if isinstance(key, Symbol) else key: item for key, item in value.items()}


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int) else 0
