"""Messages: where their sections are, and which bytes are not a message."""

from __future__ import annotations

import contextlib
import struct
import time
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import integers_of, scalars, symbols, texts, typed, values
from tests.support.cpu_time import is_quick
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Array, Described, Symbol, Timestamp, UInt, ULong
from twinbus.amqp.errors import DecodeError, TooManySections
from twinbus.amqp.limits import ANNOTATION_ELEMENT_COST, AmqpLimits, Budget
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import (
    Header,
    Properties,
    decode_properties,
    property_field,
)
from twinbus.amqp.message.sections import (
    SECTION_NAMES,
    BodyKind,
    MessageSections,
    is_plain,
    iter_batch,
    scan_message,
    scan_to_body,
)


def section(code: int | str, value: Any) -> bytes:
    descriptor = ULong(code) if isinstance(code, int) else Symbol(code)
    return encode_value(Described(descriptor, value))


def scan(buf: bytes, **options: Any) -> MessageSections:
    return scan_message(buf, 0, len(buf), **options)


DATA = section(0x75, b"body")
PROPERTIES = section(0x73, ["id"])

# --- a message as a value ------------------------------------------------------------------------

message_ids = st.none() | texts | st.uuids() | st.binary(max_size=9) | integers_of(ULong)
annotations = st.none() | st.dictionaries(symbols | integers_of(ULong), values, max_size=3)
messages = st.builds(
    Message,
    header=st.none()
    | st.builds(
        Header,
        st.booleans(),
        st.none() | st.integers(0, 255),
        st.none() | st.integers(0, 2**32 - 1),
        st.booleans(),
        st.integers(0, 2**32 - 1),
    ),
    delivery_annotations=annotations,
    message_annotations=annotations,
    properties=st.none()
    | st.builds(
        Properties,
        message_id=message_ids,
        user_id=st.none() | st.binary(max_size=9),
        to=st.none() | texts,
        subject=st.none() | texts,
        correlation_id=message_ids,
        content_type=st.none() | symbols,
        creation_time=st.none() | integers_of(Timestamp),
        group_id=st.none() | texts,
        group_sequence=st.none() | integers_of(UInt),
        reply_to_group_id=st.none() | texts,
    ),
    application_properties=st.none() | st.dictionaries(texts, scalars, max_size=4),
    body=st.binary(max_size=300)
    | st.lists(st.binary(max_size=9), min_size=2, max_size=4).map(
        lambda items: DataSections(tuple(items))
    )
    | st.lists(st.lists(values, max_size=2), min_size=1, max_size=3).map(
        lambda items: AmqpSequence(tuple(items))
    )
    | st.builds(AmqpValue, values),
    footer=annotations,
)


@settings(max_examples=400, deadline=None)
@given(messages)
def test_every_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    again = Message.decode(message.encode())

    assert again == message
    assert typed(again.application_properties) == typed(message.application_properties)
    assert typed(again.message_annotations) == typed(message.message_annotations)


@settings(max_examples=300, deadline=None)
@given(messages, st.binary(max_size=5), st.binary(max_size=5))
def test_the_spans_hold_what_the_sections_hold(
    message: Message, before: bytes, after: bytes
) -> None:
    # Given a message in the middle of a buffer
    encoded = message.encode()
    buf, start = before + encoded + after, len(before)

    # When it is scanned
    found = scan_message(buf, start, start + len(encoded))

    # Then each span is the value of its section
    def at(span: tuple[int, int] | None) -> Any:
        return span and decode_value(buf, span[0], span[1], Budget())[0]

    assert found.header == message.header
    assert at(found.delivery_annotations) == message.delivery_annotations
    assert at(found.message_annotations) == message.message_annotations
    assert at(found.application_properties) == message.application_properties
    assert at(found.footer) == message.footer
    if found.properties is not None:
        assert decode_properties(buf, found.properties) == message.properties


