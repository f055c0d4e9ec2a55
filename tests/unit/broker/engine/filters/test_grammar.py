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
    ("1", "neither true nor false"),
    ("'red'", "neither true nor false"),
    ("a = 1 AND 'red'", "neither true nor false"),
    ("a =", "end stands where a value should be, at character 4"),
    ("= 1", "'=' stands where a value should be"),
    ("a = 1 b", "'b' is not expected, at character 7"),
    ("a = 1)", "is not expected"),
    ("(a = 1", "where '\\)' should be"),
    ("a = 'x", "never closed"),
    ("[a = 1", "never closed"),
    ('"a = 1', "never closed"),
    ("[] = 1", "name is empty"),
    ("a == 1", "'=' stands where"),
    ("a = b = c", "compares a comparison"),
    ("a = 1 IS NULL", "compares a comparison"),
    ("(a = 1) = TRUE", "condition stands where a value"),
    ("a + (b = 1) = 2", "condition stands where a value"),
    ("-(a = 1) = 1", "condition stands where a value"),
    ("a IN (b = 1)", "compares|where"),
    ("a IN ()", "where a value should be"),
    ("a IN 1", "where '\\(' should be"),
    ("a IN (1", "where '\\)' should be"),
    ("a NOT 1", "where IN or LIKE should be"),
    ("a NOT = 1", "where IN or LIKE should be"),
    ("a IS 1", "where 'NULL' should be"),
    ("a IS NOT 1", "where 'NULL' should be"),
    ("a LIKE 5", "LIKE needs a text"),
    ("a LIKE NULL", "LIKE needs a text"),
    ("a LIKE 'x!' ESCAPE '!'", "ends with its escape character"),
    ("a LIKE 'x' ESCAPE '!!'", "exactly one character"),
    ("a LIKE 'x' ESCAPE 5", "exactly one character"),
    ("EXISTS(1)", "where a value should be"),
    ("EXISTS(a + 1)", "where '\\)' should be"),
    ("EXISTS a", "where '\\(' should be"),
    ("sys.Color = 1", "no system property 'sys.Color'"),
    ("sys.SequenceNumber = 1", "no sys.SequenceNumber yet"),
    ("sys.LockToken IS NULL", "no sys.LockToken yet"),
    ("EXISTS(sys.Color)", "no system property"),
    ("a.b = 1", "is not a property"),
    ("[user].b = 1", "is not a property"),
    ("user.1 = 1", "is not expected|is not a property|is followed"),
    ("user.AND = 1", "is not a property"),
    ("upper(a) = 'A'", "no function 'upper'"),
    ("newid(1) = 1", "where '\\)' should be"),
    ("p() = 1", "where a value should be"),
    ("@p = 1", "'@p' has no value"),
    ("@ = 1", "parameter has no name"),
    ("a = 1.5x", "followed by a letter"),
    ("a = 12_3", "followed by a letter"),
    ("a = 9223372036854775808", "64 bits"),
    ("a = - - 9223372036854775808", "64 bits"),
    ("a = 99999999999999999999", "64 bits"),
    ("a = 1E999", "too large"),
    ("_a = 1", "means nothing"),
    ("a & b", "means nothing"),
    ("a = 1; b = 2", "is not expected"),
    ("a = 1 --", "end stands where a value should be"),
    ("a = 1 /* c */", "where a value"),
    ("SELECT a", "'a' is not expected"),
    ("NOT", "where a value should be"),
    ("AND a = 1", "'AND' stands where"),
    ("a = NOT b", "'NOT' stands where a value"),
    ("a" * 129 + " = 1", "129 characters"),
    ("[" + "a" * 129 + "] = 1", "129 characters"),
    ("a = '\ud800'", "half a character"),
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
        ("a = 1", "where SET or REMOVE should be"),
        ("SET a", "where '=' should be"),
        ("SET a =", "where a value should be"),
        ("SET a = b = 1", "where SET or REMOVE should be"),
        ("SET 5 = 1", "where a value should be"),
        ("SET a = 1 +", "where a value should be"),
        ("SET a = 1, SET b = 2", "where SET or REMOVE should be"),
        ("SET a = (b = 1)", "condition stands"),
        ("REMOVE", "where a value should be"),
        ("REMOVE a b", "where SET or REMOVE should be"),
        ("; SET a = 1", "where SET or REMOVE should be"),
        ("SET sys.Color = 1", "no system property"),
        ("SET a = @p", "has no value"),
        ("DROP a", "where SET or REMOVE should be"),
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
