"""What peers say to each other, as dataclasses."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import integers_of, symbols, texts, values
from tests.support.amqp_values import decode_all, symbols_of
from tests.support.cpu_time import cpu_s
from twinbus.amqp import transfers
from twinbus.amqp.codec.composites import SPECS, decode_descriptor, decode_fields
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Array, Described, Symbol, UInt, ULong
from twinbus.amqp.errors import Condition, DecodeError, EncodeError
from twinbus.amqp.limits import VALUE_COST, AmqpLimits, Budget
from twinbus.amqp.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    STATE_ABANDONED,
    STATE_ACCEPTED,
    STATE_DEFERRED,
    STATE_REJECTED,
    STATE_RELEASED,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    decode_disposition,
    decode_performative,
    decode_transfer,
    encode_disposition,
    encode_performative,
    encode_state,
    encode_transfer,
)


def decode(buf: bytes) -> Any:
    performative, pos = decode_performative(buf, 0, len(buf), Budget())
    assert pos == len(buf)
    return performative


def field_count(buf: bytes) -> int:
    described = decode_all(buf)
    return len(described.value)


def performative_of(descriptor: Any, *fields: Any) -> bytes:
    return encode_value(Described(descriptor, list(fields)))


# --- what is encoded is decoded ------------------------------------------------------------------

uints = integers_of(UInt)
fields_maps = st.none() | st.dictionaries(symbols, values, max_size=2)
errors = st.builds(Error, symbols, st.none() | texts, fields_maps)
outcomes = (
    st.builds(Accepted)
    | st.builds(Released)
    | st.builds(Rejected, st.none() | errors)
    | st.builds(Modified, st.none() | st.booleans(), st.none() | st.booleans(), fields_maps)
)
states = outcomes | st.builds(Received, uints, integers_of(ULong))
symbol_fields = (
    st.none()
    | symbols
    | st.lists(symbols, min_size=1, max_size=3).map(lambda items: Array(0xA3, tuple(items)))
)
sources = st.builds(
    Source,
    address=st.none() | texts,
    durable=uints,
    expiry_policy=symbols,
    dynamic=st.booleans(),
    dynamic_node_properties=fields_maps,
    filter=fields_maps,
    default_outcome=st.none() | outcomes,
    outcomes=symbol_fields,
    capabilities=symbol_fields,
)
targets = st.builds(Target, address=st.none() | texts, timeout=uints, capabilities=symbol_fields)

performatives: st.SearchStrategy[Performative] = st.one_of(
    st.builds(
        Open,
        texts,
        st.none() | texts,
        uints,
        st.integers(0, 65_535),
        st.none() | uints,
        desired_capabilities=symbol_fields,
        properties=fields_maps,
    ),
    st.builds(Begin, st.none() | st.integers(0, 65_535), uints, uints, uints, uints),
    st.builds(
        Attach,
        texts,
        uints,
        st.booleans(),
        st.integers(0, 2),
        st.integers(0, 1),
        st.none() | sources,
        st.none() | targets | st.builds(Coordinator, symbol_fields),
        initial_delivery_count=st.none() | uints,
        max_message_size=st.none() | integers_of(ULong),
        properties=fields_maps,
    ),
    st.builds(
        Flow,
        st.none() | uints,
        uints,
        uints,
        uints,
        st.none() | uints,
        st.none() | uints,
        st.none() | uints,
        drain=st.booleans(),
        echo=st.booleans(),
    ),
    st.builds(
        Transfer,
        uints,
        st.none() | uints,
        st.none() | st.binary(max_size=40),
        st.none() | uints,
        st.none() | st.booleans(),
        st.booleans(),
        st.none() | st.integers(0, 1),
        st.none() | states,
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        Disposition,
        st.booleans(),
        uints,
        st.none() | uints,
        st.booleans(),
        st.none() | states,
        st.booleans(),
    ),
    st.builds(Detach, uints, st.booleans(), st.none() | errors),
    st.builds(End, st.none() | errors),
    st.builds(Close, st.none() | errors),
    st.builds(SaslMechanisms, symbols),
    st.builds(SaslInit, symbols, st.none() | st.binary(max_size=9), st.none() | texts),
    st.builds(SaslChallenge, st.binary(max_size=9)),
    st.builds(SaslResponse, st.binary(max_size=9)),
    st.builds(SaslOutcome, st.integers(0, 4), st.none() | st.binary(max_size=9)),
)


@settings(max_examples=600, deadline=None)
@given(performatives)
def test_every_performative_is_decoded_as_it_was_encoded(performative: Performative) -> None:
    assert decode(encode_performative(performative)) == performative


@settings(max_examples=200, deadline=None)
@given(performatives, st.binary(max_size=20))
def test_the_payload_begins_where_the_performative_ends(
    performative: Performative, payload: bytes
) -> None:
    encoded = encode_performative(performative)

    _, pos = decode_performative(encoded + payload, 0, len(encoded + payload), Budget())

    assert pos == len(encoded)


@settings(max_examples=200, deadline=None)
@given(performatives, st.data())
def test_a_performative_cut_short_is_refused(
    performative: Performative, data: st.DataObject
) -> None:
    encoded = encode_performative(performative)
    end = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(DecodeError):
        decode_performative(encoded + b"\x40" * 300, 0, end, Budget())


# --- what the Azure SDK needs --------------------------------------------------------------------


def test_an_error_always_has_its_three_fields() -> None:
    """A two-field error makes a send of the SDK wait for ever."""
    state = encode_state(Rejected(Error(Condition.SERVER_BUSY)))

    rejected = decode_all(state)

    assert rejected.value[0].value == ["com.microsoft:server-busy", None, None]
    assert type(rejected.value[0].value[0]) is Symbol


@pytest.mark.parametrize(
    "performative",
    [
        Begin(0, 0, 1, 1),
        Attach("n", 0, ROLE_SENDER),
        Disposition(ROLE_RECEIVER, 0),
        Detach(0),
        End(),
        Close(),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_the_sdk_reads_by_position_has_all_its_fields(performative: Performative) -> None:
    encoded = encode_performative(performative)

    assert field_count(encoded) == len(dataclasses.fields(performative))


def test_source_and_target_inside_an_attach_have_all_their_fields() -> None:
    attach = decode_all(encode_performative(Attach("n", 0, True, source=Source(), target=Target())))

    assert len(attach.value[5].value) == 11
    assert len(attach.value[6].value) == 7


def test_other_performatives_lose_their_trailing_nulls() -> None:
    assert field_count(encode_performative(SaslInit("ANONYMOUS"))) == 1
    assert field_count(encode_performative(Open("c"))) == 4


def test_the_states_are_the_ones_the_sdk_matches() -> None:
    assert decode_all(STATE_ACCEPTED) == Described(ULong(0x24), [])
    assert decode_all(STATE_REJECTED) == Described(ULong(0x25), [None])
    assert decode_all(STATE_RELEASED) == Described(ULong(0x26), [])
    assert decode_all(STATE_ABANDONED) == Described(ULong(0x27), [True, False, None])
    assert decode_all(STATE_DEFERRED) == Described(ULong(0x27), [True, True, None])


def test_the_filter_of_a_source_is_echoed_with_its_types() -> None:
    """The SDK sends its session filter plain, other clients described; null asks for any."""
    asked = {
        Symbol("com.microsoft:session-filter"): None,
        Symbol("plain"): "sid",
        Symbol("selector"): Described(Symbol("apache.org:selector-filter:string"), "a = 1"),
    }
    attach = decode(encode_performative(Attach("n", 0, True, source=Source("q", filter=asked))))

    echoed = decode(encode_performative(Attach("n", 0, False, source=attach.source)))

    assert echoed.source.filter == asked
    assert all(type(key) is Symbol for key in echoed.source.filter)
    assert type(echoed.source.filter["selector"]) is Described


# --- what peers may send -------------------------------------------------------------------------


def test_omitted_and_null_fields_mean_the_default() -> None:
    """Case 66."""
    expected = Open("c", None, 4_294_967_295, 65_535)

    assert decode(performative_of(ULong(0x10), "c")) == expected
    assert decode(performative_of(ULong(0x10), "c", None, None, None)) == expected
    assert decode(bytes.fromhex("00531045".replace("10", "18"))) == Close(None)


@pytest.mark.parametrize(
    "descriptor", ["5318", "800000000000000018", "a30f616d71703a636c6f73653a6c697374"]
)
@pytest.mark.parametrize("fields", ["45", "c00100", "c0020140", "d00000000400000000"])
def test_descriptors_and_lists_of_any_width_are_read(descriptor: str, fields: str) -> None:
    assert decode(bytes.fromhex("00" + descriptor + fields)) == Close()


def test_one_symbol_and_an_array_of_symbols_are_both_read() -> None:
    one = decode(performative_of(ULong(0x40), Symbol("ANONYMOUS")))
    many = decode(encode_performative(SaslMechanisms(["ANONYMOUS", "PLAIN"])))

    assert symbols_of(one.sasl_server_mechanisms) == ("ANONYMOUS",)
    assert symbols_of(many.sasl_server_mechanisms) == ("ANONYMOUS", "PLAIN")
    assert symbols_of(None) == ()


def test_a_coordinator_is_a_target() -> None:
    attach = Attach("n", 0, ROLE_SENDER, source=Source(), target=Coordinator())

    assert decode(encode_performative(attach)) == attach


HOSTILE = {
    "61 unknown performative": (performative_of(ULong(0x19)), "descriptor 0x19 is unknown"),
    "61 unknown symbol": (performative_of(Symbol("amqp:nothing:list")), "is unknown"),
    "61 prefix of a known symbol": (performative_of(Symbol("amqp:open")), "is unknown"),
    "61 known symbol and more": (performative_of(Symbol("amqp:open:list ")), "is unknown"),
    "61 known symbol in capitals": (performative_of(Symbol("AMQP:OPEN:LIST")), "is unknown"),
    "61 huge descriptor": (performative_of(ULong(2**64 - 1)), "is unknown"),
    "61 a section instead of a performative": (
        performative_of(ULong(0x73)),
        "properties is not a performative|descriptor 0x73 is unknown",
    ),
    "61 an outcome instead of a performative": (performative_of(ULong(0x24)), "not a performative"),
    "61 no descriptor": (encode_value(["c"]), "described list is expected"),
    "61 nothing at all": (b"", "described list is expected"),
    "61 a map instead of a list": (
        encode_value(Described(ULong(0x10), {})),
        "open is not a list",
    ),
    "66 mandatory field omitted": (performative_of(ULong(0x10)), "open.container-id is mandatory"),
    "66 mandatory field null": (
        performative_of(ULong(0x12), "n", UInt(0), None),
        "attach.role is mandatory",
    ),
    "66 mandatory window null": (
        performative_of(ULong(0x13), None, UInt(1), None, UInt(1)),
        "flow.next-outgoing-id is mandatory",
    ),
    "66 handle of a transfer omitted": (performative_of(ULong(0x14)), "transfer.handle is mand"),
    "66 one field too many": (performative_of(ULong(0x17), None, None), "end has 2 fields"),
    "76 string where a uint belongs": (
        performative_of(ULong(0x10), "c", None, "big"),
        "open.max-frame-size is not a uint",
    ),
    "76 ulong where a uint belongs": (
        performative_of(ULong(0x16), ULong(0)),
        "detach.handle is not a uint",
    ),
    "76 symbol where a string belongs": (
        performative_of(ULong(0x10), Symbol("c")),
        "open.container-id is not a string",
    ),
    "76 address that is a number": (
        performative_of(
            ULong(0x12), "n", UInt(0), True, None, None, Described(ULong(0x28), [UInt(1)])
        ),
        "source.address is not a string",
    ),
    "76 target where a source belongs": (
        performative_of(ULong(0x12), "n", UInt(0), True, None, None, Described(ULong(0x29), [])),
        "attach.source is not a source",
    ),
    "76 source that is a string": (
        performative_of(ULong(0x12), "n", UInt(0), True, None, None, "q"),
        "attach.source is not a source",
    ),
    "76 settle mode 3": (
        encode_performative(Attach("n", 0, True, snd_settle_mode=3)),
        "attach.snd-settle-mode is not a sender settle mode",
    ),
    "76 properties with string keys": (
        performative_of(ULong(0x11), None, UInt(0), UInt(0), UInt(0), None, None, None, {"a": 1}),
        "begin.properties is not a map with symbol keys",
    ),
    "76 error condition that is a string": (
        performative_of(ULong(0x18), Described(ULong(0x1D), ["amqp:x"])),
        "error.condition is not a symbol",
    ),
    "76 state of a kind that we do not know": (
        performative_of(ULong(0x15), True, UInt(0), None, None, Described(ULong(0x34), [])),
        "descriptor 0x34 is unknown",
    ),
    "76 capabilities that are strings": (
        performative_of(ULong(0x40), Array(0xA1, ("a",))),
        "sasl-mechanisms.sasl-server-mechanisms is not a symbol or an array of symbols",
    ),
}


@pytest.mark.parametrize(("sent", "told"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_wrong_performative_is_refused_and_the_field_is_named(sent: bytes, told: str) -> None:
    with pytest.raises(DecodeError, match=told):
        decode_performative(sent, 0, len(sent), Budget())


def test_the_count_of_elements_is_a_budget_of_the_whole_frame() -> None:
    """Case 62: many maps, each allowed, in one frame."""
    node = {Symbol(str(index)): index for index in range(3)}
    attach = encode_performative(
        Attach("n", 0, True, source=Source(filter=node), target=Target(), properties=node)
    )
    needed = 14 + 11 + 7 + 2 * (6 + VALUE_COST)

    decode_performative(attach, 0, len(attach), Budget(AmqpLimits(value_count_max=needed)))

    with pytest.raises(DecodeError, match="too many elements together"):
        decode_performative(attach, 0, len(attach), Budget(AmqpLimits(value_count_max=needed - 1)))


WRONG_FIELDS = [
    Detach(-1),
    Detach("0"),  # type: ignore[arg-type]
    Open(None),  # type: ignore[arg-type]
    Open(5),  # type: ignore[arg-type]
    Attach("n", 0, 1),  # type: ignore[arg-type]
    Close("why"),  # type: ignore[arg-type]
    Close(Error("é")),
    Attach("n", 0, True, source=Target()),  # type: ignore[arg-type]
    Open("\ud800"),
    Open("c", properties={"a": object()}),
]


@pytest.mark.parametrize("performative", WRONG_FIELDS, ids=lambda item: repr(item)[:40])
def test_a_field_that_cannot_be_written_is_an_encode_error(performative: Performative) -> None:
    with pytest.raises(EncodeError):
        encode_performative(performative)


# --- the fast paths ------------------------------------------------------------------------------


def general(cls: type, buf: bytes) -> tuple[Any, int]:
    spec, pos = decode_descriptor(buf, 0, len(buf), Budget())
    assert spec is SPECS[cls]
    return decode_fields(spec, buf, pos, len(buf), Budget())


def verdict(read: Any) -> Any:
    try:
        return read()
    except DecodeError as error:
        return error.description


FIELD_FORMS = {
    "a uint": ["40", "43", "5207", "7000000100"],
    "a binary": ["40", "a0026162", "a000", "b0000000026162"],
    "a boolean": ["40", "41", "42", "5600", "5601", "5602"],
    "a delivery state": ["40", "00532445", "005324c00100", "00532645", "005325c0020140"],
    "a receiver settle mode (0 or 1)": ["40", "5000", "5001", "5002"],
}
ANY_FORMS = [*(form for forms in FIELD_FORMS.values() for form in forms), "ff", "53", "a1016"]


def nearly_valid_list(cls: type, random: Random) -> bytes:
    """Fields that mostly have their type, in a list that mostly has its size and count."""
    kinds = SPECS[cls].kinds[: random.randrange(len(SPECS[cls].kinds) + 1)]
    forms = [
        random.choice(FIELD_FORMS[kind.label] if random.random() < 0.97 else ANY_FORMS)
        for kind in kinds
    ]
    body = bytes.fromhex("".join(forms) + "0" * (sum(map(len, forms)) % 2))
    count = max(0, len(kinds) + random.choice((0,) * 20 + (1, -1)))
    size = max(0, len(body) + 1 + random.choice((0,) * 20 + (1, -1)))
    if random.random() < 0.3:
        head = b"\xd0" + struct.pack(">II", size + 3, count)
    else:
        head = bytes((0xC0, size, count))
    return SPECS[cls].head + head + body + random.randbytes(3)


def test_the_fast_paths_say_what_the_general_decoder_says() -> None:
    """Equal values, or the same sentence."""
    random = Random(5)
    read = refused = 0
    for number in range(10_000):
        for cls, fast in ((Transfer, decode_transfer), (Disposition, decode_disposition)):
            buf = nearly_valid_list(cls, random)
            seen = verdict(lambda fast=fast, buf=buf: fast(buf, 0, len(buf)))
            expected = verdict(lambda cls=cls, buf=buf: general(cls, buf))
            assert seen == expected, (number, buf.hex())
            refused += isinstance(seen, str)
            read += not isinstance(seen, str)
    assert min(read, refused) > 2_000, "the comparison reaches too little to mean much"


@settings(max_examples=200, deadline=None)
@given(uints, uints, st.binary(max_size=32), uints, st.booleans(), st.booleans())
def test_the_template_of_a_transfer_is_a_transfer(
    handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool
) -> None:
    encoded = encode_transfer(handle, delivery_id, tag, message_format, settled, more)

    assert decode(encoded) == Transfer(handle, delivery_id, tag, message_format, settled, more)


@settings(max_examples=200, deadline=None)
@given(st.booleans(), uints, uints, st.booleans(), states)
def test_the_template_of_a_disposition_is_a_disposition(
    role: bool, first: int, last: int, settled: bool, state: Any
) -> None:
    encoded = encode_disposition(role, first, last, settled, encode_state(state))

    assert decode(encoded) == Disposition(role, first, last, settled, state)
    assert field_count(encoded) == 6


def test_a_disposition_with_a_long_error_takes_the_long_list() -> None:
    state = Rejected(Error("amqp:not-allowed", "x" * 300))

    encoded = encode_disposition(ROLE_RECEIVER, 1, 2, True, encode_state(state))

    assert encoded[3] == 0xD0
    assert decode(encoded) == Disposition(ROLE_RECEIVER, 1, 2, True, state)


def test_a_template_refuses_a_number_out_of_range() -> None:
    with pytest.raises(EncodeError):
        encode_disposition(ROLE_RECEIVER, 2**32, 0, True, STATE_ACCEPTED)
    with pytest.raises(EncodeError):
        encode_transfer(0, -1, b"tag")
    with pytest.raises(EncodeError):
        encode_transfer(0, 0, b"t" * 236)


def test_a_list_that_declares_billions_of_nulls_is_refused_at_once() -> None:
    """Case 62: the fast path must not count them one by one."""
    nulls = b"\x40" * 1_000_000
    head = bytes.fromhex("005314d0") + struct.pack(">II", len(nulls) + 4, len(nulls))

    def refused() -> None:
        with pytest.raises(DecodeError):
            decode_transfer(head + nulls, 0, len(head + nulls))

    assert cpu_s(refused) < 0.020


def test_a_fast_path_refuses_another_performative() -> None:
    close = encode_performative(Close())

    with pytest.raises(DecodeError, match="transfer is expected here"):
        transfers.decode_transfer(close, 0, len(close))


def test_random_bytes_in_a_performative_are_a_decode_error_or_a_performative() -> None:
    random = Random(9)
    codes = [*range(0x10, 0x19), *range(0x40, 0x45)]
    for _ in range(20_000):
        body = random.randbytes(random.randrange(40))
        head = bytes((0x00, 0x53, random.choice(codes), 0xC0, len(body) + 1, random.randrange(8)))
        with contextlib.suppress(DecodeError):
            decode_performative(head + body, 0, len(head + body), Budget())