@settings(max_examples=300, deadline=None)
@given(messages)
def test_the_bare_message_is_everything_from_the_properties_on(message: Message) -> None:
    encoded = message.encode()
    bare = Message(
        properties=message.properties,
        application_properties=message.application_properties,
        body=message.body,
        footer=message.footer,
    ).encode()

    found = scan(encoded)

    assert encoded[found.properties_start : found.bare_end] == bare


@settings(max_examples=200, deadline=None)
@given(messages, st.data())
def test_a_message_cut_short_is_refused_or_is_a_shorter_message(
    message: Message, data: st.DataObject
) -> None:
    encoded = message.encode()
    end = data.draw(st.integers(0, len(encoded) - 1))

    with contextlib.suppress(DecodeError):
        found = scan_message(encoded, 0, end)
        assert found.bare_end == end
        assert Message.decode(encoded[:end]).encode() == encoded[:end]


def test_a_single_property_is_found_without_decoding_the_others() -> None:
    properties = Properties(
        message_id="id", to="somewhere", content_type="text/plain", group_id="session"
    )
    encoded = Message(properties=properties).encode()
    span = scan(encoded).properties
    assert span is not None

    assert property_field(encoded, span, 0) == "id"
    assert property_field(encoded, span, 5) is None
    assert property_field(encoded, span, 6) == "text/plain"
    assert property_field(encoded, span, 10) == "session"
    assert property_field(encoded, span, 12) is None


def test_properties_may_be_an_empty_list() -> None:
    encoded = section(0x73, []) + DATA
    span = scan(encoded).properties
    assert span is not None

    assert decode_properties(encoded, span) == Properties()
    assert property_field(encoded, span, 0) is None


# --- the body ------------------------------------------------------------------------------------

BODIES = {
    "one data": (section(0x75, b"x"), BodyKind.DATA, False),
    "no byte of data": (section(0x75, b""), BodyKind.DATA, True),
    "data sections without a byte": (section(0x75, b"") * 3, BodyKind.DATA, True),
    "a byte in the last data section": (
        section(0x75, b"") + section(0x75, b"x"),
        BodyKind.DATA,
        False,
    ),
    "long form of no data": (bytes.fromhex("005375b000000000"), BodyKind.DATA, True),
    "null": (section(0x77, None), BodyKind.VALUE, True),
    "empty string": (section(0x77, ""), BodyKind.VALUE, True),
    "empty binary": (section(0x77, b""), BodyKind.VALUE, True),
    "long form of an empty string": (bytes.fromhex("005377b100000000"), BodyKind.VALUE, True),
    "a zero": (section(0x77, UInt(0)), BodyKind.VALUE, False),
    "an empty list": (section(0x77, []), BodyKind.VALUE, False),
    "a string": (section(0x77, "x"), BodyKind.VALUE, False),
    "a sequence": (section(0x76, [1]), BodyKind.SEQUENCE, False),
}


@pytest.mark.parametrize(("body", "kind", "empty"), BODIES.values(), ids=BODIES.keys())
def test_the_kind_of_a_body_and_whether_it_is_empty_are_known(
    body: bytes, kind: BodyKind, empty: bool
) -> None:
    """M7: a ping has an empty body, so emptiness decides whether a message is swallowed."""
    found = scan(PROPERTIES + body)

    assert (found.body_kind, found.body_empty) == (kind, empty)
    assert found.body_start == len(PROPERTIES)


def test_4500_data_sections_are_one_body_and_more_are_too_many() -> None:
    """Case 29."""
    assert len(scan(PROPERTIES + section(0x75, b"x") * 4_500).body) == 4_500

    for code in (0x75, 0x76):
        value = b"\xa0\x01x" if code == 0x75 else b"\x45"
        with pytest.raises(TooManySections, match="4500"):
            scan(PROPERTIES + (b"\x00\x53" + bytes((code,)) + value) * 4_501)


def test_a_message_without_a_body_is_taken_only_when_asked_for() -> None:
    """Case 77; the Azure SDK makes such a message of ServiceBusMessage(None)."""
    with pytest.raises(DecodeError, match="no body section"):
        scan(PROPERTIES)

    found = scan(PROPERTIES, body_required=False)

    assert (found.body_kind, found.body_empty) == (BodyKind.NONE, True)
    assert (found.properties_start, found.bare_end) == (0, len(PROPERTIES))


