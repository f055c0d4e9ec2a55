"""What hostile cases say to a queue once they are in: send, hold, and ask its management node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.support.answers import assert_well_put
from tests.support.wire_client import WireClient
from twinbus.amqp.codec.types import Array, Long
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import DataSections, Message

BATCH = 0x80013700
"""The message format of a batch."""

# Status and condition of the usual refusals.
LOCK_LOST = (410, "com.microsoft:message-lock-lost")
NOT_FOUND = (404, "com.microsoft:message-not-found")
BAD_REQUEST = (400, "com.microsoft:argument-error")
OUT_OF_RANGE = (400, "com.microsoft:argument-out-of-range")


@dataclass(frozen=True)
class Told:
    """A reply of a management node."""

    status: int
    condition: str | None
    body: Any


def batch_of(*messages: bytes) -> bytes:
    """The envelope that holds encoded messages."""
    return Message(body=DataSections(messages)).encode()


def put(client: WireClient, queue: str, *bodies: bytes) -> None:
    """Send messages, all accepted."""
    sender = client.attach_sender(queue)
    for body in bodies:
        assert client.send(sender, Message(body=body).encode()) == Accepted()


def take(client: WireClient, queue: str, count: int = 1) -> list[DeliveryReceived]:
    """Receive messages under a lock."""
    client.attach_receiver(queue).grant(count)
    return [client.wait_for(DeliveryReceived) for _ in range(count)]


def lock_token(event: DeliveryReceived) -> UUID:
    annotations = Message.decode(event.payload).delivery_annotations
    assert annotations is not None
    token: UUID = annotations["x-opt-lock-token"]
    return token


def sequence_number(event: DeliveryReceived) -> int:
    annotations = Message.decode(event.payload).message_annotations
    assert annotations is not None
    return int(annotations["x-opt-sequence-number"])


def uuids(*tokens: UUID) -> Array:
    return Array.of(0x98, list(tokens))


def longs(*numbers: int) -> Array:
    return Array.of(0x81, [Long(number) for number in numbers])


def settling(*tokens: UUID, status: str = "completed") -> dict[str, Any]:
    """The body of an update-disposition."""
    return {"disposition-status": status, "lock-tokens": uuids(*tokens)}


def ask(client: WireClient, queue: str, operation: str, body: Any) -> Told:
    """One request to the management node; a refusal is well put."""
    reply = client.manage(queue, f"com.microsoft:{operation}", body)
    told = reply.application_properties
    assert told is not None
    condition = told.get("errorCondition")
    if condition is not None:
        assert_well_put(told["statusDescription"])
    value = getattr(reply.body, "value", None)
    return Told(int(told["statusCode"]), None if condition is None else str(condition), value)


def refused(client: WireClient, queue: str, operation: str, body: Any) -> tuple[int, str | None]:
    """Status and condition of the reply to one request."""
    told = ask(client, queue, operation, body)
    return told.status, told.condition
