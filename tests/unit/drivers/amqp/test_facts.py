"""What a delivered message says about itself, read twice: with care, and by its looks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cpu_time import cpu_s
from twinbus.amqp.codec.types import Long, Symbol, Timestamp
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.drivers.amqp.delivery_metadata import MetadataReader

NUMBERS = st.integers(0, 2**63 - 1)
TIMES = st.integers(-(2**62), 2**62).map(Timestamp)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Messages as services deliver them, in many shapes."""
    annotations: dict[Any, Any] = {}
    if draw(st.booleans()):
        annotations[Symbol("x-opt-sequence-number")] = Long(draw(NUMBERS))
    if draw(st.booleans()):
        annotations[Symbol("x-opt-enqueued-time")] = draw(TIMES)
    if draw(st.booleans()):
        annotations[Symbol("x-opt-locked-until")] = draw(TIMES)
    if draw(st.booleans()):
        annotations[Symbol("x-opt-partition-key")] = draw(st.text(max_size=5))
    header = Header(
        durable=draw(st.booleans()),
        priority=draw(st.none() | st.integers(0, 9)),
        ttl_ms=draw(st.none() | st.integers(0, 2**32 - 1)),
        delivery_count=draw(st.sampled_from([0, 1, 200, 70_000])),
    )
    pairs = list(annotations.items())
    order = draw(st.permutations(pairs))
    return Message(
        header=header if draw(st.booleans()) else None,
        delivery_annotations={Symbol("x-opt-lock-token"): draw(st.uuids())}
        if draw(st.booleans())
        else None,
        message_annotations=dict(order) if order else None,
        properties=Properties(message_id=draw(st.text(max_size=9))),
        body=draw(st.binary(max_size=40)),
    ).encode()


def plainly(encoded: bytes) -> tuple[Any, ...]:
    """The facts, from a decoder that takes its time."""
    message = Message.decode(encoded)
    noted = message.message_annotations or {}
    return (
        noted.get("x-opt-sequence-number", 0),
        noted.get("x-opt-enqueued-time"),
        noted.get("x-opt-locked-until"),
        message.header.delivery_count if message.header else 0,
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(messages(), max_size=4), st.booleans())
def test_facts_are_those_of_the_decoder(stream: list[bytes], is_repeated: bool) -> None:
    reader = MetadataReader()
    for encoded in stream * 2 if is_repeated else stream:
        assert tuple(reader.read(encoded)) == plainly(encoded)


def delivered(number: int, **header: Any) -> bytes:
    return Message(
        header=Header(durable=True, **header),
        message_annotations={
            Symbol("x-opt-sequence-number"): Long(number),
            Symbol("x-opt-enqueued-time"): Timestamp(number * 7),
        },
        body=b"x" * (number % 50),
    ).encode()


def test_messages_that_look_alike_are_read_with_care_once() -> None:
    # Given a reader that counts how often it takes care
    reader = MetadataReader()
    careful: list[bytes] = []
    read_with_care = reader._parse
    reader._parse = lambda m: careful.append(m) or read_with_care(m)  # type: ignore[func-returns-value, method-assign, return-value]

    # When a hundred messages come, then one with a time to live, then another hundred
    for number in [*range(2**40, 2**40 + 100)]:
        assert reader.read(delivered(number))[0] == number
    assert reader.read(delivered(7_000_000_000, ttl_ms=90_000))[0] == 7_000_000_000
    for number in [*range(2**40, 2**40 + 100)]:
        assert reader.read(delivered(number))[1] == number * 7

    # Then three looked new
    assert len(careful) == 3


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    reader = MetadataReader()
    for encoded in (delivered(2**40), data, delivered(2**40)[:-5], delivered(2**40)[:20]):
        assert len(reader.read(encoded)) == 4


def test_a_large_message_is_read_as_fast_as_a_small_one() -> None:
    """M13: only what the service has written is looked at, and not much of that."""
    small = delivered(2**40)
    large = small + b"\x00\x53\x75\xa0\x00" * 200_000
    many = {Symbol(f"x-{number}"): number for number in range(60_000)}
    noted = Message(message_annotations=many).encode()
    reader = MetadataReader()
    assert cpu_s(lambda: (reader._parse(large), reader.read(noted))) < 0.005
    assert reader._parse(large) == reader._parse(small)
    assert reader.read(noted) == (0, None, None, 0)
