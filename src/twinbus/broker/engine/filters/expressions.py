"""Expression trees as closures.

Rule 1: a closure takes a MessageView and returns a plain value, or for a condition True, False or
        None (unknown). Names are resolved when the rule is created, if possible.
Rule 2: three-valued logic: AND is false as soon as one side is, OR true as soon as one side is, NOT
        of unknown is unknown. Sides are evaluated from left to right, until the result is known.
Rule 3: the most frequent condition, a property compared with a constant, is one closure without
        calls, and so are several of them joined by AND at the top of a filter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from twinbus.broker.engine.filters.like import FIND_SHARE, LikePattern, compile_pattern
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_values import EXPRESSION_CHARACTERS_MAX
from twinbus.broker.engine.filters.syntax_tree import (
    PREDICATES,
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Negative,
    NewId,
    Node,
    Not,
    Or,
    Property,
    PropertyNamed,
)
from twinbus.broker.engine.filters.values import (
    add,
    differ,
    divide,
    equal,
    multiply,
    negate,
    ordering,
    remainder,
    subtract,
)

Evaluate: TypeAlias = Callable[[MessageView], Any]
Compare: TypeAlias = Callable[[Any, Any], bool | None]

_COMPARISONS: Final[dict[str, Compare]] = {
    "=": equal,
    "<>": differ,
    "!=": differ,
    "<": ordering(operator.lt),
    "<=": ordering(operator.le),
    ">": ordering(operator.gt),
    ">=": ordering(operator.ge),
}
# The same between two values of one of the usual kinds, all of which have an order.
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_USUAL_KINDS: Final = (int, float, str)
_CALCULATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}


def compile_node(node: Node) -> Evaluate:
    """The closure of a tree."""
    return _COMPILERS[type(node)](node)


def compile_condition(node: Node) -> Evaluate:
    """The closure of a condition. A value that is neither true nor false is unknown."""
    evaluate = compile_node(node)
    if isinstance(node, PREDICATES):
        return evaluate

    def truth(message: MessageView) -> bool | None:
        value = evaluate(message)
        return value if type(value) is bool else None

    return truth


# --- values --------------------------------------------------------------------------------------


def _constant(node: Constant) -> Evaluate:
    value = node.value
    return lambda message: value


def _property(node: Property) -> Evaluate:
    name = node.folded
    if node.is_system:
        return lambda message: message.system[name]
    return lambda message: message.user.get(name)


def _new_id(node: NewId) -> Evaluate:
    return lambda message: message.new_id()


def _property_named(node: PropertyNamed) -> Evaluate:
    name_of = compile_node(node.name)

    def read(message: MessageView) -> Any:
        name = name_of(message)
        if type(name) is not str:
            return None
        message.spend(len(name) // FIND_SHARE)
        return message.user.get(name.lower())

    return read


def _arithmetic(node: Arithmetic) -> Evaluate:
    first = compile_node(node.first)
    if len(node.rest) == 1:
        ((sign, item),) = node.rest
        return _calculated(first, _CALCULATIONS[sign], item)
    return _chained(first, [(_CALCULATIONS[sign], compile_node(item)) for sign, item in node.rest])


def _calculated(left: Evaluate, combine: Callable[[Any, Any], Any], item: Node) -> Evaluate:
    """One operation, the most frequent case."""
    if isinstance(item, Constant) and type(item.value) is not str:
        constant = item.value

        def with_constant(message: MessageView) -> Any:
            result = combine(left(message), constant)
            if type(result) is str:
                message.spend(len(result) // FIND_SHARE)
            return result

        return with_constant
    return _chained(left, [(combine, compile_node(item))])


def _chained(first: Evaluate, rest: list[tuple[Callable[[Any, Any], Any], Evaluate]]) -> Evaluate:
    def calculate(message: MessageView) -> Any:
        result = first(message)
        for combine, item in rest:
            result = combine(result, item(message))
            if type(result) is str:
                message.spend(len(result) // FIND_SHARE)
        return result

    return calculate


def _negative(node: Negative) -> Evaluate:
    item = compile_node(node.item)
    return lambda message: negate(item(message))


# --- comparisons ---------------------------------------------------------------------------------


def _comparison(node: Comparison) -> Evaluate:
    test = simple_comparison(node)
    if test is not None:
        return _usual(test)
    compare, left = _COMPARISONS[node.sign], compile_node(node.left)
    if isinstance(node.right, Constant):
        constant = node.right.value
        return lambda message: compare(left(message), constant)
    right = compile_node(node.right)
    if not is_long_comparison(node):
        return lambda message: compare(left(message), right(message))

    def compare_long(message: MessageView) -> bool | None:
        first, second = left(message), right(message)
        if type(first) is str and type(second) is str:
            message.spend(min(len(first), len(second)) // COMPARE_SHARE)
        return compare(first, second)

    return compare_long


# So many characters of two texts are compared in the time of one step of a search.
COMPARE_SHARE: Final = 64


def is_long_comparison(node: Node) -> bool:
    """Whether both sides are values of the message, where texts can be long."""
    return (
        isinstance(node, Comparison)
        and not isinstance(node.left, Constant)
        and not isinstance(node.right, Constant)
    )


class SimpleComparison(NamedTuple):
    """A comparison of an application property with a number or text."""

    name: str
    kind: type
    holds: Callable[[Any, Any], bool]
    """For a property of the same kind."""
    constant: Any
    compare: Compare
    """For a property of another kind."""


def simple_comparison(node: Node) -> SimpleComparison | None:
    """The comparison in parts, if it compares an application property with a constant."""
    if not isinstance(node, Comparison):
        return None
    item, constant = node.left, node.right
    if not isinstance(item, Property) or item.is_system or not isinstance(constant, Constant):
        return None
    value, sign = constant.value, node.sign
    if type(value) not in _USUAL_KINDS:
        return None
    return SimpleComparison(item.folded, type(value), _OPERATORS[sign], value, _COMPARISONS[sign])


def _usual(test: SimpleComparison) -> Evaluate:
    name, kind, holds, constant, compare = test

    def usual(message: MessageView) -> bool | None:
        value = message.user.get(name)
        return holds(value, constant) if type(value) is kind else compare(value, constant)

    return usual


def all_simple(tests: list[SimpleComparison]) -> Evaluate:
    """Simple comparisons, from left to right until one is not true, without a call for each."""

    # Python unpacks a plain tuple faster than a named one.
    parts = [tuple(test) for test in tests]

    def all_hold(message: MessageView) -> bool | None:
        user = message.user
        for name, kind, holds, constant, compare in parts:
            value = user.get(name)
            compares = holds if type(value) is kind else compare
            answer: bool | None = compares(value, constant)
            if answer is not True:
                return answer
        return True

    return all_hold


def _in(node: In) -> Evaluate:
    item = compile_node(node.item)
    texts = [choice.value for choice in node.choices if isinstance(choice, Constant)]
    if len(texts) == len(node.choices) and all(type(text) is str for text in texts):
        return _in_texts(item, frozenset(texts))
    choices = [compile_node(choice) for choice in node.choices]

    def is_in(message: MessageView) -> bool | None:
        value = item(message)
        if value is None:
            return None
        answer: bool | None = False
        for choice in choices:
            same = equal(value, choice(message))
            if same:
                return True
            if same is None:
                answer = None
        return answer

    return is_in


def _in_texts(item: Evaluate, texts: frozenset[str]) -> Evaluate:
    """A list of texts, the most frequent case: one lookup."""

    def is_in(message: MessageView) -> bool | None:
        value = item(message)
        return value in texts if type(value) is str else None

    return is_in


def _like(node: Like) -> Evaluate:
    item = compile_node(node.item)
    if node.shape is not None:
        return _like_fixed(item, node.shape)
    escape = None if node.escape is None else compile_node(node.escape)
    return _like_varying(item, compile_node(node.pattern), escape)


def _like_fixed(item: Evaluate, shape: LikePattern) -> Evaluate:
    matches, effort = shape.matches, shape.effort
    if shape.is_anchored:
        return _like_anchored(item, matches)

    def is_like(message: MessageView) -> bool | None:
        text = item(message)
        if type(text) is not str:
            return None
        message.spend(effort(text))
        return matches(text)

    return is_like


def _like_anchored(item: Evaluate, matches: Callable[[str], bool]) -> Evaluate:
    """A pattern that only compares the ends of a text, which needs no effort."""

    def is_like(message: MessageView) -> bool | None:
        text = item(message)
        return matches(text) if type(text) is str else None

    return is_like


def _like_varying(item: Evaluate, pattern: Evaluate, escape: Evaluate | None) -> Evaluate:
    """A pattern that is a value of the message."""

    def is_like(message: MessageView) -> bool | None:
        text, shape = item(message), pattern(message)
        sign = "" if escape is None else escape(message)
        if type(text) is not str or type(shape) is not str or type(sign) is not str:
            return None
        message.spend(PATTERN_COST * min(len(shape), EXPRESSION_CHARACTERS_MAX))
        known = compile_pattern(shape, None if escape is None else sign)
        message.spend(known.effort(text))
        return known.matches(text)

    return is_like


# Parsing a pattern takes as long as so many steps of a search, for each of its characters.
PATTERN_COST: Final = 4


def _is_null(node: IsNull) -> Evaluate:
    item = compile_node(node.item)
    return lambda message: item(message) is None


def _exists(node: Exists) -> Evaluate:
    name = node.item.folded
    if node.item.is_system:
        return lambda message: message.system[name] is not None
    return lambda message: name in message.user


# --- logic ---------------------------------------------------------------------------------------


def _not(node: Not) -> Evaluate:
    item = compile_condition(node.item)

    def negated(message: MessageView) -> bool | None:
        value = item(message)
        return None if value is None else not value

    return negated


def _and(node: And) -> Evaluate:
    items = [compile_condition(item) for item in node.items]

    def all_of(message: MessageView) -> bool | None:
        answer: bool | None = True
        for item in items:
            value = item(message)
            if value is False:
                return False
            if value is None:
                answer = None
        return answer

    return all_of


def _or(node: Or) -> Evaluate:
    items = [compile_condition(item) for item in node.items]

    def any_of(message: MessageView) -> bool | None:
        answer: bool | None = False
        for item in items:
            value = item(message)
            if value is True:
                return True
            if value is None:
                answer = None
        return answer

    return any_of


_COMPILERS: Final[dict[type, Callable[[Any], Evaluate]]] = {
    Constant: _constant,
    Property: _property,
    NewId: _new_id,
    PropertyNamed: _property_named,
    Arithmetic: _arithmetic,
    Negative: _negative,
    Comparison: _comparison,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    Exists: _exists,
    Not: _not,
    And: _and,
    Or: _or,
}
