"""Messages that are too large, too many or oddly empty (cases 25 to 32): taken whole or not at all.

A refusal is a rejected delivery with its own condition; the link stays, the queue is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from tests.adversarial.talk import BATCH, batch_of
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.link import SenderLink
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.amqp.message.sections import scan_message

MESSAGE_BYTES_MAX = 262_144
PROPERTIES_BYTES_MAX = 65_536
PROPERTY_BYTES_MAX = 32_768
LONG = PROPERTY_BYTES_MAX + 1

TOO_LARGE = "amqp:link:message-size-exceeded"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
NOT_AMQP = "amqp:decode-error"


class Place:
    """A queue, a client of it, and its link."""

    def __init__(self, broker: BrokerProcess, client: WireClient) -> None:
        self.broker = broker
        self.client = client
        self.queue = broker.fresh_queue()
        self.sender: SenderLink = client.attach_sender(self.queue)

    def send(self, payload: bytes, message_format: int = 0) -> Any:
        return self.client.send(self.sender, payload, message_format=message_format)

    def refused(self, payload: bytes, condition: str, message_format: int = 0) -> None:
        """It is refused with that condition, nothing got in, and the link still works."""
        before = self.broker.counts(self.queue)
        state = self.send(payload, message_format)
        assert isinstance(state, Rejected) and state.error is not None
        assert state.error.condition == condition
        assert_well_put(state.error.description)
        assert self.broker.counts(self.queue) == before
        assert self.send(Message(body=b"after").encode()) == Accepted()

    def received(self, count: int = 1) -> list[bytes]:
        """The payloads of the next messages, taken out of the queue."""
        receiver = self.client.attach_receiver(self.queue, snd_settle_mode=1)
        receiver.grant(count)
        return [self.client.wait_for(DeliveryReceived).payload for _ in range(count)]


@pytest.fixture
def place(broker: BrokerProcess) -> Iterator[Place]:
    with connected(broker.port, broker.token()) as client:
        yield Place(broker, client)


def message_of(size: int) -> bytes:
    """A message with one data section that is exactly ``size`` bytes long."""
    overhead = len(Message(body=bytes(1_000)).encode()) - 1_000
    return Message(body=b"x" * (size - overhead)).encode()


def with_properties(**properties: Any) -> bytes:
    return Message(application_properties=properties, body=b"x").encode()


def bare_of(payload: bytes) -> bytes:
    sections = scan_message(payload, 0, len(payload), body_required=False)
    return payload[sections.properties_start : sections.bare_end]


def map_section(pairs: list[bytes], count: int) -> bytes:
    """Application properties as given, however wrong their count is."""
    body = b"".join(pairs)
    head = (len(body) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
    return b"\x00\x53\x74\xd1" + head + body + b"\x00\x53\x75\xa0\x01x"


def tiny_pairs(count: int) -> list[bytes]:
    """Properties of six bytes each: a key of three letters, and null."""
    letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    base = len(letters)
    keys = (
        bytes((letters[i % base], letters[i // base % base], letters[i // base**2]))
        for i in range(count)
    )
    return [b"\xa1\x03" + key + b"\x40" for key in keys]


def test_case_25_a_message_of_exactly_the_limit_is_taken_and_comes_back_whole(place: Place) -> None:
    """M3: 262,144 bytes, counted as the sender encoded them."""
    payload = message_of(MESSAGE_BYTES_MAX)
    assert len(payload) == MESSAGE_BYTES_MAX
    assert place.send(payload) == Accepted()
    assert bare_of(place.received()[0]) == payload


@pytest.mark.parametrize("in_batch", [False, True], ids=["case-25-alone", "case-25-in-a-batch"])
def test_one_byte_more_than_the_limit_is_refused(place: Place, in_batch: bool) -> None:
    """M3: the envelope of a batch does not make room for a larger message."""
    payload = message_of(MESSAGE_BYTES_MAX + 1)
    if in_batch:
        place.refused(batch_of(payload), TOO_LARGE, BATCH)
    else:
        place.refused(payload, TOO_LARGE)


def test_case_25_and_27_the_stock_sdk_sees_the_reason(broker: BrokerProcess) -> None:
    """M3, M10: its own exception classes, at once and without a retry."""
    queue = broker.fresh_queue()
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError) as too_large:
            sender.send_messages(ServiceBusMessage(b"x" * MESSAGE_BYTES_MAX), timeout=10)
        assert_well_put(too_large.value.message.splitlines()[0].rstrip(), *broker.root_rule[1:])
        large = ServiceBusMessage(b"x", application_properties={"p": "a" * LONG})
        with pytest.raises(ServiceBusError, match="The property 'p' has more than 32768 bytes"):
            sender.send_messages(large, timeout=10)
    assert broker.counts(queue)["active_message_count"] == 0


def test_case_27_properties_up_to_both_limits_are_taken(place: Place) -> None:
    """M3: one of 32,768 bytes, and all of them 65,536 bytes long."""
    first = "a" * PROPERTY_BYTES_MAX
    spare = len(encode_value({"first": first, "second": "b" * 1_000})) - 1_000
    properties = {"first": first, "second": "b" * (PROPERTIES_BYTES_MAX - spare)}
    assert len(encode_value(properties)) == PROPERTIES_BYTES_MAX
    payload = with_properties(**properties)
    assert place.send(payload) == Accepted()
    assert bare_of(place.received()[0]) == payload
    properties["second"] += "b"
    place.refused(with_properties(**properties), OUT_OF_RANGE)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(application_properties={"p": "a" * LONG}), id="case-27-string"),
        pytest.param(Message(application_properties={"p": b"a" * LONG}), id="case-27-binary"),
        pytest.param(
            Message(application_properties={"p": "\u20ac" * 10_923}), id="case-27-bytes-not-letters"
        ),
        pytest.param(Message(application_properties={"k" * LONG: 1}), id="case-27-key"),
        pytest.param(Message(properties=Properties(subject="a" * LONG)), id="case-27-subject"),
        pytest.param(
            Message(
                properties=Properties(to="a" * 30_000, subject="b" * 30_000),
                application_properties={"p": "c" * 10_000},
            ),
            id="case-27-all-sections-together",
        ),
        pytest.param(
            Message(message_annotations={f"x-opt-{i}": "a" * 30_000 for i in range(3)}),
            id="case-27-annotations",
        ),
    ],
)
def test_a_property_beyond_the_limits_is_refused(place: Place, message: Message) -> None:
    """M3: whatever section it stands in."""
    message.body = b"x"
    place.refused(message.encode(), OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("pair_count", "told_count", "condition"),
    [
        pytest.param(65_537, 131_074, TOO_LARGE, id="case-28-65537-properties"),
        pytest.param(32_769, 65_538, NOT_AMQP, id="case-28-more-than-a-message-may-hold"),
        pytest.param(10_923, 21_846, OUT_OF_RANGE, id="case-28-more-than-64-kb"),
        pytest.param(1_025, 2_050, OUT_OF_RANGE, id="case-28-one-more-than-fits"),
        pytest.param(10, 131_074, NOT_AMQP, id="case-28-a-count-that-lies"),
        pytest.param(10, 0xFFFFFFFF, NOT_AMQP, id="case-28-a-count-of-four-thousand-million"),
        pytest.param(10, 19, NOT_AMQP, id="case-28-half-a-pair"),
    ],
)
def test_too_many_properties_are_refused(
    place: Place, pair_count: int, told_count: int, condition: str
) -> None:
    """M3: by their declared number, before anything of that size is built."""
    place.refused(map_section(tiny_pairs(pair_count), told_count), condition)


def test_case_28_as_many_properties_as_fit_are_taken(place: Place) -> None:
    """M3, M13: a thousand of them, each of which a rule may have to build."""
    payload = map_section(tiny_pairs(1_000), 2_000)
    assert place.send(payload) == Accepted()
    assert bare_of(place.received()[0]) == payload


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(body=b""), id="case-29-no-bytes"),
        pytest.param(Message(body=AmqpValue(None)), id="case-29-null"),
        pytest.param(Message(body=AmqpValue("")), id="case-29-empty-string"),
        pytest.param(Message(body=AmqpSequence(([],))), id="case-29-empty-list"),
        pytest.param(Message(body=DataSections((b"",) * 4_500)), id="case-29-4500-empty"),
        pytest.param(
            Message(body=DataSections(tuple(b"%d" % i for i in range(4_500)))),
            id="case-29-4500-data-sections",
        ),
        pytest.param(Message(body=AmqpSequence(([],) * 2_000)), id="case-29-2000-sequences"),
    ],
)
def test_an_odd_body_comes_back_as_it_was_sent(place: Place, message: Message) -> None:
    """M1: byte for byte."""
    message.properties = Properties(message_id="odd")
    payload = message.encode()
    assert place.send(payload) == Accepted()
    assert bare_of(place.received()[0]) == payload


def test_case_30_a_batch_of_4500_tiny_messages_is_taken_whole(place: Place) -> None:
    """M3: in order, each a message of its own."""
    messages = [Message(body=b"%d" % number).encode() for number in range(4_500)]
    assert place.send(batch_of(*messages), BATCH) == Accepted()
    assert place.broker.counts(place.queue)["active_message_count"] == 4_500
    assert [bare_of(payload) for payload in place.received(4_500)] == messages


PING = Message(
    header=Header(ttl_ms=1_000),
    properties=Properties(content_type="application/vnd.ms-servicebus-ping"),
    body=b"not empty",
).encode()
BAD_MESSAGES = {
    "truncated": (Message(body=b"x" * 50).encode()[:-1], NOT_AMQP),
    "not-a-section": (b"\x00\x53\x10\x45", NOT_AMQP),
    "too-large": (message_of(MESSAGE_BYTES_MAX + 1), TOO_LARGE),
    "long-id": (Message(properties=Properties(message_id="i" * 129)).encode(), OUT_OF_RANGE),
    "ping-with-a-body": (PING, "com.microsoft:argument-error"),
}


@pytest.mark.parametrize("kind", BAD_MESSAGES, ids=lambda kind: f"case-30-{kind}")
def test_one_bad_message_refuses_its_whole_batch(place: Place, kind: str) -> None:
    """M3: all or nothing, wherever the bad one stands."""
    bad, condition = BAD_MESSAGES[kind]
    good = [Message(body=b"%d" % number).encode() for number in range(20)]
    for position in (0, 10, 20):
        place.refused(batch_of(*good[:position], bad, *good[position:]), condition, BATCH)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(Properties(message_id="i" * 129), id="case-32-message-id"),
        pytest.param(Properties(message_id=b"i" * 129), id="case-32-binary-message-id"),
        pytest.param(Properties(message_id="\U0001f600" * 129), id="case-32-wide-message-id"),
        pytest.param(Properties(group_id="s" * 129), id="case-32-session-id"),
        pytest.param(Properties(message_id="i", group_id="s" * 60_000), id="case-32-huge-id"),
    ],
)
def test_an_id_of_129_characters_is_refused(place: Place, properties: Properties) -> None:
    """M3: Service Bus allows 128."""
    payload = Message(properties=properties, body=b"x").encode()
    place.refused(payload, OUT_OF_RANGE)
    place.refused(batch_of(payload), OUT_OF_RANGE, BATCH)


@pytest.mark.parametrize("letter", ["i", "\U0001f600"], ids=["case-32-narrow", "case-32-wide"])
def test_an_id_of_128_characters_is_kept(place: Place, letter: str) -> None:
    """M3: characters count, not bytes."""
    properties = Properties(message_id=letter * 128, group_id=letter * 128)
    payload = Message(properties=properties, body=b"x").encode()
    assert place.send(payload) == Accepted()
    assert bare_of(place.received()[0]) == payload
