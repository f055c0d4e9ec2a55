"""What must be true of a message before a rule can match it, as something to look up.

Rule 1: a guard may let too much through, never too little: the rule itself decides.
Rule 2: a message that the guard keeps away from a rule could not have made it fail either.

    color = 'red' AND price > 10    the property color is 'red'
    color IN ('red', 'green')       the property color is one of these
    price > 10                      the property price is there
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

# From here on several whole numbers become the same fraction, so that values which are equal (as in
# C#) can have different hashes (in Python).
_INEXACT_FROM: Final = 2**53


@dataclass(frozen=True, slots=True)
class Guard:
    """A property, and the values that it must have one of."""

    is_system: bool
    name: str
    """Folded."""
    values: frozenset[Any] | None = None
    """None: any value, but the property must be there."""


def guard_on(is_system: bool, name: str, values: Iterable[Any]) -> Guard:
    """A guard on values where a lookup finds all that is equal, on presence where it might not."""
    found = frozenset(values)
    exact = all(_has_one_hash(value) for value in found)
    return Guard(is_system, name, found if exact else None)


def _has_one_hash(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) < _INEXACT_FROM
