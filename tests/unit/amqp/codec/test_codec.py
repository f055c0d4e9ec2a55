"""Single values: what we encode we decode, and what a hostile peer sends we refuse.

The numbers in the hostile table are those of the project's list of hostile inputs.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.strategies import typed, values
from tests.support.amqp_values import decode_all
from tests.support.cpu_time import is_quick
from twinbus.amqp.codec.decode import decode_value, skip_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.amqp.errors import AmqpError, Condition, DecodeError, EncodeError
from twinbus.amqp.limits import VALUE_COST, AmqpLimits, Budget

# --- what is encoded is decoded ------------------------------------------------------------------


@settings(max_examples=600, deadline=None)
@given(values)
def test_every_value_keeps_its_content_and_its_type(value: Any) -> None:
    encoded = encode_value(value)

    assert typed(decode_all(encoded)) == typed(value)


@settings(max_examples=300, deadline=None)
@given(values, st.binary(max_size=4), st.binary(max_size=4))
def test_skipping_ends_where_decoding_ends(value: Any, before: bytes, after: bytes) -> None:
    encoded = encode_value(value)
    buf = before + encoded + after
    start, end = len(before), len(before) + len(encoded)

    assert skip_value(buf, start, len(buf), Budget()) == end
    assert decode_value(buf, start, len(buf), Budget())[1] == end


@settings(max_examples=200, deadline=None)
@given(values, st.data())
def test_a_value_cut_short_is_refused_although_more_bytes_lie_behind(
    value: Any, data: st.DataObject
) -> None:
    # Given a value in the middle of a buffer, and an end that cuts it
    encoded = encode_value(value)
    end = data.draw(st.integers(0, len(encoded) - 1))

    # When it is read up to that end, then nothing is read beyond it
    for read in (decode_value, skip_value):
        with pytest.raises(DecodeError):
            read(encoded + b"\x40" * 20, 0, end, Budget())


SMALLEST = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(7), "5007"),
    (UShort(7), "600007"),
    (UInt(0), "43"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (ULong(0), "44"),
    (ULong(255), "53ff"),
    (ULong(256), "800000000000000100"),
    (Byte(-1), "51ff"),
    (Short(-1), "61ffff"),
    (Int(-128), "5480"),
    (Int(128), "7100000080"),
    (Long(127), "557f"),
    (Long(-129), "81ffffffffffffff7f"),
    (5, "5505"),
    (1.5, "823ff8000000000000"),
    (Float32(1.5), "723fc00000"),
    (Char("A"), "7300000041"),
    (Timestamp(1), "830000000000000001"),
    (Decimal32(b"abcd"), "7461626364"),
    (Decimal64(b"abcdefgh"), "846162636465666768"),
    (Decimal128(b"abcdefghabcdefgh"), "94" + "6162636465666768" * 2),
    (UUID(int=1), "98" + "00" * 15 + "01"),
    (b"ab", "a0026162"),
    ("é", "a102c3a9"),
    (Symbol("ab"), "a3026162"),
    ([], "45"),
    ([None, True], "c003024041"),
    ({}, "c10100"),
    ({Symbol("a"): None}, "c10502a3016140"),
    (Array(0x81, (Long(1),)), "e00a01810000000000000001"),
    (Array(None, ()), "e00100"),
    (Described(ULong(0x24), []), "00532445"),
]


@pytest.mark.parametrize(("value", "expected"), SMALLEST, ids=lambda item: repr(item)[:24])
def test_a_value_takes_the_smallest_encoding(value: Any, expected: str) -> None:
    assert encode_value(value).hex() == expected


def test_long_content_takes_the_long_encoding() -> None:
    assert encode_value(b"x" * 256)[:5].hex() == "b000000100"
    assert encode_value("x" * 256)[:5].hex() == "b100000100"
    assert encode_value(Symbol("x" * 256))[:5].hex() == "b300000100"
    assert encode_value([None] * 256)[:9].hex() == "d00000010400000100"
    assert encode_value(["x" * 253])[:9].hex() == "d00000010300000001"


NO_AMQP_FORM = [
    pytest.param(2**63, id="an int over 64 bits"),
    pytest.param(UInt(-1), id="a negative uint"),
    pytest.param(UByte(256), id="a ubyte of 256"),
    pytest.param(Float32(1e300), id="a float32 out of range"),
    pytest.param("\ud800", id="a lone surrogate"),
    pytest.param(Symbol("é"), id="a symbol outside ASCII"),
    pytest.param(Char("ab"), id="a char of two"),
    pytest.param(object(), id="an object"),
    pytest.param({None: 1}, id="a null key"),
    pytest.param({(1, 2): 1}, id="a tuple key"),
    pytest.param(Array(0x43, (UInt(0),)), id="an array without a width"),
    pytest.param(Array(0x81, ("a",)), id="an array of the wrong type"),
    pytest.param(Array(0xA0, (5,)), id="an array of binaries that are not"),
    pytest.param(Array(None, (1,)), id="an array with elements and no constructor"),
    pytest.param(Decimal32(b"abc"), id="a decimal of three bytes"),
    pytest.param(Described(1.5, 1), id="a descriptor that is a double"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("value", NO_AMQP_FORM)
def test_a_value_without_an_amqp_form_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        encode_value([value])

    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AmqpError)


def test_an_enum_is_encoded_as_its_nearest_base() -> None:
    assert encode_value(Condition.NOT_FOUND) == encode_value("amqp:not-found")


# --- what a hostile peer sends -------------------------------------------------------------------


def nested_lists(levels: int) -> bytes:
    """A list in a list in a list, in long form so that any depth fits."""
    value = b"\x45"
    for _ in range(levels - 1):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


HOSTILE = {
    "61 constructor that does not exist": ("ff", "not a constructor"),
    "61 descriptor that does not exist": ("00", "a descriptor is neither"),
    "62 list8 with more elements than bytes": ("c003ff4040", "declares 255 elements in 2 bytes"),
    "62 list32 with 2^32-1 elements": ("d000000005ffffffff40", "declares 4294967295 elements"),
    "62 map32 with 2^32-2 elements": ("d100000005fffffffe40", "declares 4294967294 elements"),
    "62 array32 with 2^32-1 elements": ("f000000005ffffffff50", "declares 4294967295 elements"),
    "62 list32 with 2^32-1 bytes": ("d0ffffffff0000000140", "end inside a compound"),
    "62 list32 smaller than its own count": ("d00000000300000000", "end inside a compound"),
    "62 list8 smaller than its own count": ("c00000", "end inside a compound"),
    "62 binary32 with 2^32-1 bytes": ("b0ffffffff61", "end inside a binary"),
    "62 array8 of one null": ("e0020140", "of 1 elements without a width"),
    "62 array32 of nulls": (
        "f00000000d00000008404040404040404040",
        "of 8 elements without a width",
    ),
    "62 array8 of trues": ("e0020141", "without a width"),
    "62 array8 of falses": ("e0020142", "without a width"),
    "62 array8 of uint0": ("e0020143", "without a width"),
    "62 array8 of ulong0": ("e0020144", "without a width"),
    "62 array8 of empty lists": ("e0020145", "without a width"),
    "62 array8 of described nulls": ("e0050100532440", "without a width"),
    "62 array8 of described described": ("e0080100532400532440", "0x00 is not a constructor"),
    "62 array with a constructor that does not exist": ("e00301ff40", "0xff is not a constructor"),
    "62 array with elements and no constructor": ("e00101", "declares 1 elements in 0 bytes"),
    "62 list whose size is too large for its elements": (
        "c003014040",
        "size of a compound differs",
    ),
    "62 list whose element runs over its size": ("c00301700000000000", "end inside"),
    "64 map with an odd count": ("c103014040", "a key has no value"),
    "64 map with a null key": ("c103024040", "a map key is null"),
    "64 map with a list as a key": ("c103024540", "a map key is null"),
    "64 map with a described key": ("c106020053244540", "a map key is null"),
    "64 map with a key and no value": ("c103024101", "end inside a value|not a constructor"),
    "64 map with the same key twice": ("c10904a3016140a3016140", "same key twice"),
    "65 string with a stray continuation byte": ("a10180", "not valid UTF-8"),
    "65 string with an overlong slash": ("a102c0af", "not valid UTF-8"),
    "65 string with a lone surrogate": ("a103eda080", "not valid UTF-8"),
    "65 string above U+10FFFF": ("a104f4908080", "not valid UTF-8"),
    "65 symbol outside ASCII": ("a302c3a9", "outside ASCII"),
    "65 long string that is not UTF-8": ("b10000000180", "not valid UTF-8"),
    "65 long symbol outside ASCII": ("b30000000180", "outside ASCII"),
    "76 char above U+10FFFF": ("7300110000", "not a Unicode character"),
    "76 char that is a surrogate": ("730000d800", "not a Unicode character"),
    "76 boolean that is neither": ("5602", "Only 0x00 and 0x01"),
    "76 descriptor that is a list": ("004540", "a descriptor is neither"),
    "76 descriptor that is a map": ("00c1010040", "a descriptor is neither"),
    "76 descriptor that is described": ("000053244540", "a descriptor is neither"),
    "76 descriptor that is a decimal128": (
        "00940000000000000000000000000000000040",
        "a descriptor is neither",
    ),
    "76 decimal128 cut short": (
        "94000000000000000000000000000000",
        "end inside a value of 16 bytes",
    ),
    "76 timestamp cut short": ("8300000000000000", "end inside a value of 8 bytes"),
}


@pytest.mark.parametrize(("sent", "told"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_a_decode_error_with_a_sentence(sent: str, told: str) -> None:
    buf = bytes.fromhex(sent)

    for read in (decode_value, skip_value):
        with pytest.raises(DecodeError, match=told) as caught:
            read(buf, 0, len(buf), Budget())
        assert caught.value.condition == "amqp:decode-error"


def test_keys_that_are_equal_only_in_python_are_refused_when_decoded() -> None:
    """A short and a long string, a string and a symbol: readers could not tell them apart."""
    with pytest.raises(DecodeError, match="same key twice"):
        decode_all(bytes.fromhex("c10c04a1016140b1000000016140"))
    with pytest.raises(DecodeError, match="same key twice"):
        decode_all(bytes.fromhex("c10904a1016140a3016140"))


@pytest.mark.parametrize("read", [decode_value, skip_value])
def test_64_levels_are_decoded_and_65_are_refused(read: Any) -> None:
    """Case 63."""
    allowed, refused, far_over = nested_lists(64), nested_lists(65), nested_lists(5_000)

    read(allowed, 0, len(allowed), Budget())

    for buf in (refused, far_over):
        with pytest.raises(DecodeError, match="nested too deeply"):
            read(buf, 0, len(buf), Budget())


@pytest.mark.parametrize("read", [decode_value, skip_value])
def test_described_values_and_arrays_count_as_levels_too(read: Any) -> None:
    """Case 63: the chain that has no compound in it."""
    described = b"\x00\x53\x24" * 65 + b"\x40"
    maps = b"\x40"
    for _ in range(65):
        maps = b"\xd1" + struct.pack(">II", len(maps) + 6, 2) + b"\x50\x01" + maps
    arrays = b"\xf0" + struct.pack(">II", 5, 0) + b"\x50"
    for _ in range(64):
        arrays = b"\xf0" + struct.pack(">II", len(arrays) - 1 + 5, 1) + b"\xf0" + arrays[1:]

    for buf in (described, maps, arrays):
        with pytest.raises(DecodeError, match="nested too deeply"):
            read(buf, 0, len(buf), Budget())


@pytest.mark.parametrize("read", [decode_value, skip_value])
@pytest.mark.parametrize(
    "value",
    [
        [],
        [1],
        {"a": 1},
        Described(ULong(1), 1),
        Array(0x50, (UByte(1),)),
        Array(0x50, (UByte(1),), ULong(1)),
        Array(None, ()),
    ],
    ids=repr,
)
def test_leaving_a_value_gives_its_level_back(read: Any, value: Any) -> None:
    """A hundred neighbours are as deep as one."""
    buf = encode_value([value] * 100)

    read(buf, 0, len(buf), Budget())


def test_what_is_nested_too_deeply_is_not_even_sent() -> None:
    endless: list[Any] = []
    endless.append(endless)

    encode_value(decode_all(nested_lists(64)))

    for value in ([decode_all(nested_lists(64))], endless):
        with pytest.raises(EncodeError, match="nested deeper than 64"):
            encode_value(value)


@pytest.mark.parametrize(
    ("read", "count_max"), [(decode_value, 10 + 3 * VALUE_COST), (skip_value, 10)]
)
def test_the_count_of_elements_is_a_budget_of_the_whole_value(read: Any, count_max: int) -> None:
    """Case 62: each of two lists is allowed, both together are not. What is built costs more."""
    limits = AmqpLimits(value_count_max=count_max)
    fits = encode_value([[1, 2, 3, 4], [5, 6, 7, 8]])
    too_many = encode_value([[1, 2, 3, 4], [5, 6, 7, 8, 9]])

    read(fits, 0, len(fits), Budget(limits))

    with pytest.raises(DecodeError, match="too many elements together"):
        read(too_many, 0, len(too_many), Budget(limits))


def test_a_full_frame_of_elements_is_refused_without_building_them() -> None:
    """Case 62: one MiB of nulls would be a million objects."""
    body = b"\x40" * 1_048_000
    buf = b"\xd0" + struct.pack(">II", len(body) + 4, len(body)) + body

    tracemalloc.start()
    with pytest.raises(DecodeError):
        decode_value(buf, 0, len(buf), Budget())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 100_000


def test_bytes_after_the_value_are_told() -> None:
    """Case 66."""
    with pytest.raises(DecodeError, match="2 bytes follow"):
        decode_all(b"\x40\x40\x40")


def test_the_empty_array_that_the_sdk_sends_has_no_constructor() -> None:
    assert decode_all(bytes.fromhex("e00100")) == Array(None, ())
    assert decode_all(bytes.fromhex("f00000000400000000")) == Array(None, ())


# --- fuzz ----------------------------------------------------------------------------------------

FUZZ_EXAMPLES = 20_000
SECONDS_MAX = 0.050


def decoded(buf: bytes) -> object:
    return decode_value(buf, 0, len(buf), Budget())


CONSTRUCTORS = bytes.fromhex(
    "00404142434445505152535455566061707172737480818283849498a0a1a3b0b1b3c0c1d0d1e0f0"
)


def hostile_bytes(random: Random) -> bytes:
    """Half random, half made of constructors and small numbers, which go deeper."""
    size = random.randrange(64)
    if random.random() < 0.3:
        return random.randbytes(size)
    return bytes(
        random.choice(CONSTRUCTORS) if random.random() < 0.5 else random.randrange(12)
        for _ in range(size)
    )


def test_no_bytes_make_the_decoder_raise_anything_but_a_decode_error() -> None:
    """Seeded, so that a failure repeats; each input within 50 ms; skip agrees with decode."""
    random = Random(20_240_607)
    accepted = 0
    for number in range(FUZZ_EXAMPLES):
        buf = hostile_bytes(random)
        started = time.thread_time()
        try:
            value, end = decode_value(buf, 0, len(buf), Budget())
        except DecodeError:
            continue
        finally:
            spent_s = time.thread_time() - started
            assert is_quick(spent_s, partial(decoded, buf), SECONDS_MAX), (number, buf.hex())
        accepted += 1
        assert skip_value(buf, 0, len(buf), Budget()) == end, (number, buf.hex())
        again = encode_value(value)
        assert encode_value(decode_all(again)) == again, (number, buf.hex())
    assert accepted > FUZZ_EXAMPLES // 20, "the fuzz reaches too few valid values to mean much"


def test_what_decoding_refuses_skipping_refuses_but_for_equal_keys() -> None:
    random = Random(77)
    for number in range(FUZZ_EXAMPLES):
        buf = hostile_bytes(random)
        try:
            skip_value(buf, 0, len(buf), Budget())
        except DecodeError:
            with pytest.raises(DecodeError):
                decode_value(buf, 0, len(buf), Budget())
            continue
        try:
            decode_value(buf, 0, len(buf), Budget())
        except DecodeError as error:
            if "same key" not in error.description:
                pytest.fail(f"example {number}, {buf.hex()}: {error}")
