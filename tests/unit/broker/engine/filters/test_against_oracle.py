"""M4: random expressions on random messages, beside an evaluator that walks the tree."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.broker.engine.filters.messages import answer, view_of
from tests.unit.broker.engine.filters.oracle import (
    NoResult,
    NotCompared,
    truth,
    worked_out,
    written,
)
from twinbus.amqp.codec.types import Int
from twinbus.broker.engine.filters import FilterError
from twinbus.broker.engine.filters.rule_values import EXPRESSION_CHARACTERS_MAX

# Small numbers meet often; the large ones leave 64 bits when they meet.
INTS = st.sampled_from([0, 1, 2, 3, 7, 2**31, 2**53 + 1, 2**63 - 1])
FLOATS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.5, 9007199254740992.0])
TEXTS = st.text("ab%_'", max_size=3)
CONSTANTS = st.one_of(INTS, FLOATS, TEXTS, st.booleans(), st.none())
NAMES = st.sampled_from(["a", "b", "c", "missing"])

MESSAGES = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(INTS, INTS.map(lambda n: -n), FLOATS, TEXTS, st.booleans(), st.none()),
)

ATOMS = st.one_of(st.tuples(st.just("constant"), CONSTANTS), st.tuples(st.just("property"), NAMES))


def larger_value(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/%"), value, value),
        st.tuples(st.just("negative"), st.tuples(st.just("property"), NAMES)),
    )


VALUES: st.SearchStrategy[Any] = st.recursive(ATOMS, larger_value, max_leaves=4)
COMPARISONS = st.one_of(
    st.tuples(
        st.just("compare"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES, VALUES
    ),
    st.lists(VALUES, min_size=1, max_size=3).flatmap(
        lambda choices: st.tuples(st.just("in"), ATOMS, *map(st.just, choices))
    ),
    st.tuples(st.just("like"), VALUES, TEXTS),
    st.tuples(st.just("null"), VALUES),
    st.tuples(st.just("exists"), NAMES),
    st.tuples(st.just("property"), NAMES),
)


def larger_condition(condition: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), condition, condition),
        st.tuples(st.just("not"), condition),
    )


CONDITIONS: st.SearchStrategy[Any] = st.recursive(COMPARISONS, larger_condition, max_leaves=6)


@given(CONDITIONS, MESSAGES)
@settings(max_examples=400)
def test_an_expression_says_what_walking_its_tree_says(
    tree: Any, properties: dict[str, Any]
) -> None:
    """M4: the exact answer, unknown or failure included, with only the parentheses it needs."""
    expression = f"NOT ({written(tree)})"
    assume(len(expression) <= EXPRESSION_CHARACTERS_MAX)
    try:
        expected = truth(worked_out(("not", tree), properties))
    except NotCompared:
        assume(False)
    except NoResult:
        expected = FilterError  # type: ignore[assignment]

    # A message writes small numbers as int32.
    sent = {
        name: Int(value) if type(value) is int and abs(value) < 100 else value
        for name, value in properties.items()
    }
    try:
        found: Any = answer(expression, view_of(sent))
    except FilterError:
        found = FilterError
    assert found is expected, expression


@given(st.lists(CONDITIONS, min_size=2, max_size=4), MESSAGES)
@settings(max_examples=150)
def test_a_filter_matches_when_all_its_conditions_are_true(
    trees: list[Any], properties: dict[str, Any]
) -> None:
    """M4: asked from left to right until one is not; the rest is not asked and cannot fail."""
    expression = " AND ".join(f"({written(tree)})" for tree in trees)
    assume(len(expression) <= EXPRESSION_CHARACTERS_MAX)
    expected: Any = True
    for tree in trees:
        try:
            if truth(worked_out(tree, properties)) is not True:
                expected = False
        except NotCompared:
            assume(False)
        except NoResult:
            expected = FilterError
        if expected is not True:
            break

    try:
        found: Any = answer(expression, view_of(properties)) is True
    except FilterError:
        found = FilterError
    assert found is expected, expression
