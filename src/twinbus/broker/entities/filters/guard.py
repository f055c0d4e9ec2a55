"""What must be true of a message before a rule can match it, as something to look up.

Rule 1: a guard may let too much through, never too little: the rule itself decides.
Rule 2: a message that the guard keeps away from a rule could not have made it fail either.
Rule 3: values are looked up by keys whose hashes nobody can choose (lookup_key): 100,000 rules with
        UUIDs of one hash would hold every message up.

    color = 'red' AND price > 10    the property color is 'red'
    color IN ('red', 'green')       the property color is one of these
    price > 10                      the property price is there
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.types import Timestamp

# From here on several whole numbers become the same fraction.
_INEXACT_FROM: Final = 2**53


@dataclass(frozen=True, slots=True)
class Prefilter:
    """A property, and the values that it must have one of."""

    is_system: bool
    name: str
    """Folded."""
    keys: frozenset[Any] | None = None
    """The lookup keys of the values. None: any value, but the property must be there."""


def guard_on(is_system: bool, name: str, values: Iterable[Any]) -> Prefilter:
    """A guard on values where a lookup finds all that is equal, on presence where it might not."""
    found = list(values)
    exact = all(_has_one_key(value) for value in found)
    return Prefilter(is_system, name, frozenset(map(lookup_key, found)) if exact else None)


def _has_one_key(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) < _INEXACT_FROM


def _number_key(number: float) -> bytes:
    """Whole numbers and fractions meet as fractions; so do both zeros."""
    return _PACK_DOUBLE(number + 0.0)


_PACK_DOUBLE: Final = struct.Struct(">d").pack
_LOOKUP_KEYS: Final[dict[type, Callable[[Any], Any]]] = {
    int: _number_key,
    float: _number_key,
    Timestamp: _number_key,
    UUID: lambda value: value.bytes,
}


def lookup_key(value: Any) -> Any:
    """What stands for a value in dictionaries: equal for all that is equal to it."""
    convert = _LOOKUP_KEYS.get(type(value))
    return value if convert is None else convert(value)
