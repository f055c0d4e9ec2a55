"""SQL filters and correlation filters as predicates, with prefilters.

A prefilter, or guard, is a condition that a message must meet before a rule can match it, in a form
that the rule index can look up:

    color = 'red' AND price > 10    the property color is 'red'
    color IN ('red', 'green')       the property color is one of these
    price > 10                      the property price exists

Rule 1: a guard may pass too many messages, never too few: the rule itself decides.
Rule 2: a message that does not pass the guard could not have made the rule fail either.
Rule 3: values are looked up by keys whose hashes a client cannot choose (lookup_key): 100,000 rules
        with UUIDs of one hash would delay every message.
Rule 4: at the top of a filter, conditions that are joined by AND are evaluated from left to right
        until one is not true: false and unknown both mean no match, so the rest does not matter,
        and cannot fail either.
Rule 5: hence guards are taken from the first of them: those before cannot fail.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.codec.types import Timestamp
from twinbus.broker.engine.filters.expressions import (
    Evaluate,
    all_simple,
    compile_condition,
    is_long_comparison,
    simple_comparison,
)
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_description import (
    SYSTEM_CONDITIONS,
    CorrelationFilter,
    SqlFilter,
)
from twinbus.broker.engine.filters.syntax_tree import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    In,
    Like,
    Negative,
    NewId,
    Node,
    Or,
    Property,
    PropertyNamed,
    walk,
)
from twinbus.broker.engine.filters.values import equal, plain

# From here on several integers become the same float.
_INEXACT_FROM: Final = 2**53


@dataclass(frozen=True, slots=True)
class Prefilter:
    """A property, and the values of which it must have one."""

    is_system: bool
    name: str
    """Folded."""
    keys: frozenset[Any] | None = None
    """The lookup keys of the values. None: any value, but the property must exist."""


def make_guard(is_system: bool, name: str, values: Iterable[Any]) -> Prefilter:
    """A guard on values if a lookup finds all equal values, otherwise on existence."""
    found = list(values)
    exact = all(_has_one_key(value) for value in found)
    return Prefilter(is_system, name, frozenset(map(lookup_key, found)) if exact else None)


def _has_one_key(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) < _INEXACT_FROM


def _number_key(number: float) -> bytes:
    """Integers and floats are compared as floats; both zeros are equal."""
    return _PACK_DOUBLE(number + 0.0)


_PACK_DOUBLE: Final = struct.Struct(">d").pack
_LOOKUP_KEYS: Final[dict[type, Callable[[Any], Any]]] = {
    int: _number_key,
    float: _number_key,
    Timestamp: _number_key,
    UUID: lambda value: value.bytes,
}


def lookup_key(value: Any) -> Any:
    """The key of a value in dictionaries: equal values have equal keys."""
    convert = _LOOKUP_KEYS.get(type(value))
    return value if convert is None else convert(value)


def compile_sql(
    described: SqlFilter,
) -> tuple[Callable[[MessageView], bool | None], list[Prefilter]]:
    """The predicate, and guards, any one of which can be used."""
    node = described.tree
    items = node.items if isinstance(node, And) else (node,)
    matches = _all_true(items)
    if may_spend(node):
        matches = _accounted(matches)
    return matches, _guards(items)


def _all_true(nodes: tuple[Node, ...]) -> Evaluate:
    if len(nodes) == 1:
        return compile_condition(nodes[0])
    tests = [test for test in map(simple_comparison, nodes) if test is not None]
    if len(tests) == len(nodes):
        return all_simple(tests)
    items = [compile_condition(node) for node in nodes]

    def all_true(message: MessageView) -> Any:
        for item in items:
            value = item(message)
            if value is not True:
                return value
        return True

    return all_true


def _accounted(matches: Evaluate) -> Evaluate:
    """For rules that may search long texts: each has its own limit of effort for a message."""

    def within_effort(message: MessageView) -> Any:
        message.effort_before_rule = message.effort
        return matches(message)

    return within_effort


# --- guards --------------------------------------------------------------------------------------


def _guards(items: tuple[Node, ...]) -> list[Prefilter]:
    guards = []
    for item in items:
        guard = _guard(item)
        if guard is not None:
            guards.append(guard)
        if _may_fail(item):
            break
    return guards


def _guard(node: Node) -> Prefilter | None:
    """The guard for messages for which ``node`` can be true, or can fail."""
    if isinstance(node, Comparison):
        return _comparison_guard(node)
    if isinstance(node, In) and isinstance(node.item, Property):
        if all(isinstance(choice, Constant) for choice in node.choices):
            return _property_guard(node.item, node.choices)
        return None
    if isinstance(node, Like) and isinstance(node.item, Property):
        return _present(node.item) if isinstance(node.pattern, Constant) else None
    if isinstance(node, Or):
        return _common_guard([_guard(item) for item in node.items])
    return None


def _comparison_guard(node: Comparison) -> Prefilter | None:
    item, other = node.left, node.right
    if isinstance(item, Constant):
        item, other = other, item
    if not isinstance(item, Property) or not isinstance(other, Constant):
        return None
    return _property_guard(item, (other,)) if node.sign == "=" else _present(item)


def _property_guard(item: Property, choices: tuple[Node, ...]) -> Prefilter:
    # NULL equals nothing, so it is not a value to look up.
    values = [c.value for c in choices if isinstance(c, Constant) and c.value is not None]
    return make_guard(item.is_system, item.folded, values)


def _present(item: Property) -> Prefilter:
    return Prefilter(item.is_system, item.folded)


def _common_guard(guards: list[Prefilter | None]) -> Prefilter | None:
    """One guard for alternatives that all need the same property."""
    known = [guard for guard in guards if guard is not None]
    first = known[0] if known else None
    if first is None or len(known) < len(guards):
        return None
    if any((guard.is_system, guard.name) != (first.is_system, first.name) for guard in known):
        return None
    values: frozenset[Any] = frozenset()
    for guard in known:
        if guard.keys is None:
            return Prefilter(first.is_system, first.name)
        values |= guard.keys
    return Prefilter(first.is_system, first.name, values)


def _may_fail(node: Node) -> bool:
    """Whether evaluating it can raise FilterError, for some message."""
    # A long text may be too much effort even for a constant pattern.
    return any(
        isinstance(part, Arithmetic | Negative | NewId | Like | PropertyNamed)
        or is_long_comparison(part)
        for part in walk(node)
    )


def may_spend(node: Node) -> bool:
    """Whether it searches, builds or compares long texts."""
    return any(
        isinstance(part, Like | PropertyNamed)
        or (isinstance(part, Arithmetic) and any(sign == "+" for sign, _item in part.rest))
        or is_long_comparison(part)
        for part in walk(node)
    )


_SYSTEM_NAMES: Final = {name: name.replace("_", "") for name in SYSTEM_CONDITIONS}


def compile_correlation(
    described: CorrelationFilter,
) -> tuple[Callable[[MessageView], bool | None], list[Prefilter]]:
    """The predicate, and one guard for each condition."""
    system = [
        (folded, getattr(described, name))
        for name, folded in _SYSTEM_NAMES.items()
        if getattr(described, name) is not None
    ]
    user = [(name.lower(), plain(value)) for name, value in described.properties.items()]

    def matches(message: MessageView) -> bool:
        return _all_equal(message.system, system) and _all_equal(message.user, user)

    def matches_user(message: MessageView) -> bool:
        return _all_equal(message.user, user)

    guards = [make_guard(True, name, (value,)) for name, value in system]
    guards += [make_guard(False, name, (value,)) for name, value in user]
    return (matches if system else matches_user), guards


def _all_equal(properties: dict[str, Any], conditions: list[tuple[str, Any]]) -> bool:
    # None, for unknown, is not a match; a missing property is unknown.
    return all(equal(properties.get(name), value) for name, value in conditions)
