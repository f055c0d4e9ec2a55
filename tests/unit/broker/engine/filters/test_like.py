"""M4: LIKE, beside a slow one that tries everything."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twinbus.broker.engine.filters.like import LikePattern
from twinbus.errors import FilterError


def slow_like(text: str, pattern: str, escape: str | None) -> bool:
    """By definition: every way to spend the text on the pattern."""

    @cache
    def fits(t: int, p: int) -> bool:
        if p == len(pattern):
            return t == len(text)
        if pattern[p] == escape:
            return t < len(text) and text[t] == pattern[p + 1] and fits(t + 1, p + 2)
        if pattern[p] == "%":
            return any(fits(rest, p + 1) for rest in range(t, len(text) + 1))
        return t < len(text) and pattern[p] in ("_", text[t]) and fits(t + 1, p + 1)

    return fits(0, 0)


@given(
    st.text("ab%_!", max_size=14), st.text("ab%_", max_size=9), st.none() | st.sampled_from("!a")
)
@example("aab", "%a_", None)
@example("abab", "%ab", None)
@example("aa", "a%a%a", None)
@example("a", "a%a", None)
@example("a", "_%_", None)
@example("ab", "ab%b", None)
@example("a%", "a!%", "!")
@example("xaby", "%_b%", None)
def test_like_agrees_with_trying_everything(text: str, pattern: str, escape: str | None) -> None:
    """M4"""
    try:
        shape = LikePattern(pattern, escape)
    except FilterError:
        # The escape character stands last, or last but an even number of others.
        assert pattern.endswith(escape or "?")
        return
    assert shape.matches(text) is slow_like(text, pattern, escape)


@given(st.text("aä€😀%_", max_size=12), st.text("aä€😀%_", max_size=8))
def test_a_character_is_one_character_however_many_bytes_it_has(text: str, pattern: str) -> None:
    """M4"""
    assert LikePattern(pattern).matches(text) is slow_like(text, pattern, None)


@pytest.mark.parametrize("pattern", ["ab", "ab%", "%ab", "%ab%", "%", "%%", "", "a%b", "a%b%a"])
@pytest.mark.parametrize(
    "text", ["", "a", "ab", "abx", "xab", "xabx", "aab", "abab", "ababa", "ba"]
)
def test_the_usual_patterns_agree_too(pattern: str, text: str) -> None:
    """M4: those that have a short cut."""
    assert LikePattern(pattern).matches(text) is slow_like(text, pattern, None)


def test_an_escape_means_the_next_character_itself_whatever_it_is() -> None:
    """M4"""
    assert LikePattern("100!%", "!").matches("100%")
    assert not LikePattern("100!%", "!").matches("1000")
    assert LikePattern("a!!b", "!").matches("a!b")
    assert LikePattern("a!b", "!").matches("ab")
    assert LikePattern("a%%b", "%").matches("a%b")
    with pytest.raises(FilterError, match="ends with its escape"):
        LikePattern("abc!", "!")


@pytest.mark.parametrize(
    "pattern", ["%" + "a_" * 100 + "b%", "%a_a_b%", "%_" * 300, "_" * 40 + "%b_"]
)
def test_a_comparison_looks_at_each_character_once(pattern: str) -> None:
    """M4: counted, not timed: the steps of the automaton grow with the text alone."""

    class Counted(str):
        __slots__ = ()

    text = Counted("a" * 10_000)
    shape = LikePattern(pattern)
    assert shape.effort(text) in (10_000, 20_000)
    assert shape.matches(text) is (pattern == "%_" * 300)
