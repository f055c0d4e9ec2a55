"""BrokeredMessage and its bytes: what is sent, what is received, what is refused."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import scalars, texts, typed, values
from tests.support.amqp.worst_inputs import a_map, uuid_keys
from tests.support.cpu_time import cpu_s
from tests.support.roundtrip import NOW_MS, as_delivered
from twinbus.amqp.codec.types import Described, Long, Symbol, Timestamp, UInt, ULong
from twinbus.amqp.message.message import (
    AmqpSequence,
    AmqpValue,
    DataSections,
    Message,
    UndecodedBody,
)
from twinbus.amqp.message.properties import Header, Properties
from twinbus.encoding.brokered_message import decode_message, encode_message, moment_of, ms_of
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import InvalidMessage, ServiceError
from twinbus.message import BrokeredMessage

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def received(encoded: bytes, **facts: Any) -> BrokeredMessage:
    facts = {"path": "orders", "sequence_number": 41, **facts}
    return decode_message(ReceivedMessage(encoded=encoded, **facts))


def sent_part(message: BrokeredMessage) -> BrokeredMessage:
    """The message without what the service said."""
    return replace(
        message,
        sequence_number=None,
        enqueued_sequence_number=None,
        enqueued_time_utc=None,
        locked_until_utc=None,
        delivery_count=0,
        lock_token=None,
        dead_letter_source=None,
    )


# --- there and back ----------------------------------------------------------------------------

ids = texts | st.uuids() | st.binary(max_size=8) | st.integers(0, 2**64 - 1)
ascii_texts = st.text(st.characters(max_codepoint=127), max_size=20)
brokered = st.builds(
    BrokeredMessage,
    st.one_of(
        st.none(),
        st.binary(max_size=300),
        st.lists(st.binary(max_size=9), min_size=2).map(lambda i: DataSections(tuple(i))),
        values.map(AmqpValue),
        st.lists(st.lists(values, max_size=2), min_size=1, max_size=2).map(
            lambda lists: AmqpSequence(tuple(lists))
        ),
    ),
    message_id=st.none() | ids,
    session_id=st.none() | texts,
    correlation_id=st.none() | ids,
    subject=st.none() | texts,
    to=st.none() | texts,
    reply_to=st.none() | texts,
    reply_to_session_id=st.none() | texts,
    content_type=st.none() | ascii_texts,
    content_encoding=st.none() | ascii_texts,
    priority=st.none() | st.integers(0, 255),
    time_to_live=st.none()
    | st.integers(1, 922_337_203_685_477).map(lambda ms: timedelta(milliseconds=ms))
    | st.sampled_from([2**32 - 2, 2**32 - 1, 2**32]).map(lambda ms: timedelta(milliseconds=ms)),
    scheduled_enqueue_time_utc=st.none()
    | st.datetimes(timezones=st.just(UTC)).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
    properties=st.dictionaries(texts, scalars, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(message=brokered)
def test_what_was_encoded_decodes_to_an_equal_message(message: BrokeredMessage) -> None:
    """P12: every field, and the AMQP type of every property."""
    back = received(encode_message(message))

    expected = message
    # The expiry of a long time to live ends with the calendar.
    if message.time_to_live is not None and message.time_to_live > timedelta(days=50_000):
        assert back.time_to_live is not None
        expected = replace(message, time_to_live=back.time_to_live)
    assert sent_part(back) == expected
    assert typed(back.properties) == typed(message.properties)


def test_what_is_not_set_takes_no_bytes() -> None:
    """P0: a plain message is an id and a body, as the SDK would send it."""
    encoded = encode_message(BrokeredMessage(b"hello", message_id="m-1"))

    assert encoded == Message(properties=Properties(message_id="m-1"), body=b"hello").encode()
    assert encode_message(BrokeredMessage(None, message_id=None)) == b""


def test_every_field_has_its_place_on_the_wire() -> None:
    """M10: the places where other libraries look for it."""
    message = BrokeredMessage(
        "grüße",
        message_id="m-1",
        session_id="berlin",
        correlation_id=ULong(7),
        subject="label",
        to="to",
        reply_to="back",
        reply_to_session_id="paris",
        content_type="text/plain",
        content_encoding="utf-8",
        partition_key="berlin",
        priority=7,
        time_to_live=timedelta(seconds=90),
        scheduled_enqueue_time_utc=NOON,
        properties={"colour": "red", "size": UInt(3), "since": NOON},
    )

    wire = Message.decode(encode_message(message))

    assert wire == Message(
        header=Header(priority=7, ttl_ms=90_000),
        message_annotations={
            "x-opt-partition-key": "berlin",
            "x-opt-scheduled-enqueue-time": ms_of(NOON),
        },
        properties=Properties(
            message_id="m-1",
            to="to",
            subject="label",
            reply_to="back",
            correlation_id=7,
            content_type="text/plain",
            content_encoding="utf-8",
            group_id="berlin",
            reply_to_group_id="paris",
        ),
        application_properties={"colour": "red", "size": 3, "since": ms_of(NOON)},
        body="grüße".encode(),
    )
    assert type((wire.application_properties or {})["since"]) is Timestamp


@pytest.mark.parametrize(
    ("body", "back"),
    [
        ("text", b"text"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ([b"a", b"b"], DataSections((b"a", b"b"))),
        ((b"a",), b"a"),
        (AmqpValue({"a": 1}), AmqpValue({"a": 1})),
        (AmqpSequence(([1], [2])), AmqpSequence(([1], [2]))),
        (None, None),
    ],
)
def test_bodies_of_every_kind(body: Any, back: Any) -> None:
    assert received(encode_message(BrokeredMessage(body))).body == back


def test_a_long_time_to_live_travels_as_two_times() -> None:
    """M3: a header has room for 49 days."""
    year = timedelta(days=365)

    wire = Message.decode(encode_message(BrokeredMessage(time_to_live=year), now_ms=NOW_MS))

    assert wire.header == Header(ttl_ms=2**32 - 1)
    assert wire.properties is not None
    assert wire.properties.creation_time == NOW_MS
    assert wire.properties.absolute_expiry_time == NOW_MS + 365 * 86_400_000


def test_a_message_has_an_id_of_its_own() -> None:
    """Y1: so that duplicate detection can recognise a repeat."""
    first, second = BrokeredMessage(), BrokeredMessage()

    assert first.message_id != second.message_id
    assert UUID(str(first.message_id))


def test_a_schedule_in_another_zone_is_the_same_moment() -> None:
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))

    back = received(encode_message(BrokeredMessage(scheduled_enqueue_time_utc=tokyo)))

    assert back.scheduled_enqueue_time_utc == NOON


def test_encoding_does_not_change_the_message() -> None:
    """P12: the caller's object stays as it was."""
    message = BrokeredMessage("text", message_id="m", properties={"since": NOON})
    before = replace(message, properties=dict(message.properties))

    encode_message(message)

    assert message == before


