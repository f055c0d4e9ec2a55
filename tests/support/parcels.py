"""Messages for the tests of drivers."""

from __future__ import annotations

from typing import Any

from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage


def parcel(
    body: bytes, *, annotations: dict[str, Any] | None = None, **properties: Any
) -> OutgoingMessage:
    """A message with that body; ``properties`` are those of AMQP."""
    keyed = {Symbol(name): value for name, value in (annotations or {}).items()}
    message = Message(
        message_annotations=keyed or None,
        properties=Properties(**properties) if properties else None,
        body=body,
    )
    return OutgoingMessage(message.encode())


def due_at(ms: int) -> dict[str, Any]:
    """The annotation of a message that is scheduled."""
    return {"x-opt-scheduled-enqueue-time": Timestamp(ms)}


def body_of(delivered: ReceivedMessage) -> bytes:
    body = Message.decode(delivered.encoded).body
    assert isinstance(body, bytes)
    return body


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [body_of(each) for each in messages]
