"""M4: what is not an expression is refused when the rule is made, with a sentence and a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import assert_well_put
from tests.unit.broker.engine.filters.messages import answer, view_of
from twinbus.broker.engine.filters import SqlAction, SqlFilter
from twinbus.errors import ConfigurationError

REFUSED = [
    ("", "is empty"),
    ("   ", "is empty"),
    ("1", "Expected a condition"),
    ("'red'", "Expected a condition"),
    ("a = 1 AND 'red'", "Expected a condition"),
    ("a =", "Expected a value, found the end, at character 4"),
    ("= 1", "Expected a value, found '='"),
    ("a = 1 b", "Unexpected 'b', at character 7"),
    ("a = 1)", "Unexpected"),
    ("(a = 1", "Expected '\\)'"),
    ("a = 'x", "is not closed"),
    ("[a = 1", "is not closed"),
    ('"a = 1', "is not closed"),
    ("[] = 1", "name is empty"),
    ("a == 1", "found '='"),
    ("a = b = c", "follows another comparison"),
    ("a = 1 IS NULL", "follows another comparison"),
    ("(a = 1) = TRUE", "found a condition"),
    ("a + (b = 1) = 2", "found a condition"),
    ("-(a = 1) = 1", "found a condition"),
    ("a IN (b = 1)", "Expected"),
    ("a IN ()", "Expected a value"),
    ("a IN 1", "Expected '\\('"),
    ("a IN (1", "Expected '\\)'"),
    ("a NOT 1", "Expected IN or LIKE"),
    ("a NOT = 1", "Expected IN or LIKE"),
    ("a IS 1", "Expected 'NULL'"),
    ("a IS NOT 1", "Expected 'NULL'"),
    ("a LIKE 5", "LIKE requires"),
    ("a LIKE NULL", "LIKE requires"),
    ("a LIKE 'x!' ESCAPE '!'", "ends with its escape character"),
    ("a LIKE 'x' ESCAPE '!!'", "exactly one character"),
    ("a LIKE 'x' ESCAPE 5", "exactly one character"),
    ("EXISTS(1)", "Expected a value"),
    ("EXISTS(a + 1)", "Expected '\\)'"),
    ("EXISTS a", "Expected '\\('"),
    ("sys.Color = 1", "Unknown system property: 'sys.Color'"),
    ("sys.SequenceNumber = 1", "no sys.SequenceNumber"),
    ("sys.LockToken IS NULL", "no sys.LockToken"),
    ("EXISTS(sys.Color)", "Unknown system property"),
    ("a.b = 1", "is not a property"),
    ("[user].b = 1", "is not a property"),
    ("user.1 = 1", "Unexpected|is not a property|is followed"),
    ("user.AND = 1", "is not a property"),
    ("upper(a) = 'A'", "Unknown function 'upper'"),
    ("newid(1) = 1", "Expected '\\)'"),
    ("p() = 1", "Expected a value"),
    ("@p = 1", "'@p' has no value"),
    ("@ = 1", "parameter has no name"),
    ("a = 1.5x", "followed by a letter"),
    ("a = 12_3", "followed by a letter"),
    ("a = 9223372036854775808", "64 bits"),
    ("a = - - 9223372036854775808", "64 bits"),
    ("a = 99999999999999999999", "64 bits"),
    ("a = 1E999", "too large"),
    ("_a = 1", "Unexpected character"),
    ("a & b", "Unexpected character"),
    ("a = 1; b = 2", "Unexpected"),
    ("a = 1 --", "found the end"),
    ("a = 1 /* c */", "Expected a value"),
    ("SELECT a", "Unexpected 'a'"),
    ("NOT", "Expected a value"),
    ("AND a = 1", "found 'AND'"),
    ("a = NOT b", "found 'NOT'"),
    ("a" * 129 + " = 1", "129 characters"),
    ("[" + "a" * 129 + "] = 1", "129 characters"),
    ("a = '\ud800'", "incomplete Unicode"),
    ("a = '\x00'", None),
    ("ä = 1 AND 名前 = 2 AND a1_ = 3", None),
]


@pytest.mark.parametrize(
    ("expression", "complaint"), REFUSED, ids=[ascii(r[0])[:40] for r in REFUSED]
)
def test_an_expression_is_taken_or_refused_with_a_sentence(
    expression: str, complaint: str | None
) -> None:
    """M4"""
    if complaint is None:
        SqlFilter(expression)
        return
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        SqlFilter(expression)
    assert_well_put(str(refused.value))


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "is empty"),
        ("a = 1", "Expected SET or REMOVE"),
        ("SET a", "Expected '='"),
        ("SET a =", "Expected a value"),
        ("SET a = b = 1", "Expected SET or REMOVE"),
        ("SET 5 = 1", "Expected a value"),
        ("SET a = 1 +", "Expected a value"),
        ("SET a = 1, SET b = 2", "Expected SET or REMOVE"),
        ("SET a = (b = 1)", "found a condition"),
        ("REMOVE", "Expected a value"),
        ("REMOVE a b", "Expected SET or REMOVE"),
        ("; SET a = 1", "Expected SET or REMOVE"),
        ("SET sys.Color = 1", "Unknown system property"),
        ("SET a = @p", "has no value"),
        ("DROP a", "Expected SET or REMOVE"),
    ],
)
def test_an_action_is_refused_with_a_sentence(expression: str, complaint: str) -> None:
    """M4"""
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        SqlAction(expression)
    assert_well_put(str(refused.value))


@given(st.text("ab=<>!'()[]\"@.,;%+-*/ \n019eEé_", max_size=40))
def test_any_text_is_an_expression_or_a_refusal(text: str) -> None:
    """M4: never another exception."""
    for kind in (SqlFilter, SqlAction):
        sentence = None
        try:
            kind(text)
        except ConfigurationError as error:
            sentence = str(error)
        if sentence is not None:
            assert_well_put(sentence)


WORDS = ["a", "sys.Label", "1", "2.5", "'x'", "=", "<", "+", "-", "(", ")", "AND", "OR", "NOT"]
WORDS += [
    "IN",
    "LIKE",
    "IS",
    "NULL",
    "EXISTS",
    "(",
    ")",
    ",",
    "ESCAPE",
    "TRUE",
    "newid()",
    "p",
    "SET",
]


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_order_of_words_is_an_expression_or_a_refusal(text: str) -> None:
    """M4: and what is an expression has an answer."""
    try:
        described = SqlFilter(text)
    except ConfigurationError:
        return
    assert answer(described, view_of({"a": "x"})) in (True, False, None)


def test_parameters_are_named_with_or_without_upper_case() -> None:
    """M4: a parameter that is not used does no harm."""
    described = SqlFilter("Price > @Min", {"@min": 5, "@other": "x"})
    assert answer(described, view_of({"price": 6})) is True


def test_white_space_is_whatever_separates_words() -> None:
    """M4"""
    assert answer("a\t=\n1\r\nAND\u00a0a=1", view_of({"a": 1})) is True