# --- what the service says ---------------------------------------------------------------------


def test_a_received_message_tells_what_the_service_said() -> None:
    """M2: number, times, count and lock."""
    token = bytes(range(16))
    encoded = as_delivered(encode_message(BrokeredMessage(b"x", time_to_live=timedelta(hours=1))))

    message = received(
        encoded,
        enqueued_at_ms=NOW_MS,
        locked_until_ms=NOW_MS + 60_000,
        delivery_count=2,
        lock_token=token,
    )

    assert message.sequence_number == 41
    assert message.enqueued_time_utc == moment_of(NOW_MS)
    assert message.locked_until_utc == moment_of(NOW_MS + 60_000)
    assert message.expires_at_utc == moment_of(NOW_MS + 3_600_000)
    assert message.delivery_count == 2
    assert message.lock_token == UUID(bytes_le=token)
    encode_message(message)


def test_a_dead_letter_tells_why_it_is_one() -> None:
    """M2: the reason, its description and where it came from."""
    encoded = Message(
        message_annotations={
            "x-opt-deadletter-source": "orders",
            "x-opt-enqueue-sequence-number": Long(5),
        },
        application_properties={
            "DeadLetterReason": "broken",
            "DeadLetterErrorDescription": "it is",
        },
    ).encode()

    message = received(encoded, path="orders/$DeadLetterQueue")

    assert message.dead_letter_source == "orders"
    assert message.enqueued_sequence_number == 5
    assert message.dead_letter_reason == "broken"
    assert message.dead_letter_error_description == "it is"


