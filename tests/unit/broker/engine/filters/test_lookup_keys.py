"""Values of rules are looked up by keys whose hashes nobody can choose (M13)."""

from __future__ import annotations

from uuid import UUID

from tests.support.amqp.worst_inputs import HASH_MODULUS
from twinbus.amqp.codec.types import Timestamp
from twinbus.broker.engine.filters.filter_compiler import lookup_key, make_guard


def test_values_of_one_hash_have_keys_of_many() -> None:
    """M13: a hundred thousand rules with such values would hold every message up."""
    uuids = [UUID(int=7 + number * HASH_MODULUS) for number in range(1_000)]
    assert len({hash(each) for each in uuids}) == 1

    assert len({hash(lookup_key(each)) for each in uuids}) > 990


def test_what_is_equal_to_a_rule_has_one_key() -> None:
    assert lookup_key(1) == lookup_key(1.0)
    assert lookup_key(0.0) == lookup_key(-0.0) == lookup_key(0)
    assert lookup_key("a") == "a"
    assert lookup_key(UUID(int=5)) == lookup_key(UUID(int=5)) != lookup_key(UUID(int=6))
    assert lookup_key(Timestamp(5)) == lookup_key(Timestamp(5))
    assert make_guard(False, "a", (1, 2.0)).keys == {lookup_key(1.0), lookup_key(2)}
    assert make_guard(False, "a", (2**53,)).keys is None
