"""The AMQP types as Python values."""

from __future__ import annotations

import pytest

from twinbus.amqp.codec.types import Array, Char, Float32, Symbol, Timestamp, UInt


def test_a_typed_value_equals_the_plain_one_so_lookups_need_no_care() -> None:
    annotations = {Symbol("x-opt-sequence-number"): UInt(7)}

    assert annotations["x-opt-sequence-number"] == 7
    assert Float32(0.5) == 0.5
    assert Char("x") == "x"


def test_a_typed_value_shows_its_type_in_a_repr() -> None:
    assert repr([UInt(7), Symbol("a"), Float32(0.5), Char("x")]) == (
        "[UInt(7), Symbol('a'), Float32(0.5), Char('x')]"
    )


def test_a_typed_value_is_plain_in_a_sentence() -> None:
    assert f"{UInt(7)} {Timestamp(8)} {Symbol('a')} {Float32(0.5)}" == "7 8 a 0.5"


def test_an_array_made_for_the_sdk_has_no_constructor_when_it_is_empty() -> None:
    assert Array.of(0x81, []) == Array(None, ())
    assert Array.of(0x81, [1, 2]) == Array(0x81, (1, 2))


def test_described_values_and_arrays_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Array(0x81, (1,)).items = ()  # type: ignore[misc]