# --- order of the sections -----------------------------------------------------------------------

ONE_OF_EACH = {
    0x70: section(0x70, []),
    0x71: section(0x71, {}),
    0x72: section(0x72, {}),
    0x73: section(0x73, []),
    0x74: section(0x74, {}),
    0x75: section(0x75, b"x"),
    0x78: section(0x78, {}),
}


def test_all_sections_in_order_are_a_message() -> None:
    found = scan(b"".join(ONE_OF_EACH.values()))

    assert found.header == Header()
    assert None not in (
        found.delivery_annotations,
        found.message_annotations,
        found.properties,
        found.application_properties,
        found.footer,
    )


@pytest.mark.parametrize("code", [0x70, 0x71, 0x72, 0x73, 0x74, 0x78])
def test_a_section_that_comes_twice_is_refused(code: int) -> None:
    """Case 77."""
    twice = [part * (2 if code == key else 1) for key, part in ONE_OF_EACH.items()]

    with pytest.raises(DecodeError, match=r"cannot follow|twice"):
        scan(b"".join(twice))


PAIRS_IN_ORDER = [(a, b) for a in ONE_OF_EACH for b in ONE_OF_EACH if a < b]


@pytest.mark.parametrize(("first", "second"), PAIRS_IN_ORDER)
def test_sections_out_of_order_are_refused(first: int, second: int) -> None:
    """Case 77: any two sections exchanged, in an otherwise whole message."""
    swapped = {**ONE_OF_EACH, first: ONE_OF_EACH[second], second: ONE_OF_EACH[first]}

    with pytest.raises(DecodeError, match="cannot follow"):
        scan(b"".join(swapped.values()))


@pytest.mark.parametrize(
    "body",
    [
        section(0x75, b"x") + section(0x77, "x"),
        section(0x75, b"x") + section(0x76, []),
        section(0x76, []) + section(0x77, "x"),
        section(0x77, "x") + section(0x77, "x"),
    ],
    ids=["data and value", "data and sequence", "sequence and value", "two values"],
)
def test_a_body_has_one_kind(body: bytes) -> None:
    with pytest.raises(DecodeError, match="cannot follow"):
        scan(body)


def test_delivery_annotations_may_come_last_because_the_sdk_sends_them_there() -> None:
    """They are no part of the bare message, which ends before them."""
    bare = PROPERTIES + DATA + section(0x78, {Symbol("f"): 1})
    late = section(0x71, {Symbol("a"): 1})

    found = scan(bare + late)

    assert (found.properties_start, found.bare_end) == (0, len(bare))
    assert found.delivery_annotations == (len(bare) + 3, len(bare + late))


@pytest.mark.parametrize("more", [DATA, section(0x78, {}), section(0x71, {})])
def test_nothing_follows_delivery_annotations_that_come_last(more: bytes) -> None:
    with pytest.raises(DecodeError, match="cannot follow"):
        scan(DATA + section(0x71, {}) + more)


def test_delivery_annotations_first_and_last_are_twice() -> None:
    with pytest.raises(DecodeError, match="twice"):
        scan(section(0x71, {}) + DATA + section(0x71, {}))


# --- descriptors ---------------------------------------------------------------------------------

SYMBOLS = [
    ("amqp:header:list", []),
    ("amqp:delivery-annotations:map", {}),
    ("amqp:message-annotations:map", {}),
    ("amqp:properties:list", []),
    ("amqp:application-properties:map", {}),
    ("amqp:data:binary", b"x"),
    ("amqp:footer:map", {}),
]


def test_sections_may_be_described_by_symbols() -> None:
    found = scan(b"".join(section(symbol, value) for symbol, value in SYMBOLS))

    assert found.body_kind is BodyKind.DATA
    assert found.properties is not None
    assert scan(section("amqp:amqp-value:*", 1)).body_kind is BodyKind.VALUE
    assert scan(section("amqp:amqp-sequence:list", [])).body_kind is BodyKind.SEQUENCE


