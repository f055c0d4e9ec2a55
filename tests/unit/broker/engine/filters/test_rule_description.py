"""Rules as data: what is taken, what is refused, and that the stored form comes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import assert_well_put
from twinbus.amqp.codec.types import Int
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    default_rule,
)
from twinbus.errors import ConfigurationError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES: st.SearchStrategy[PropertyValue] = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31) + 1, 2**31 - 1).map(Int),
    st.floats(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    st.timedeltas(),
    st.uuids(),
)
PROPERTIES = st.dictionaries(
    st.text("abcXYZ-ä ", min_size=1, max_size=8), VALUES, max_size=4
).filter(lambda values: len({name.lower() for name in values}) == len(values))
PARAMETERS = PROPERTIES.map(lambda values: {f"@{name}": value for name, value in values.items()})
FILTERS = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(
        CorrelationFilter,
        correlation_id=st.none() | TEXTS,
        label=st.none() | TEXTS,
        content_type=st.none() | TEXTS,
        properties=PROPERTIES,
    ),
    st.builds(SqlFilter, st.just("color = 'red'"), PARAMETERS),
)
RULES = st.builds(
    RuleDescription,
    st.sampled_from(["$Default", "r", "Rule.with-all_signs", "ä" * 50]),
    FILTERS,
    st.none() | st.builds(SqlAction, st.just("SET a = 1"), PARAMETERS),
    st.integers(0, 2**53),
)


@given(RULES)
def test_a_rule_comes_back_from_json_with_the_types_of_its_values(rule: RuleDescription) -> None:
    """M4: what was stored is what was said."""
    # When a rule is written as JSON and read again
    read = RuleDescription.from_dict(json.loads(json.dumps(rule.to_dict(), allow_nan=False)))

    # Then it is the same rule, and 1, 1.0 and True are still three values
    assert read == rule
    assert repr(read) == repr(rule)


def test_a_subscription_is_born_with_a_rule_that_takes_all() -> None:
    """M4: the default rule is called $Default."""
    assert default_rule(5) == RuleDescription("$Default", TrueFilter(), None, 5)


@pytest.mark.parametrize(
    "name", ["", "x" * 51, "a/b", "a\\b", "a@b", "a?b", "a#b", "a*b", " a", "a\n", "a\x00", 5, None]
)
def test_a_name_that_could_not_be_addressed_is_refused(name: Any) -> None:
    """M4"""
    with pytest.raises(ConfigurationError, match="name") as refused:
        RuleDescription(name)
    assert_well_put(str(refused.value))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), "finite"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        (10**400, "64 bits"),
        (b"raw", "bytes"),
        (None, "NoneType"),
        ([1], "list"),
        ("x" * 1_025, "1025 characters"),
        ("\ud800", "incomplete Unicode"),
    ],
)
def test_a_value_that_no_message_could_be_compared_with_is_refused(
    value: Any, complaint: str
) -> None:
    """M4"""
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        CorrelationFilter(properties={"a": value})
    assert_well_put(str(refused.value))
    with pytest.raises(ConfigurationError, match=complaint):
        SqlFilter("a = @a", {"@a": value})


def test_values_are_bounded_in_number_and_named_once() -> None:
    """M4"""
    CorrelationFilter(properties={f"p{n}": n for n in range(64)})
    with pytest.raises(ConfigurationError, match="65 entries"):
        CorrelationFilter(properties={f"p{n}": n for n in range(65)})
    with pytest.raises(ConfigurationError, match="Duplicate name 'A'"):
        CorrelationFilter(properties={"a": 1, "A": 2})
    with pytest.raises(ConfigurationError, match="129 characters"):
        CorrelationFilter(properties={"a" * 129: 1})


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"name": "r", "colour": "red"},
        {"name": "r", "filter": {"kind": "maybe"}},
        {"name": "r", "filter": {"kind": "true", "expression": "1=1"}},
        {"name": "r", "filter": {"kind": "sql"}},
        {"name": "r", "filter": {"kind": "sql", "expression": 5}},
        {"name": "r", "filter": {"kind": "correlation", "colour": "red"}},
        {"name": "r", "filter": {"kind": "correlation", "properties": {"a": 1}}},
        {"name": "r", "filter": {"kind": "correlation", "properties": {"a": {"type": "int"}}}},
        {
            "name": "r",
            "filter": {
                "kind": "correlation",
                "properties": {"a": {"type": "uuid", "value": "nonsense"}},
            },
        },
        {"name": "r", "filter": "true"},
        {"name": "r", "action": {"expression": "SET a = 1", "when": "now"}},
        {"name": "r", "created_at_ms": "today"},
    ],
)
def test_a_stored_rule_that_is_not_understood_is_refused_with_a_sentence(
    stored: dict[str, Any],
) -> None:
    """M4"""
    with pytest.raises(ConfigurationError) as refused:
        RuleDescription.from_dict(stored)
    assert_well_put(str(refused.value))


def test_the_types_of_values_are_kept() -> None:
    """M4"""
    values: dict[str, PropertyValue] = {
        "text": "red",
        "flag": True,
        "small": Int(1),
        "large": 2**40,
        "fraction": 1.0,
        "moment": datetime(2020, 7, 5, 11, 12, 13),
        "while": timedelta(days=1, hours=2, microseconds=3),
        "id": UUID(int=5),
    }
    assert CorrelationFilter(properties=values).to_dict()["properties"] == {
        "text": {"type": "string", "value": "red"},
        "flag": {"type": "boolean", "value": True},
        "small": {"type": "int", "value": 1},
        "large": {"type": "long", "value": 2**40},
        "fraction": {"type": "double", "value": 1.0},
        "moment": {"type": "datetime", "value": "2020-07-05T11:12:13"},
        "while": {"type": "duration", "value": 93_600_000_003},
        "id": {"type": "uuid", "value": "00000000-0000-0000-0000-000000000005"},
    }
