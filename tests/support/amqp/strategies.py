"""Hypothesis strategies for AMQP values, with every type that the codec knows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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

INTEGER_RANGES = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    Long: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
}


def integers_of(kind: type[int]) -> st.SearchStrategy[Any]:
    low, high = INTEGER_RANGES[kind]
    edges = [edge for edge in (low, high, 0, 127, 128, 255, 256, -128, -129) if low <= edge <= high]
    return (st.sampled_from(edges) | st.integers(low, high)).map(kind)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ascii_texts = st.text(st.characters(max_codepoint=127), max_size=20)
symbols = ascii_texts.map(Symbol)
floats32 = st.floats(width=32, allow_nan=False).map(Float32)
chars = st.characters(exclude_categories=["Cs"]).map(Char)
long_binaries = st.integers(250, 300).map(lambda size: b"\xa5" * size)
long_texts = st.integers(250, 300).map(lambda size: "é" * size)

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    *(integers_of(kind) for kind in INTEGER_RANGES),
    floats32,
    st.floats(allow_nan=False),
    chars,
    symbols,
    texts,
    long_texts,
    st.binary(max_size=20),
    long_binaries,
    st.uuids(),
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
)

ELEMENTS: dict[int, st.SearchStrategy[Any]] = {
    0x50: integers_of(UByte),
    0x51: integers_of(Byte),
    0x52: st.integers(0, 255).map(UInt),
    0x53: st.integers(0, 255).map(ULong),
    0x54: st.integers(-128, 127).map(Int),
    0x55: st.integers(-128, 127).map(Long),
    0x56: st.booleans(),
    0x60: integers_of(UShort),
    0x61: integers_of(Short),
    0x70: integers_of(UInt),
    0x71: integers_of(Int),
    0x72: floats32,
    0x73: chars,
    0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x80: integers_of(ULong),
    0x81: integers_of(Long),
    0x82: st.floats(allow_nan=False),
    0x83: integers_of(Timestamp),
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128),
    0x98: st.uuids(),
    0xA0: st.binary(max_size=20),
    0xA1: texts,
    0xA3: symbols,
    0xB0: st.binary(max_size=20),
    0xB1: texts | long_texts,
    0xB3: symbols,
    0xC0: st.lists(st.booleans(), max_size=3),
    0xC1: st.dictionaries(symbols, st.booleans(), max_size=3),
    0xD0: st.lists(texts | st.none(), max_size=3),
    0xD1: st.dictionaries(symbols, texts, max_size=3),
    0xE0: st.lists(integers_of(UByte), max_size=3).map(lambda items: Array(0x50, tuple(items))),
    0xF0: st.lists(integers_of(Long), max_size=3).map(lambda items: Array(0x81, tuple(items))),
}

descriptors = integers_of(ULong) | symbols


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    code = draw(st.sampled_from(sorted(ELEMENTS)))
    items = tuple(draw(st.lists(ELEMENTS[code], max_size=4)))
    return Array(code, items, draw(st.none() | descriptors))


map_keys = texts | symbols | integers_of(UInt) | st.binary(max_size=8)

values: st.SearchStrategy[Any] = st.recursive(
    scalars | arrays(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(map_keys, inner, max_size=4),
        st.builds(Described, descriptors, inner),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """The value with the name of every type in it, since Symbol("a") equals "a"."""
    match value:
        case list():
            return [typed(item) for item in value]
        case dict():
            return [(typed(key), typed(item)) for key, item in value.items()]
        case Array(code, items, descriptor):
            return "array", code, typed(descriptor), [typed(item) for item in items]
        case Described(descriptor, described):
            return "described", typed(descriptor), typed(described)
        case _:
            return type(value).__name__, value
