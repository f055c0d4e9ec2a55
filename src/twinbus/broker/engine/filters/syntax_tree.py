"""The nodes of a parsed expression.

Rule 1: chains are one node (a + b - c, a AND b AND c), so that a tree is only as deep as its
        parentheses.
Rule 2: names are resolved: a system property is known, a parameter is replaced by its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from twinbus.broker.engine.filters.like import LikePattern


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any
    """A plain value (values.py); None is NULL."""


@dataclass(frozen=True, slots=True)
class Property:
    is_system: bool
    name: str
    """As in the expression; a system property is folded."""

    @property
    def folded(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class NewId:
    """newid()"""


@dataclass(frozen=True, slots=True)
class PropertyNamed:
    """property(name): an application property whose name is an expression."""

    name: Node


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A chain of + and -, or of * / and %, from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Negative:
    item: Node


@dataclass(frozen=True, slots=True)
class Comparison:
    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    item: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    item: Node
    pattern: Node
    escape: Node | None
    shape: LikePattern | None
    """The compiled pattern, if pattern and escape are constants."""


@dataclass(frozen=True, slots=True)
class IsNull:
    item: Node


@dataclass(frozen=True, slots=True)
class Exists:
    item: Property


@dataclass(frozen=True, slots=True)
class Not:
    item: Node


@dataclass(frozen=True, slots=True)
class And:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    items: tuple[Node, ...]


Value: TypeAlias = Constant | Property | NewId | PropertyNamed | Arithmetic | Negative
Predicate: TypeAlias = Comparison | In | Like | IsNull | Exists | Not | And | Or
Node: TypeAlias = Value | Predicate

PREDICATES = (Comparison, In, Like, IsNull, Exists, Not, And, Or)
"""Nodes whose value is always true, false or unknown."""


def walk(node: Node) -> Iterator[Node]:
    """The node and everything in it."""
    yield node
    for part in _parts(node):
        yield from walk(part)


def _parts(node: Node) -> tuple[Node, ...]:
    match node:
        case Arithmetic(first, rest):
            return (first, *(item for _sign, item in rest))
        case Comparison(_, left, right):
            return (left, right)
        case In(item, choices):
            return (item, *choices)
        case Like(item, pattern, escape):
            return (item, pattern) if escape is None else (item, pattern, escape)
        case And(items) | Or(items):
            return items
        case Not(item) | IsNull(item) | Exists(item) | Negative(item) | PropertyNamed(item):
            return (item,)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class Set:
    target: Property
    value: Node


@dataclass(frozen=True, slots=True)
class Remove:
    target: Property


Statement: TypeAlias = Set | Remove
