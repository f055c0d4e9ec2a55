"""M4: all rules of a topic together say what each of them says alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.engine.filters.messages import matching, records, rule, view_of
from twinbus.amqp.codec.types import Int, Timestamp
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.filters import (
    CompiledRule,
    CorrelationFilter,
    FalseFilter,
    Filter,
    FilterError,
    MessageView,
    RuleIndex,
    SqlFilter,
    TrueFilter,
    compile_rule,
)
from twinbus.broker.engine.filters import message_view as message_view_module
from twinbus.errors import ConfigurationError

FILTERS: list[Filter] = [
    TrueFilter(),
    FalseFilter(),
    CorrelationFilter(),
    CorrelationFilter(label="red"),
    CorrelationFilter(label="red", properties={"a": 1}),
    CorrelationFilter(properties={"A": 1}),
    CorrelationFilter(properties={"a": 1.0}),
    CorrelationFilter(properties={"a": "1"}),
    CorrelationFilter(properties={"a": True}),
    CorrelationFilter(properties={"a": 2**53 + 1}),
    CorrelationFilter(session_id="s", properties={"b": "x"}),
    SqlFilter("a = 1"),
    SqlFilter("1 = a"),
    SqlFilter("a = '1' AND b = 'x'"),
    SqlFilter("a > 0"),
    SqlFilter("a <> 1"),
    SqlFilter("a = NULL"),
    SqlFilter("a IS NULL"),
    SqlFilter("NOT a = 1"),
    SqlFilter("a IN (1, '1', TRUE)"),
    SqlFilter("a IN (1, NULL)"),
    SqlFilter("a NOT IN (1, 2)"),
    SqlFilter("a = 9007199254740993"),
    SqlFilter("a = 9007199254740992.0"),
    SqlFilter("a = 1 OR a = 'x'"),
    SqlFilter("a = 1 OR b = 'x'"),
    SqlFilter("a = 1 OR a > 5"),
    SqlFilter("b LIKE 'x%'"),
    SqlFilter("b LIKE b"),
    SqlFilter("sys.Label = 'red'"),
    SqlFilter("sys.Label <> 'red' AND a = 1"),
    SqlFilter("a / 0 = 1 AND b = 'x'"),
    SqlFilter("b = 'x' AND a / 0 = 1"),
    SqlFilter("a = a"),
]
VALUES = [None, 1, Int(1), 1.0, True, "1", "x", 0, 7, 2**53, 2**53 + 1, 2.0**53, Timestamp(1), b"x"]
MESSAGES = st.tuples(
    st.dictionaries(st.sampled_from("abA"), st.sampled_from(VALUES)),
    st.sampled_from([{}, {"subject": "red"}, {"subject": "blue", "group_id": "s"}]),
)


def one_by_one(
    rules: list[tuple[str, CompiledRule]], view: MessageView
) -> dict[str, tuple[list[str], bool]]:
    """Subscription -> the names of the rules that match, and whether one failed."""
    found: dict[str, tuple[list[str], bool]] = {}
    for subscription, compiled in rules:
        names, failed = found.get(subscription, ([], False))
        try:
            if compiled.matches(view) is True:
                names = [*names, compiled.name]
        except FilterError:
            failed = True
        if names or failed:
            found[subscription] = (names, failed)
    return found


def together(book: RuleIndex[str], view: MessageView) -> dict[str, tuple[list[str], bool]]:
    return {
        match.subscription: ([rule.name for rule in match.rules], match.error is not None)
        for match in matching(book, view)
    }


@given(
    st.lists(st.tuples(st.sampled_from(["s1", "s2", "s3"]), st.sampled_from(FILTERS)), max_size=30),
    st.lists(MESSAGES, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150)
def test_a_book_says_what_its_rules_say_one_by_one(
    described: list[tuple[str, Filter]],
    messages: list[tuple[dict[str, Any], dict[str, Any]]],
    random: Random,
) -> None:
    """M4: the index finds every match and every failure, in order, also after removals."""
    # Given a book with many rules, some of which are removed again
    rules = [
        (subscription, compile_rule(rule(chosen, name=f"r{number}")))
        for number, (subscription, chosen) in enumerate(described)
    ]
    book: RuleIndex[str] = RuleIndex()
    for subscription, compiled in rules:
        book.add(subscription, compiled)
    for entry in random.sample(rules, len(rules) // 3):
        assert book.remove(entry[0], entry[1].name.upper())
        rules.remove(entry)
    assert len(book) == len(rules)

    # When messages come, then the book and the rules agree
    for own, properties in messages:
        expected = one_by_one(rules, view_of(own, **properties))
        assert together(book, view_of(own, **properties)) == expected


def test_a_book_forgets_what_is_removed() -> None:
    """M4"""
    book: RuleIndex[str] = RuleIndex()
    for number, chosen in enumerate(FILTERS):
        book.add("s", compile_rule(rule(chosen, name=f"r{number}")))
    book.add("other", compile_rule(rule(TrueFilter())))
    book.remove_subscription("s")
    assert [rule.name for rule in book.rules_of("other")] == ["rule"]
    assert book.rules_of("s") == [] and len(book) == 1
    assert together(book, view_of({"a": 1, "b": "x"})) == {"other": (["rule"], False)}
    assert not book.remove("other", "nobody") and not book.remove("s", "r1")


def test_a_name_is_taken_once_in_a_subscription() -> None:
    """M4: whatever its case."""
    book: RuleIndex[str] = RuleIndex()
    book.add("s", compile_rule(rule(TrueFilter(), name="Rule")))
    book.add("t", compile_rule(rule(TrueFilter(), name="rule")))
    with pytest.raises(ConfigurationError, match="already exists"):
        book.add("s", compile_rule(rule(TrueFilter(), name="rule")))


def test_a_thousand_rules_share_one_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: the sections of a message are read once, however many rules look at them."""
    readings: list[int] = []
    decode = message_view_module.decode_value
    monkeypatch.setattr(
        message_view_module,
        "decode_value",
        lambda *args: (readings.append(1), decode(*args))[1],
    )
    book: RuleIndex[int] = RuleIndex()
    for number in range(1_000):
        book.add(number, compile_rule(rule(f"price > {number} AND sys.Label = 'red'")))
    assert len(matching(book, view_of({"price": 500}, subject="red"))) == 500
    assert readings == [1]