def test_what_dotnet_sends_can_be_received() -> None:
    """M10: a TimeSpan among the properties is a described value, which AMQP does not foresee."""
    span = Described(Symbol("com.microsoft:timespan"), Long(5))

    assert received(Message(application_properties={"t": span}).encode()).properties == {"t": span}


def test_moments_beyond_the_calendar_are_its_edges() -> None:
    assert moment_of(2**62) == datetime.max.replace(tzinfo=UTC)
    assert moment_of(-(2**62)) == datetime.min.replace(tzinfo=UTC)
    assert moment_of(None) is None
    far = BrokeredMessage(time_to_live=timedelta(days=36_500_00), enqueued_time_utc=NOON)
    assert far.expires_at_utc is None


@pytest.mark.parametrize("encoded", [b"\x00", b"\x00\x53\x73\xc0", b"\x00\x53\x75\xa0\x05ab", b"x"])
def test_bytes_that_are_no_message_are_an_error_of_the_service(encoded: bytes) -> None:
    with pytest.raises(ServiceError, match="not an AMQP message") as caught:
        received(encoded)
    assert caught.value.path == "orders"


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("message_id", "m" * 129, "got 129"),
        ("message_id", b"m" * 129, "got 129"),
        ("session_id", "s" * 129, "got 129"),
        ("reply_to_session_id", "s" * 129, "got 129"),
        ("partition_key", "p" * 129, "got 129"),
        ("session_id", 5, "got int"),
        ("subject", b"label", "got bytes"),
        ("time_to_live", timedelta(0), "got 0:00:00"),
        ("time_to_live", timedelta(seconds=-1), "time_to_live"),
        ("time_to_live", timedelta.max, "time_to_live"),
        ("time_to_live", 60, "got int"),
        ("scheduled_enqueue_time_utc", datetime(2026, 11, 16), "has no time zone"),
        ("scheduled_enqueue_time_utc", "tomorrow", "got str"),
        ("priority", 256, "got 256"),
        ("priority", -1, "got -1"),
        ("priority", "high", "got 'high'"),
    ],
)
def test_what_no_service_takes_is_refused_when_built_and_when_sent(
    field: str, value: Any, sentence: str
) -> None:
    """P7: an argument that is wrong is the caller's to hear, outage or not."""
    with pytest.raises(InvalidMessage, match=sentence) as caught:
        BrokeredMessage(**{field: value})
    assert caught.value.name == field

    message = BrokeredMessage()
    setattr(message, field, value)
    with pytest.raises(InvalidMessage, match=sentence):
        encode_message(message)


@pytest.mark.parametrize(
    "parts",
    [
        {"message_id": 1.5},
        {"message_id": True},
        {"message_id": -1},
        {"correlation_id": 2**64},
        {"content_type": "grün"},
        {"subject": "\ud800"},
        {"body": 5},
        {"body": []},
        {"body": ["text"]},
        {"body": "\ud800"},
        {"body": AmqpValue(object())},
        {"properties": {"a": [1]}},
        {"properties": {"a": {"b": 1}}},
        {"properties": {"a": object()}},
        {"properties": {"a": timedelta(1)}},
        {"properties": {"a": datetime(2026, 11, 16)}},
        {"properties": {"a": 2**70}},
        {"properties": {5: "a"}},
    ],
)
def test_what_has_no_amqp_form_is_refused_with_a_sentence(parts: dict[str, Any]) -> None:
    """P7: by one family of errors."""
    with pytest.raises(InvalidMessage) as caught:
        encode_message(BrokeredMessage(**parts))
    assert isinstance(caught.value, ValueError)
    assert caught.value.hint


def test_a_partition_key_and_a_session_do_not_contradict_each_other() -> None:
    BrokeredMessage(session_id="s", partition_key="s")
    with pytest.raises(InvalidMessage, match="session_id"):
        BrokeredMessage(session_id="s", partition_key="p")


