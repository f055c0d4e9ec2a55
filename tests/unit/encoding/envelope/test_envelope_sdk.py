"""Messages as the stock Azure SDK encodes them, through the backlog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp import _encode as sdk_encode
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.support.roundtrip import essence, home_again
from twinbus.amqp.message.message import Message
from twinbus.encoding.envelope import alias, overhead_bytes, overhead_bytes_max, size_if_aliased

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ONE_OF_EACH = {
    "text": "grüße",
    "number": 5,
    "real": 1.5,
    "flag": True,
    "id": UUID(int=7),
    "nothing": None,
}


def sdk_bytes(message: AmqpAnnotatedMessage) -> bytes:
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    return bytes(sdk_encode.encode_payload(bytearray(), outgoing))


@pytest.mark.parametrize(
    "options",
    [
        {"message_id": "m-1"},
        {"message_id": "m-1", "application_properties": ONE_OF_EACH},
        {"session_id": "berlin"},
        {"session_id": "berlin", "partition_key": "berlin", "reply_to_session_id": "back"},
        {"time_to_live": timedelta(seconds=30)},
        {"time_to_live": timedelta(days=40)},
        {"scheduled_enqueue_time_utc": NOON},
        {
            "message_id": "m-1",
            "session_id": "é" * 128,
            "time_to_live": timedelta(seconds=30),
            "scheduled_enqueue_time_utc": NOON,
            "application_properties": ONE_OF_EACH,
            "subject": "label",
            "content_type": "application/json",
            "correlation_id": "c-1",
            "to": "to",
            "reply_to": "back",
        },
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize(
    "body", ["hello", b"x" * 1_000, None], ids=["text", "a kilobyte", "no body"]
)
def test_what_the_sdk_sends_comes_home_as_it_was(options: dict[str, Any], body: Any) -> None:
    """P12: with all that the SDK derives, such as the times of a time to live."""
    sent = sdk_bytes(ServiceBusMessage(body, **options).raw_amqp_message)

    copy = alias(sent, "orders")

    assert essence(home_again(copy)) == essence(sent)
    assert len(copy) == size_if_aliased(sent, "orders")
    assert overhead_bytes(sent, "orders") <= overhead_bytes_max("orders")


def test_the_sdks_times_are_gone_from_the_copy() -> None:
    """P12: no service can derive a time to live from what is left."""
    sent = sdk_bytes(ServiceBusMessage("x", time_to_live=timedelta(seconds=30)).raw_amqp_message)

    copy = Message.decode(alias(sent, "orders"))

    assert copy.header is None or copy.header.ttl_ms is None
    assert copy.properties is not None
    assert copy.properties.absolute_expiry_time is None


@pytest.mark.parametrize(
    "body",
    [
        {"data_body": [b"a", b"b"]},
        {"value_body": {"a": [1, None]}},
        {"sequence_body": [[1, 2], ["a"]]},
    ],
    ids=str,
)
def test_annotated_messages_come_home_with_their_sections(body: dict[str, Any]) -> None:
    """P12: with delivery annotations, which the SDK writes last, and a footer."""
    message = AmqpAnnotatedMessage(
        **body,
        annotations={"x-own": "kept"},
        delivery_annotations={"x-mine": "kept"},
        footer={"x-foot": "kept"},
        application_properties={"colour": "red"},
    )
    sent = sdk_bytes(message)

    assert essence(home_again(alias(sent, "orders"))) == essence(sent)