def test_sections_may_be_described_by_long_ulongs() -> None:
    long_form = bytes.fromhex("00800000000000000075") + b"\xa0\x01x"

    found = scan(long_form)

    assert found.body == [(len(long_form) - 1, len(long_form))]


# --- hostile messages ----------------------------------------------------------------------------

LONE_KEY = bytes.fromhex("005374c10401a10161")
HOSTILE = {
    "61 prefix of a known section": (section("amqp:data", b"x"), "unknown descriptor"),
    "61 unknown section": (section(0x79, b"x") + DATA, "section 0x79 is unknown"),
    "61 performative instead of a section": (section(0x14, []) + DATA, "section 0x14 is unknown"),
    "61 not described": (encode_value("x"), "does not start with a descriptor"),
    "66 garbage after the body": (DATA + b"\x01", "does not start with a descriptor"),
    "66 half a descriptor after the body": (DATA + b"\x00\x53", "end inside|neither a ulong"),
    "66 a descriptor without a value": (DATA + b"\x00\x53\x78", "end inside"),
    "77 nothing": (b"", "no body section"),
    "77 header is a map": (section(0x70, {}) + DATA, "header is not a list"),
    "77 header with six fields": (section(0x70, [None] * 6) + DATA, "header has 6 fields"),
    "77 priority is a uint": (section(0x70, [None, UInt(4)]) + DATA, "header.priority is not"),
    "77 time to live is negative": (section(0x70, [None, None, -1]) + DATA, "header.ttl-ms is not"),
    "77 annotations are a list": (section(0x72, []) + DATA, "annotations are not a map"),
    "77 annotations are null": (section(0x72, None) + DATA, "annotations are not a map"),
    "77 annotation key is a string": (section(0x72, {"a": 1}) + DATA, "keys of annotations are"),
    "77 properties are a map": (section(0x73, {}) + DATA, "properties section is not a list"),
    "77 properties with 14 fields": (section(0x73, [None] * 14) + DATA, "have 14 fields"),
    "77 message-id is a double": (section(0x73, [1.5]) + DATA, "property message-id is not"),
    "77 message-id is a long": (section(0x73, [1]) + DATA, "property message-id is not"),
    "77 user-id is a string": (section(0x73, [None, "u"]) + DATA, "property user-id is not"),
    "77 to is a symbol": (section(0x73, [None, None, Symbol("q")]) + DATA, "property to is not"),
    "77 content-type is a string": (
        section(0x73, [None] * 6 + ["text/plain"]) + DATA,
        "property content-type is not",
    ),
    "77 creation-time is a long": (section(0x73, [None] * 9 + [1]) + DATA, "creation-time is not"),
    "77 group-id is a binary": (section(0x73, [None] * 10 + [b"g"]) + DATA, "group-id is not"),
    "77 group-sequence is a ulong": (
        section(0x73, [None] * 11 + [ULong(1)]) + DATA,
        "group-sequence is not",
    ),
    "77 application-properties are a list": (section(0x74, []) + DATA, "are not a map"),
    "64 application property with a symbol as key": (
        section(0x74, {Symbol("a"): 1}) + DATA,
        "keys of application-properties are strings",
    ),
    "64 application property with a null key": (
        bytes.fromhex("005374c103024040") + DATA,
        "keys of application-properties are strings",
    ),
    "64 application properties with an odd count": (LONE_KEY + DATA, "a key has no value"),
    "64 application property twice": (
        bytes.fromhex("005374c10904a1016141a1016142") + DATA,
        "same key twice",
    ),
    "64 application property twice, once with a long key": (
        bytes.fromhex("005374c10c04a1016141b1000000016142") + DATA,
        "same key twice",
    ),
    "64 annotation twice": (bytes.fromhex("005372c10904a3016141a3016142") + DATA, "same key twice"),
    "64 annotation twice, as two ulongs": (
        bytes.fromhex("005372c10e0453014180000000000000000142") + DATA,
        "same key twice",
    ),
    "77 application property is a list": (section(0x74, {"a": []}) + DATA, "hold a list, map"),
    "77 application property is a map": (section(0x74, {"a": {}}) + DATA, "hold a list, map"),
    "77 application property is an array": (
        section(0x74, {"a": Array(0x50, (1,))}) + DATA,
        "hold a list, map",
    ),
    "77 application property is described": (
        section(0x74, {"a": Described(ULong(1), 1)}) + DATA,
        "hold a list, map",
    ),
    "77 data is a string": (section(0x75, "x"), "not a whole binary"),
    "77 data is longer than the message": (bytes.fromhex("005375a00561"), "end inside a data"),
    "77 data declares 4 GiB": (bytes.fromhex("005375b0ffffffff61"), "end inside a data"),
    "77 data without its size": (bytes.fromhex("005375b00000"), "not a whole binary"),
    "77 sequence is a map": (section(0x76, {}), "not a list"),
    "77 footer is a list": (DATA + section(0x78, []), "are not a map"),
    "65 message-id is not UTF-8": (bytes.fromhex("005373c00401a101ff") + DATA, "not valid UTF-8"),
    "65 content-type is not ASCII": (
        bytes.fromhex("005373c00a07404040404040a301ff") + DATA,
        "outside ASCII",
    ),
    "65 property name is not UTF-8": (
        bytes.fromhex("005374c10502a101ff41") + DATA,
        "not valid UTF-8",
    ),
    "65 property value is not UTF-8": (
        bytes.fromhex("005374c10702a10161a101ff") + DATA,
        "not valid UTF-8",
    ),
    "65 annotation name is not ASCII": (
        bytes.fromhex("005372c10502a301ff41") + DATA,
        "outside ASCII",
    ),
    "65 body string is not UTF-8": (bytes.fromhex("005377a101ff"), "not valid UTF-8"),
    "62 body list with 2^32-1 elements": (
        bytes.fromhex("005377d000000005ffffffff40"),
        "declares 4294967295",
    ),
    "62 properties whose field runs over": (
        bytes.fromhex("005373c00401a13061") + DATA,
        "end inside|differs",
    ),
    "62 annotation value that runs over": (
        bytes.fromhex("005372c10502a3016183") + DATA,
        "differs|end inside",
    ),
    "62 annotation key that runs over": (
        bytes.fromhex("005372c10502a3306141") + DATA,
        "differs|end inside|not a constructor|neither",
    ),
    "62 map at the end of the bytes": (bytes.fromhex("005372c10502a3ff6141"), "end inside"),
}


