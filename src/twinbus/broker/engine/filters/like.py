"""LIKE: whether a text matches a pattern (% any characters, _ any one character).

Rule 1: time grows with the length of the text, whatever text and pattern are: no backtracking, no
        regular expressions.
Rule 2: a pattern is parsed once, into segments between two %. The first match of a segment is
        always right, because % matches everything in between.
Rule 3: matching is case-sensitive.

A segment without _ is found by ``str.find``. One with _ is found by an automaton of bits: bit i
means that the last characters match the first i + 1 signs of the segment, and one shift advances
all of these partial matches by one character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from twinbus.broker.engine.filters.rule_values import EXPRESSION_CHARACTERS_MAX
from twinbus.errors import FilterError

# A search costs one for each character if every character is a step in Python; str.find checks
# eight in the same time, even for the worst text and segment.
FIND_SHARE: Final = 8
# Bits that Python shifts fastest; a longer segment with _ takes twice as long.
FAST_SIGNS: Final = 28

Sign: TypeAlias = str | None
"""A character of a pattern; None is any character."""


@dataclass(frozen=True, slots=True)
class PatternSegment:
    """The part of a pattern between two %."""

    signs: tuple[Sign, ...]
    literal: str | None
    """The signs as text, if none of them is _."""
    steps: dict[str, int]
    """For each character the bits of the signs that it matches."""
    any_steps: int
    """The same for every other character."""

    def fits_at(self, text: str, start: int) -> bool:
        """Whether the segment matches at this position."""
        if self.literal is not None:
            return text.startswith(self.literal, start)
        if start < 0 or start + len(self.signs) > len(text):
            return False
        signs = zip(self.signs, text[start:], strict=False)
        return all(sign is None or sign == char for sign, char in signs)

    def end_of_first(self, text: str, start: int, stop: int) -> int:
        """Where the first match within ``text[start:stop]`` ends; -1 if there is none."""
        length = len(self.signs)
        if self.literal is not None:
            found = text.find(self.literal, start, stop)
            return found if found < 0 else found + length
        last, guesses = 1 << (length - 1), 0
        get, any_steps = self.steps.get, self.any_steps
        for position, char in enumerate(text[start:stop], start + 1):
            guesses = (guesses << 1 | 1) & get(char, any_steps)
            if guesses & last:
                return position
        return -1


class LikePattern:
    """A pattern, ready to be compared with texts."""

    __slots__ = ("_cost", "_segments", "is_anchored", "matches")

    matches: Callable[[str], bool]
    """Whether a whole text matches."""

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        self._segments = [_segment(signs) for signs in _segments(pattern, escape)]
        is_literal = all(segment.literal is not None for segment in self._segments)
        self._cost = 1 if is_literal else FIND_SHARE
        if any(
            segment.literal is None and len(segment.signs) > FAST_SIGNS
            for segment in self._segments
        ):
            self._cost = 2 * FIND_SHARE
        self.is_anchored = is_literal and len(self._segments) <= 2
        """Only the beginning and the end of a text are compared."""
        self.matches = _usual(self._segments) or self._matches

    def effort(self, text: str) -> int:
        """The maximum cost of a comparison, in characters that are read one by one."""
        effort = len(text) * self._cost // FIND_SHARE
        # Python caches ASCII characters as strings, and creates all others.
        return effort if self._cost == 1 or text.isascii() else 2 * effort

    def _matches(self, text: str) -> bool:
        first, last = self._segments[0], self._segments[-1]
        if not first.fits_at(text, 0):
            return False
        if first is last:
            return len(text) == len(first.signs)
        position, stop = len(first.signs), len(text) - len(last.signs)
        if position > stop or not last.fits_at(text, stop):
            return False
        for segment in self._segments[1:-1]:
            position = segment.end_of_first(text, position, stop)
            if position < 0:
                return False
        return True


def _usual(segments: list[PatternSegment]) -> Callable[[str], bool] | None:
    """The most frequent patterns as Python functions: x, x%, %x and %x%."""
    literals = [segment.literal for segment in segments]
    match literals:
        case [str(word)]:
            return lambda text: text == word
        case [str(word), ""]:
            return lambda text: text.startswith(word)
        case ["", str(word)]:
            return lambda text: text.endswith(word)
        case ["", str(word), ""]:
            return lambda text: word in text
        case _:
            return None


def compile_pattern(pattern: str, escape: str | None) -> LikePattern:
    """A pattern that is a value of a message: no longer than one in a rule can be."""
    if len(pattern) > EXPRESSION_CHARACTERS_MAX:
        raise FilterError(f"A LIKE pattern has more than {EXPRESSION_CHARACTERS_MAX} characters")
    if escape is not None and len(escape) != 1:
        raise FilterError("ESCAPE requires exactly one character")
    return LikePattern(pattern, escape)


def _escaped(characters: Iterator[str]) -> str:
    for char in characters:
        return char
    raise FilterError("A LIKE pattern ends with its escape character")


def _segment(signs: list[Sign]) -> PatternSegment:
    any_steps = 0
    for index, sign in enumerate(signs):
        if sign is None:
            any_steps |= 1 << index
    steps = {sign: any_steps for sign in signs if sign is not None}
    for index, sign in enumerate(signs):
        if sign is not None:
            steps[sign] |= 1 << index
    literal = None if any_steps else "".join(sign or "" for sign in signs)
    return PatternSegment(tuple(signs), literal, steps, any_steps)


def _segments(pattern: str, escape: str | None) -> list[list[Sign]]:
    """The signs between the %; the character after the escape character has no special meaning."""
    segments: list[list[Sign]] = [[]]
    characters = iter(pattern)
    for char in characters:
        if char == escape:
            segments[-1].append(_escaped(characters))
        elif char == "%":
            segments.append([])
        else:
            segments[-1].append(None if char == "_" else char)
    # Several % in a row are one; the first and the last segment keep their places.
    inner = [signs for signs in segments[1:-1] if signs]
    return [segments[0], *inner, segments[-1]] if len(segments) > 1 else segments