def test_rules_that_wait_for_other_values_are_not_asked() -> None:
    """M4: a thousand rules for a thousand values cost one lookup."""
    asked: list[str] = []
    book: RuleIndex[int] = RuleIndex()
    for number in range(1_000):
        described = (
            CorrelationFilter(properties={"n": number})
            if number % 2
            else SqlFilter(f"n = {number}")
        )
        compiled = compile_rule(rule(described, name=f"r{number}"))
        compiled.matches = lambda view, ask=compiled.matches, name=compiled.name: (
            asked.append(name) or ask(view)  # type: ignore[func-returns-value]
        )
        book.add(number, compiled)
    assert [match.subscription for match in matching(book, view_of({"n": 5}))] == [5]
    assert [match.subscription for match in matching(book, view_of({"N": Int(6)}))] == [6]
    assert asked == ["r5", "r6"]


def test_a_failing_rule_is_the_affair_of_its_subscription() -> None:
    """M4: the others get the message, and so does its own subscription through another rule."""
    book: RuleIndex[str] = RuleIndex()
    book.add("calm", compile_rule(rule("a = 1")))
    book.add("both", compile_rule(rule("1 / (a - 1) = 1", name="fails")))
    book.add("both", compile_rule(rule("a = 1", name="holds")))
    book.add("broken", compile_rule(rule("1 / (a - 1) = 1")))
    calm, both, broken = matching(book, view_of({"a": 1}))
    assert (calm.subscription, calm.error) == ("calm", None)
    assert [rule.name for rule in both.rules] == ["holds"] and both.error is not None
    assert broken.rules == [] and str(broken.error).startswith("A calculation divides")
    assert [match.subscription for match in matching(book, view_of({"a": 2}))] == ["both", "broken"]


def test_rules_without_actions_share_a_copy_and_each_action_makes_its_own() -> None:
    """M4: a copy that an action has changed carries the name of its rule."""
    book: RuleIndex[str] = RuleIndex()
    book.add("s", compile_rule(rule("a = 1", name="plain")))
    book.add("s", compile_rule(rule("a > 0", name="also plain")))
    book.add("s", compile_rule(rule("a = 1", "SET b = 'x'", name="first")))
    book.add("s", compile_rule(rule("a = 1", "SET sys.Label = 'y'", name="second")))
    book.add("s", compile_rule(rule("a = 1", "SET b = 1 / 0", name="fails")))
    view = view_of({"a": 1})
    (match,) = matching(book, view)
    assert match.error is None

    plain, first, second = records(match, view)
    assert plain is None and first is not None and second is not None
    own = [Message.decode(record.bare).application_properties for record in (first, second)]
    assert own == [{"a": 1, "b": "x", "RuleName": "first"}, {"a": 1, "RuleName": "second"}]
    assert str(match.error).startswith("A calculation divides")


def test_an_action_whose_result_is_too_large_makes_no_copy() -> None:
    """M4"""
    book: RuleIndex[str] = RuleIndex()
    book.add("s", compile_rule(rule(TrueFilter(), "SET c = a")))
    view = view_of({"a": "x" * 30_000, "b": "x" * 30_000})
    (match,) = matching(book, view)
    assert records(match, view) == []
    assert "larger than" in str(match.error)


def test_correlation_filters_compare_ids_and_types() -> None:
    """M4: every condition must hold; the number 2 is not the text 2."""
    chosen = CorrelationFilter(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        label="l",
        session_id="s",
        reply_to_session_id="rs",
        content_type="ct",
        properties={"n": 2},
    )
    compiled = compile_rule(rule(chosen))
    facts: dict[str, Any] = {
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "subject": "l",
        "group_id": "s",
        "reply_to_group_id": "rs",
        "content_type": "ct",
    }
    assert compiled.matches(view_of({"N": Int(2)}, **facts)) is True
    assert compiled.matches(view_of({"n": "2"}, **facts)) is False
    assert compiled.matches(view_of(None, **facts)) is False
    for name in facts:
        assert compiled.matches(view_of({"n": 2}, **(facts | {name: "other"}))) is False


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rule_that_no_value_matches_is_removed_after_the_last_other_rule(is_first: bool) -> None:
    """M4: it is in no list of its property."""
    index: RuleIndex[str] = RuleIndex()
    index.add("s", compile_rule(rule("a = NULL", name="never")))
    index.add("s", compile_rule(rule("a = 1", name="one")))

    names = ["never", "one"] if is_first else ["one", "never"]
    assert [index.remove("s", name) for name in names] == [True, True]
    assert len(index) == 0