@pytest.mark.parametrize(("sent", "told"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_message_is_refused_with_a_sentence(sent: bytes, told: str) -> None:
    with pytest.raises(DecodeError, match=told):
        scan(sent)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_body_of_64_levels_is_accepted_and_of_65_refused() -> None:
    """Case 63: the Azure SDK could not receive the second one."""
    head = b"\x00\x53\x77"
    scan(head + encode_value(nested(64)))

    deeper = encode_value(nested(64))
    deeper = b"\xd0" + struct.pack(">II", len(deeper) + 4, 1) + deeper
    with pytest.raises(DecodeError, match="nested too deeply"):
        scan(head + deeper)


def test_an_annotation_value_is_one_level_down() -> None:
    inner = encode_value(nested(64))
    allowed = b"\x00\x53\x72" + encode_value({Symbol("a"): nested(63)}) + DATA
    refused = (
        b"\x00\x53\x72\xd1" + struct.pack(">II", len(inner) + 7, 2) + b"\xa3\x01a" + inner + DATA
    )

    scan(allowed)

    with pytest.raises(DecodeError, match="nested too deeply"):
        scan(refused)


def test_the_count_of_elements_is_a_budget_of_the_whole_message() -> None:
    """Case 62: three maps, each allowed, and too many together."""
    many = {Symbol(f"a{index}"): index for index in range(5)}
    buf = section(0x71, many) + section(0x72, many) + DATA + section(0x78, many)

    needed = 30 * (1 + ANNOTATION_ELEMENT_COST)

    scan(buf, limits=AmqpLimits(compound_count_max=needed))

    with pytest.raises(DecodeError, match="too many for one message"):
        scan(buf, limits=AmqpLimits(compound_count_max=needed - 1))


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_is_the_messages_in_its_data_sections() -> None:
    inside = [
        Message(properties=Properties(message_id=str(number))).encode() for number in range(3)
    ]
    envelope = Message(
        header=Header(),
        message_annotations={"x-opt-partition-key": "k"},
        properties=Properties(message_id="0"),
        application_properties={"a": 1},
        body=DataSections(tuple(inside)),
        footer={"f": 1},
    ).encode()
    buf = b"before" + envelope + b"after"

    spans = iter_batch(buf, 6, 6 + len(envelope))

    assert [buf[start:end] for start, end in spans] == inside


def test_long_and_short_data_sections_both_hold_messages() -> None:
    short, long = Message(body=b"x").encode(), Message(body=b"x" * 300).encode()
    buf = section(0x75, short) + section(0x75, long)

    assert [buf[start:end] for start, end in iter_batch(buf, 0, len(buf))] == [short, long]


@pytest.mark.parametrize("body", [section(0x77, b"x"), section(0x76, [b"x"])])
def test_a_batch_with_another_body_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match="in data sections"):
        iter_batch(body, 0, len(body))


def test_a_batch_without_messages_is_refused() -> None:
    with pytest.raises(DecodeError, match="no body section"):
        iter_batch(PROPERTIES, 0, len(PROPERTIES))


def test_a_batch_in_a_batch_is_one_message_with_data() -> None:
    """Case 78: nothing is unpacked twice, so a nested envelope cannot multiply."""
    inner = section(0x75, Message(body=b"x").encode()) * 2
    middle = section(0x75, inner)

    [(start, end)] = iter_batch(middle, 0, len(middle))

    assert middle[start:end] == inner
    found = scan_message(middle, start, end)
    assert (found.body_kind, len(found.body)) == (BodyKind.DATA, 2)


def test_a_bad_message_in_a_batch_is_found_by_its_own_scan() -> None:
    """Case 30."""
    buf = section(0x75, DATA) + section(0x75, b"not a message")
    good, bad = iter_batch(buf, 0, len(buf))

    scan_message(buf, *good)
    with pytest.raises(DecodeError):
        scan_message(buf, *bad)


# --- fuzz ----------------------------------------------------------------------------------------

FUZZ_EXAMPLES = 20_000
SECONDS_MAX = 0.050


def damaged(message: bytes, random: Random) -> bytes:
    """A message with a few bytes changed, cut out or repeated."""
    buf = bytearray(message)
    for _ in range(random.randrange(1, 4)):
        pos = random.randrange(len(buf))
        match random.randrange(4):
            case 0:
                buf[pos] = random.randrange(256)
            case 1:
                buf[pos] = random.choice(
                    b"\x00\x40\x45\x53\x70\x73\x75\xa0\xa1\xa3\xc0\xc1\xd0\xd1\xff"
                )
            case 2:
                del buf[pos : pos + random.randrange(4)]
            case _:
                buf[pos:pos] = buf[pos : pos + random.randrange(8)]
        buf = buf or bytearray(b"\x00")
    return bytes(buf)


def test_a_damaged_message_is_refused_or_can_be_decoded_whole() -> None:
    """Nothing but DecodeError, within 50 ms; and what passes, every receiver can decode."""
    random = Random(11)
    whole = Message(
        header=Header(True, 3, 60_000, False, 2),
        delivery_annotations={"d": [1, {"k": Symbol("v")}]},
        message_annotations={"x-opt-partition-key": "k", ULong(7): Array(0x50, (1, 2))},
        properties=Properties("id", b"user", "to", "subject", "reply", "corr", "text/plain"),
        application_properties={"a": 1, "b": "text", "c": True, "d": None},
        body=AmqpValue({"list": [1, 2.5, "three"], "null": None}),
        footer={"f": b"x"},
    ).encode()
    accepted = 0
    for number in range(FUZZ_EXAMPLES):
        buf = damaged(whole, random)
        started = time.thread_time()
        try:
            scan(buf)
        except DecodeError:
            continue
        finally:
            spent_s = time.thread_time() - started
            assert is_quick(spent_s, partial(scan, buf), SECONDS_MAX), (number, buf.hex())
        accepted += 1
        try:
            Message.decode(buf)
        except DecodeError as error:
            if "same key" not in error.description:
                pytest.fail(f"example {number}, {buf.hex()}: {error}")
    assert accepted > FUZZ_EXAMPLES // 50


def test_every_section_has_a_name() -> None:
    assert sorted(SECTION_NAMES) == list(range(0x70, 0x79))


plain_messages = st.builds(
    lambda properties, body: Message(properties=properties, body=body).encode(),
    st.builds(
        Properties,
        message_id=st.none() | st.text(max_size=20) | st.uuids() | st.binary(max_size=9),
        subject=st.none() | st.text(max_size=20),
        group_id=st.none() | st.text(max_size=20),
        creation_time=st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    ),
    st.binary(max_size=400),
)


def with_long_list(message: bytes) -> bytes:
    """The same message with its properties as a long list, as some clients write them."""
    size, count = message[4], message[5]
    head = message[:3] + b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big")
    return head + message[6:]


@settings(max_examples=300, deadline=None)
@given(plain_messages, st.data())
def test_a_message_that_looks_plain_is_one_the_full_scan_takes(
    message: bytes, data: st.DataObject
) -> None:
    # Given a simple message, whole or with one byte changed
    if data.draw(st.booleans(), label="long list"):
        message = with_long_list(message)
    index = data.draw(st.integers(0, len(message) - 1))
    changed = bytearray(message)
    changed[index] ^= data.draw(st.sampled_from([0, 0, 1, 0x10, 0x80, 0xFF]))
    candidate = b"??" + bytes(changed) + b"??"

    # When the short way calls it plain
    if is_plain(candidate, 2, len(candidate) - 2, 200):
        # Then the long way finds nothing wrong or special about it
        found = scan_message(candidate, 2, len(candidate) - 2)
        assert (found.properties_start, found.bare_end) == (2, len(candidate) - 2)
        assert found.header is None
        assert found.message_annotations is None
        assert found.application_properties is None


def test_the_messages_of_a_simple_sender_are_plain() -> None:
    message = Message(properties=Properties(message_id="order-1"), body=b"x" * 1000).encode()
    assert is_plain(message, 0, len(message), 200)
    longer = with_long_list(message)
    assert is_plain(longer, 0, len(longer), 200)
    assert not is_plain(message, 0, len(message), 3)
    assert not is_plain(message, 0, len(message) - 1, 200)
    assert not is_plain(Message(body=b"no properties").encode(), 0, 20, 200)


@pytest.mark.parametrize("body", [b"x", AmqpValue([1, 2]), AmqpSequence(([1], [2]))], ids=repr)
def test_what_stands_before_the_body_is_found_without_it(body: Any) -> None:
    """Also when the body is broken, which nobody looks at."""
    for own in (None, {"a": 1}):
        whole = Message(
            properties=Properties(message_id="1"), application_properties=own, body=body
        ).encode()
        found = scan_message(whole, 0, len(whole))
        front = scan_to_body(whole[: found.body_start + 4], 0, found.body_start + 4)

        assert front.properties == found.properties
        assert front.application_properties == found.application_properties
        assert (front.body_start, front.body_kind) == (found.body_start, found.body_kind)
        assert front.properties_start == found.properties_start
        assert front.body == []


def test_what_stands_before_a_missing_body_is_found() -> None:
    whole = Message(properties=Properties(message_id="1"), body=b"").encode()[:-5]

    front = scan_to_body(whole, 0, len(whole))

    assert front.properties == (3, len(whole))
    assert front.body_start == -1
    with pytest.raises(DecodeError):
        scan_to_body(whole, 0, len(whole) - 1)
    with pytest.raises(DecodeError, match="cannot follow"):
        scan_to_body(whole + whole, 0, 2 * len(whole))
