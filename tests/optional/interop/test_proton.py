"""Our codec next to Apache Qpid Proton, which shares no line and no author with it.

Run by `make interop`, because python-qpid-proton has no wheel and must be compiled.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import arrays, descriptors, scalars, symbols, texts, values
from tests.support.amqp_values import decode_all
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Array, Described, Symbol, Timestamp, UInt, ULong
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.amqp.message.sections import scan_message
from twinbus.amqp.performatives import (
    Attach,
    Close,
    Disposition,
    Error,
    Open,
    Performative,
    Rejected,
    Source,
    Target,
    encode_performative,
)


def through_proton(buf: bytes) -> bytes:
    """Read by Proton into its own tree, and written by Proton from that tree."""
    data = proton.Data()
    assert data.decode(buf) == len(buf), "Proton stopped before the end"
    return bytes(data.encode())


def without_widths(value: Any) -> Any:
    """Value and types; Proton chooses its own width for the elements of an array."""
    match value:
        case list():
            return [without_widths(item) for item in value]
        case dict():
            return [(without_widths(key), without_widths(item)) for key, item in value.items()]
        case Array(_, items, descriptor):
            return "array", without_widths(descriptor), [without_widths(item) for item in items]
        case Described(descriptor, described):
            return "described", without_widths(descriptor), without_widths(described)
        case _:
            return type(value).__name__, value


@settings(max_examples=1_000, deadline=None)
@given(scalars)
def test_a_simple_value_survives_the_way_through_proton(value: Any) -> None:
    again = decode_all(through_proton(encode_value(value)))

    assert without_widths(again) == without_widths(value)


@settings(max_examples=500, deadline=None)
@given(arrays())
def test_an_array_survives_the_way_through_proton(value: Array) -> None:
    again = decode_all(through_proton(encode_value(value)))

    assert without_widths(again) == without_widths(value)


def is_described_twice(value: Any) -> bool:
    """Whether a described value directly describes another, anywhere inside.

    Proton 0.40 loses count of the elements around such a value: it writes
    ``[Described(0, Described(0, None)), None]`` as a list whose size is wrong.
    """
    match value:
        case list():
            return any(is_described_twice(item) for item in value)
        case dict():
            return any(is_described_twice(item) for item in value.values())
        case Described(_, Described()):
            return True
        case Described(_, described):
            return is_described_twice(described)
        case _:
            return False


@settings(max_examples=1_000, deadline=None)
@given(
    (values | st.builds(Described, descriptors, values)).filter(
        lambda value: not is_described_twice(value)
    )
)
def test_any_value_survives_the_way_through_proton(value: Any) -> None:
    again = decode_all(through_proton(encode_value(value)))

    assert without_widths(again) == without_widths(value)


PERFORMATIVES = [
    Open("c", "host", 65_536, 255, 240_000, properties={"product": "twinbus"}),
    Attach("n", 0, True, 0, 1, Source("q", filter={"f": None}), Target("t"), properties={"a": 1}),
    Disposition(True, 1, 500, True, Rejected(Error("amqp:not-allowed", "no", {"why": "x"}))),
    Close(Error("amqp:connection:forced", "bye")),
]


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=lambda item: type(item).__name__)
def test_proton_reads_our_performatives_as_the_values_that_we_meant(
    performative: Performative,
) -> None:
    encoded = encode_performative(performative)

    assert decode_all(through_proton(encoded)) == decode_all(encoded)


def test_proton_refuses_what_we_refuse() -> None:
    """Bytes that are not values: a value missing, an odd map, a constructor that is none."""
    for sent in ("c003ff4040", "a105616263", "ff", "d000000005ffffffff40"):
        with pytest.raises(DecodeError):
            decode_all(bytes.fromhex(sent))
        with pytest.raises(proton.DataException):
            through_proton(bytes.fromhex(sent))


# --- messages ------------------------------------------------------------------------------------


def read_by_proton(message: Message) -> Any:
    seen = proton.Message()
    seen.decode(message.encode())
    return seen


def test_proton_reads_a_message_that_we_write() -> None:
    seen = read_by_proton(
        Message(
            header=Header(True, 7, 60_000, True, 2),
            delivery_annotations={"x-opt-lock-token": UUID(int=5)},
            message_annotations={"x-opt-sequence-number": 7, "x-opt-enqueued-time": Timestamp(8)},
            properties=Properties(
                message_id="id",
                user_id=b"user",
                to="to",
                subject="subject",
                reply_to="reply",
                correlation_id=ULong(9),
                content_type="text/plain",
                creation_time=5_000,
                group_id="session",
                group_sequence=3,
                reply_to_group_id="other",
            ),
            application_properties={"a": "text", "b": True, "c": UInt(4)},
            body=b"body",
        )
    )

    assert (seen.durable, seen.priority, seen.ttl) == (True, 7, 60.0)
    assert (seen.first_acquirer, seen.delivery_count) == (True, 2)
    assert seen.instructions == {"x-opt-lock-token": UUID(int=5)}
    assert seen.annotations == {"x-opt-sequence-number": 7, "x-opt-enqueued-time": 8}
    assert (seen.id, seen.user_id, seen.address, seen.subject) == ("id", b"user", "to", "subject")
    assert (seen.reply_to, seen.correlation_id, seen.content_type) == ("reply", 9, "text/plain")
    assert (seen.creation_time, seen.group_id, seen.group_sequence) == (5.0, "session", 3)
    assert seen.reply_to_group_id == "other"
    assert seen.properties == {"a": "text", "b": True, "c": 4}
    assert (bytes(seen.body), seen.inferred) == (b"body", True)


simple_properties = st.dictionaries(
    texts, texts | st.booleans() | st.uuids() | st.integers(-(2**63), 2**63 - 1), max_size=4
)


@settings(max_examples=300, deadline=None)
@given(texts, simple_properties, st.dictionaries(symbols, texts, max_size=3), st.binary())
def test_we_read_a_message_that_proton_writes(
    message_id: str, properties: dict[str, Any], annotations: dict[Symbol, str], body: bytes
) -> None:
    sent = proton.Message(
        id=message_id,
        properties=properties,
        annotations={proton.symbol(key): value for key, value in annotations.items()},
        body=body,
        inferred=True,
        content_type="text/plain",
        ttl=5,
        priority=9,
    )

    message = Message.decode(bytes(sent.encode()))

    assert message.header is not None and message.properties is not None
    assert (message.header.ttl_ms, message.header.priority) == (5_000, 9)
    assert message.properties.message_id == message_id
    assert message.properties.content_type == "text/plain"
    assert (message.application_properties or {}) == properties
    assert (message.message_annotations or {}) == annotations
    assert message.body == body


@pytest.mark.parametrize(
    ("body", "inferred", "expected"),
    [
        ("text", False, AmqpValue("text")),
        (None, False, AmqpValue(None)),
        ([1, "a"], True, AmqpSequence(([1, "a"],))),
        ({"a": [1]}, False, AmqpValue({"a": [1]})),
    ],
)
def test_we_read_the_kinds_of_bodies_that_proton_writes(
    body: Any, inferred: bool, expected: Any
) -> None:
    sent = bytes(proton.Message(body=body, inferred=inferred).encode())

    found = scan_message(sent, 0, len(sent), body_required=body is not None)

    if found.body:
        assert Message.decode(sent).body == expected
