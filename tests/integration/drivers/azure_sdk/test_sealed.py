"""Messages as bytes, against the SDK's own encoder: a new version of it that differs fails here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from twinbus.amqp.codec.types import Byte, Short, Symbol, Timestamp, UByte, UInt, ULong
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.message.sections import iter_batch
from twinbus.drivers.azure_sdk import (
    ServiceBusDriver,
    encode_native,
    is_native,
    split_batch,
)
from twinbus.drivers.azure_sdk.sdk_messages import encoded_batch, schedule_request
from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import OutgoingMessage

TIMEOUT_S = 20.0

# Every type that a message can say, and that the SDK's own classes would flatten.
TYPED = {
    "ubyte": UByte(7),
    "byte": Byte(-7),
    "short": Short(-300),
    "uint": UInt(70_000),
    "ulong": ULong(2**63),
    "timestamp": Timestamp(1_700_000_000_123),
    "symbol": Symbol("a-symbol"),
    "uuid": UUID(int=5),
    "bytes": b"\x00\xff",
    "text": "grüße",
    "nothing": None,
}


def natives() -> list[ServiceBusMessage]:
    full = ServiceBusMessage(
        b"one",
        message_id="m-1",
        session_id="s-1",
        partition_key="s-1",
        subject="subject",
        application_properties={"number": 5, "text": "t", "flag": True},
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=datetime(2040, 1, 1, tzinfo=UTC),
        correlation_id="c",
    )
    return [full, ServiceBusMessage("two"), ServiceBusMessage(None)]


def on_the_wire(batch: ServiceBusMessageBatch) -> bytes:
    """What the SDK's sender makes of a batch."""
    return bytes(encode_payload(bytearray(), BatchMessage(*batch._message)))


def sdks_batch(messages: list[Any]) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(amqp_transport=PyamqpTransportAsync)
    for message in messages:
        batch.add_message(message)
    return batch


def test_a_sealed_batch_is_the_sdks_own_byte_for_byte() -> None:
    """P12: with everything that the SDK writes on an envelope."""
    own = sdks_batch(natives())
    sealed = encoded_batch(split_batch(own))
    assert on_the_wire(sealed) == on_the_wire(own)
    assert len(sealed) == len(own) == 3
    assert sealed._amqp_transport is own._amqp_transport is PyamqpTransportAsync


def test_an_envelope_without_anything_to_say_is_the_sdks_own_too() -> None:
    bare = AmqpAnnotatedMessage(data_body=[b"bare"])
    own = sdks_batch([bare])
    assert on_the_wire(encoded_batch(split_batch(own))) == on_the_wire(own)


def test_no_byte_of_a_sealed_message_is_changed() -> None:
    """P12: whatever its types are, and whatever its message id is."""
    messages = [
        Message(properties=Properties(message_id=each), application_properties=TYPED).encode()
        for each in (UUID(int=9), b"bytes", ULong(2**40), "text", None)
    ]
    for first in messages:
        envelope = on_the_wire(encoded_batch([first, *messages]))
        found = [envelope[start:stop] for start, stop in iter_batch(envelope, 0, len(envelope))]
        assert found == [first, *messages]


def test_a_message_is_encoded_as_the_sdk_would_send_it() -> None:
    """P12: the same bytes that it puts into its own batch."""
    for message in natives():
        [own] = split_batch(sdks_batch([message]))
        assert encode_native(message) == own


def test_encoding_leaves_a_message_as_it_was() -> None:
    """P12: also what the SDK keeps inside."""
    message = natives()[0]
    before = (repr(message), message._message)
    encode_native(message)
    assert (repr(message), message._message) == before


def test_a_message_made_of_sections_is_encoded() -> None:
    message = AmqpAnnotatedMessage(
        value_body={"key": 5}, properties=AmqpMessageProperties(message_id="m", subject="s")
    )
    decoded = Message.decode(encode_native(message))
    assert isinstance(decoded.body, AmqpValue) and decoded.body.value == {"key": 5}
    assert decoded.properties == Properties(message_id="m", subject="s")


def test_a_request_to_schedule_is_the_sdks_own() -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    messages = natives()[:2]
    own, _ = ServiceBusSender._build_schedule_request(at, PyamqpTransportAsync, {}, *messages)
    assert schedule_request([encode_native(each) for each in messages]) == own


@pytest.mark.parametrize("message", [b"bytes", "text", {"body": "x"}, None])
def test_other_things_are_not_the_sdks_own(message: object) -> None:
    assert not is_native(message)
    assert all(map(is_native, [*natives(), sdks_batch(natives())]))


async def one(receiver: Receiver) -> Message:
    [delivered] = await receiver.receive(1, wait_s=TIMEOUT_S)
    return Message.decode(delivered.encoded)


async def test_every_type_goes_there_and_back(driver: ServiceBusDriver, queue: str) -> None:
    """P12: through the SDK on both sides, which has no word for most of them."""
    sent = Message(properties=Properties(message_id="m"), application_properties=TYPED, body=b"x")
    await driver.sender(queue).send([OutgoingMessage(sent.encode())], timeout_s=TIMEOUT_S)
    received = await one(driver.receiver(queue))
    assert received.application_properties == TYPED
    kinds = {name: type(value) for name, value in (received.application_properties or {}).items()}
    assert kinds == {name: type(value) for name, value in TYPED.items()}
    assert (received.properties, received.body) == (sent.properties, sent.body)


async def test_bytes_and_the_sdks_own_message_arrive_alike(
    driver: ServiceBusDriver, queue: str
) -> None:
    """P0: which way a message takes is nobody's business."""
    message = ServiceBusMessage("x", message_id="m", application_properties={"a": 1, "b": 2.5})
    sender, receiver = driver.sender(queue), driver.receiver(queue)
    await sender.send([OutgoingMessage(native=message)], timeout_s=TIMEOUT_S)
    await sender.send([OutgoingMessage(encode_native(message))], timeout_s=TIMEOUT_S)
    first, second = await one(receiver), await one(receiver)
    first.message_annotations = second.message_annotations = None
    first.delivery_annotations = second.delivery_annotations = None
    assert first == second
