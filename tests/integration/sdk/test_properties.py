"""Every property that the stock client can set comes back as it was sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from tests.support.sdk_clients import Sdk, receive, receive_one

NAMED = {
    "message_id": "id-1",
    "correlation_id": "correlation",
    "subject": "subject",
    "to": "to-address",
    "reply_to": "reply-address",
    "content_type": "text/plain; charset=utf-8",
    "session_id": "session",
    "reply_to_session_id": "reply-session",
    "partition_key": "session",
}

# What Python values become on the way, as the client's own documentation says: text is bytes
# when it comes back, and a time is milliseconds. Decimals are left out: the client cannot read
# those that it writes.
PYTHON_VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "true": (True, True),
    "false": (False, False),
    "zero": (0, 0),
    "small int": (-128, -128),
    "int": (2_147_483_647, 2_147_483_647),
    "float": (1.5e300, 1.5e300),
    "text": ("grüße 🚌", "grüße 🚌".encode()),
    "empty text": ("", b""),
    "long text": ("t" * 1_000, b"t" * 1_000),
    "ascii bytes": (b"text", b"text"),
    "uuid": (UUID(int=7), UUID(int=7)),
    "datetime": (datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), 1_893_553_445_000),
}
# The types that Python has no word for; the client sends them when told the type.
TYPED_VALUES: dict[str, Any] = {
    "UBYTE": 255,
    "BYTE": -128,
    "USHORT": 65_535,
    "SHORT": -32_768,
    "UINT": 4_294_967_295,
    "INT": -2_147_483_648,
    "ULONG": 18_446_744_073_709_551_615,
    "LONG": -9_223_372_036_854_775_808,
    "FLOAT": 0.5,
    "DOUBLE": -0.1,
    "TIMESTAMP": 1_700_000_000_000,
    "BINARY": b"\x00\xff",
    "SYMBOL": b"symbol",
    "BOOL": True,
}


@pytest.mark.parametrize("as_batch", [False, True], ids=["single", "batch"])
async def test_the_named_properties_come_back(sdk: Sdk, queue: str, as_batch: bool) -> None:
    """M10: every property of ServiceBusMessage is kept, on a queue without sessions too."""
    message = ServiceBusMessage("body", time_to_live=timedelta(hours=1), **NAMED)
    before = datetime.now(UTC) - timedelta(seconds=1)

    await sdk.send(queue, [message] if as_batch else message)

    received = await receive_one(sdk.receiver(queue))
    assert {name: getattr(received, name) for name in NAMED} == NAMED
    assert received.time_to_live == timedelta(hours=1)
    assert received.enqueued_time_utc is not None
    assert before < received.enqueued_time_utc < before + timedelta(minutes=1)
    assert received.expires_at_utc == received.enqueued_time_utc + timedelta(hours=1)
    assert received.locked_until_utc is not None
    assert received.locked_until_utc > received.enqueued_time_utc


async def test_a_message_without_properties_has_none_afterwards(sdk: Sdk, queue: str) -> None:
    """M10: nothing is invented."""
    await sdk.send(queue, ServiceBusMessage("bare"))

    received = await receive_one(sdk.receiver(queue))
    unset = {name: getattr(received, name) for name in NAMED if name != "message_id"}
    assert set(unset.values()) == {None}
    assert received.application_properties is None
    assert received.time_to_live is None
    assert received.scheduled_enqueue_time_utc is None
    assert received.dead_letter_source is None
    assert received.dead_letter_reason is None


@pytest.mark.parametrize("as_batch", [False, True], ids=["single", "batch"])
async def test_application_properties_keep_value_and_type(
    sdk: Sdk, queue: str, as_batch: bool
) -> None:
    """M10: every type that the client can send."""
    properties = {name: sent for name, (sent, _back) in PYTHON_VALUES.items()}
    properties |= {kind: {"TYPE": kind, "VALUE": value} for kind, value in TYPED_VALUES.items()}
    message = ServiceBusMessage("body", application_properties=properties)  # type: ignore[arg-type]

    await sdk.send(queue, [message] if as_batch else message)

    received = (await receive_one(sdk.receiver(queue))).application_properties
    expected = {name.encode(): back for name, (_sent, back) in PYTHON_VALUES.items()}
    expected |= {kind.encode(): value for kind, value in TYPED_VALUES.items()}
    assert received == expected
    assert received is not None
    assert received[b"true"] is True and received[b"zero"] is not False


RAW_BODIES: list[tuple[dict[str, Any], AmqpMessageBodyType, Any]] = [
    ({"data_body": b"one"}, AmqpMessageBodyType.DATA, [b"one"]),
    ({"data_body": [b"one", b"", b"two"]}, AmqpMessageBodyType.DATA, [b"one", b"", b"two"]),
    ({"value_body": "text"}, AmqpMessageBodyType.VALUE, b"text"),
    ({"value_body": 2_147_483_647}, AmqpMessageBodyType.VALUE, 2_147_483_647),
    (
        {"value_body": {"key": [-123, b"data", False]}},
        AmqpMessageBodyType.VALUE,
        {b"key": [-123, b"data", False]},
    ),
    (
        {"sequence_body": [b"one", 123.5, True]},
        AmqpMessageBodyType.SEQUENCE,
        [[b"one", 123.5, True]],
    ),
    ({"sequence_body": [[1, 2], [3]]}, AmqpMessageBodyType.SEQUENCE, [[1, 2], [3]]),
]


async def test_a_raw_body_of_any_kind_comes_back(sdk: Sdk, queue: str) -> None:
    """M10: data, value and sequence bodies, sent alone and in a batch."""
    messages = [AmqpAnnotatedMessage(**sent) for sent, _kind, _back in RAW_BODIES]
    await sdk.send(queue, *messages, messages)

    received = await receive(sdk.receiver(queue), 2 * len(messages))
    for message, (_sent, kind, back) in zip(received, [*RAW_BODIES, *RAW_BODIES], strict=True):
        raw = message.raw_amqp_message
        assert raw.body_type == kind
        assert (raw.body if kind is AmqpMessageBodyType.VALUE else list(raw.body)) == back


async def test_a_raw_message_keeps_its_sections(sdk: Sdk, queue: str) -> None:
    """M10: header, properties, annotations and footer of AmqpAnnotatedMessage."""
    properties = {
        "message_id": "id-2",
        "user_id": b"user",
        "to": "to",
        "subject": "subject",
        "reply_to": "reply",
        "correlation_id": "correlation",
        "content_type": "application/json",
        "content_encoding": "gzip",
        "creation_time": 1_700_000_000_000,
        "absolute_expiry_time": 1_900_000_000_000,
        "group_id": "group",
        "group_sequence": 7,
        "reply_to_group_id": "reply-group",
    }
    message = AmqpAnnotatedMessage(
        data_body=b"raw",
        header=AmqpMessageHeader(priority=9, durable=True),
        properties=AmqpMessageProperties(**properties),
        annotations={"x-opt-mine": "kept", "number": 5},
        delivery_annotations={"x-opt-lock-token": "forged", "for-the-next-hop": 1},
        application_properties={"application": "property"},
        footer={"footer": "end"},
    )

    await sdk.send(queue, message)

    received = await receive_one(sdk.receiver(queue))
    raw = received.raw_amqp_message
    assert raw.header is not None and raw.properties is not None
    assert (raw.header.priority, raw.header.durable) == (9, True)
    assert (raw.header.first_acquirer, raw.header.delivery_count) == (True, 0)
    assert {name: _text(raw.properties[name]) for name in properties} == properties
    assert raw.annotations is not None
    assert (raw.annotations[b"x-opt-mine"], raw.annotations[b"number"]) == (b"kept", 5)
    assert raw.application_properties == {b"application": b"property"}
    assert raw.footer == {b"footer": b"end"}
    # AMQP means delivery annotations for one hop; Service Bus hands them on, and so do we. What
    # only the broker may say is the broker's.
    assert raw.delivery_annotations == {
        b"x-opt-lock-token": received.lock_token,
        b"for-the-next-hop": 1,
    }


def _text(value: Any) -> Any:
    """The client gives text of the properties back as bytes; only the user id is such."""
    return value.decode() if isinstance(value, bytes) and value != b"user" else value


async def test_priority_is_kept(sdk: Sdk, queue: str) -> None:
    """M10: the priority of a message is the sender's; it does not change the order."""
    priorities = [1, 255, 0, 4]
    messages = [
        AmqpAnnotatedMessage(data_body=b"", header=AmqpMessageHeader(priority=priority))
        for priority in priorities
    ]
    await sdk.send(queue, *messages)

    received = [
        message.raw_amqp_message.header for message in await receive(sdk.receiver(queue), 4)
    ]
    assert [header.priority for header in received if header] == priorities


async def test_a_sender_cannot_speak_for_the_broker(sdk: Sdk, queue: str) -> None:
    """M2: sequence number, times, lock and state are the broker's words."""
    forged = {
        "x-opt-sequence-number": 999,
        "x-opt-enqueued-time": 1,
        "x-opt-locked-until": 1,
        "x-opt-message-state": 1,
        "x-opt-deadletter-source": "elsewhere",
        "x-opt-enqueue-sequence-number": 998,
    }
    await sdk.send(queue, AmqpAnnotatedMessage(data_body=b"forged", annotations=forged))

    received = await receive_one(sdk.receiver(queue))
    assert received.sequence_number == 1
    assert received.enqueued_time_utc is not None
    assert received.enqueued_time_utc.year > 2020
    assert received.locked_until_utc is not None
    assert received.locked_until_utc > received.enqueued_time_utc
    assert received.state == 0
    assert received.dead_letter_source is None
    assert received.enqueued_sequence_number is None