def test_a_message_in_a_log_shows_neither_body_nor_properties() -> None:
    message = BrokeredMessage(
        b"secret", message_id="m-1", subject="label", properties={"token": "secret"}
    )

    assert repr(message) == "BrokeredMessage(6 bytes, message_id='m-1', subject='label')"
    assert "secret" not in repr(replace(message, body="secret"))


def test_a_body_with_colliding_keys_is_delivered_as_it_came() -> None:
    """M13: a stored body froze the client that received it for 7.7 s."""
    body = b"\x00\x53\x77" + a_map(uuid_keys(2_000))
    encoded = encode_message(BrokeredMessage(None, message_id="7")) + body

    message = received(encoded)

    assert cpu_s(lambda: received(encoded)) < 0.01
    assert isinstance(message.body, UndecodedBody)
    assert message.body.sections == body
    assert "too many keys" in message.body.reason
    assert message.message_id == "7"
    # And it can be sent on, byte for byte.
    assert encode_message(BrokeredMessage(message.body, message_id="7")) == encoded


def large_messages() -> dict[str, tuple[BrokeredMessage, bytes]]:
    """Messages of very many small parts, each with the bytes of what they are made of."""
    numbers = list(range(60_000))
    names = {f"p{number}": number for number in range(30_000)}
    made = {
        "list": BrokeredMessage(AmqpValue(numbers), message_id="7"),
        "sequences": BrokeredMessage(AmqpSequence(([1],) * 12_000), message_id="7"),
        "data": BrokeredMessage([b""] * 50_000, message_id="7"),
        "properties": BrokeredMessage(b"x", message_id="7", properties=names),
    }
    return {name: (message, encode_message(message)) for name, message in made.items()}


@pytest.mark.parametrize("kind", large_messages())
def test_what_takes_long_is_decoded_when_somebody_looks(kind: str) -> None:
    """M13: whoever receives a message is not held up by what its sender made of it."""
    sent, encoded = large_messages()[kind]

    message = received(encoded)

    assert cpu_s(lambda: received(encoded)) < 0.005
    assert message.message_id == "7"
    # Sent on without a look it has the same bytes; who looks sees everything, once.
    assert encode_message(message) == encoded
    assert message.properties == sent.properties
    assert message.body == received(encoded).body
    assert message.body is message.body
    assert encode_message(message) == encoded
    assert message.body in (sent.body, DataSections((b"",) * 50_000))


def test_what_was_not_looked_at_can_be_replaced_copied_and_pickled() -> None:
    _, encoded = large_messages()["list"]
    message = received(encoded)
    copies = (copy(message), deepcopy(message), pickle.loads(pickle.dumps(message)))
    assert all(each == message for each in copies)
    message = received(encoded)
    message.body = b"new"
    assert received(encode_message(message)).body == b"new"
    with pytest.raises(AttributeError):
        _ = message.colour  # type: ignore[attr-defined]


def test_thousands_of_annotations_are_not_shown() -> None:
    """M13: 1 MiB of them took 34 ms."""
    annotations = {Symbol(f"a{number}"): number for number in range(60_000)}
    encoded = Message(message_annotations=annotations, body=b"x").encode()

    message = received(encoded)

    assert cpu_s(lambda: received(encoded)) < 0.005
    assert message.body == b"x"


def test_a_property_that_is_a_list_is_no_message() -> None:
    """M13: thirteen of them would be decoded one after the other."""
    fields = b"".join(b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00" for _ in range(13))
    encoded = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 13)) + fields
    with pytest.raises(ServiceError):
        received(encoded + b"\x00\x53\x75\xa0\x00")


def test_a_body_with_a_few_uuids_as_keys_is_decoded() -> None:
    keys = {UUID(int=number): number for number in range(64)}
    encoded = encode_message(BrokeredMessage(AmqpValue(keys)))

    body = received(encoded).body

    assert body == AmqpValue(keys)


def test_a_body_of_a_hundred_thousand_elements_is_decoded() -> None:
    """What other services take is not refused by the client for its number of elements."""
    body = AmqpValue([["x", 1]] * 50_000)

    assert received(encode_message(BrokeredMessage(body))).body == body
