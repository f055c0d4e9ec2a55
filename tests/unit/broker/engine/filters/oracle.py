"""SQL expressions the slow and obvious way, to compare the real ones with.

A tree is a tuple: an operator and its operands. ``written`` turns it into text with only the
parentheses that it needs, ``worked_out`` finds its value by walking it. Neither shares any code
with the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.broker.engine.filters.test_like import slow_like

LEVELS = {"or": 1, "and": 2, "not": 3, "compare": 4, "in": 4, "like": 4, "null": 4}
LEVELS |= {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "negative": 7}
ATOM = 8
INT64 = range(-(2**63), 2**63)


class NoResult(Exception):
    """The expression has no value for these properties."""


def written(tree: Any, level: int = 0) -> str:
    """The tree as text, in parentheses if it binds less tightly than ``level``."""
    operator, *parts = tree
    own = LEVELS.get(operator, ATOM)
    text = _written(operator, parts, own)
    return f"({text})" if own < level else text


def _written(operator: str, parts: list[Any], own: int) -> str:
    match operator, parts:
        case "constant", [value]:
            return _constant(value)
        case "property", [name]:
            return str(name)
        case "exists", [name]:
            return f"EXISTS({name})"
        case "negative", [item]:
            return f"-{written(item, own)}"
        case "not", [item]:
            return f"NOT {written(item, own)}"
        case "and" | "or", [left, right]:
            return f"{written(left, own)} {operator.upper()} {written(right, own + 1)}"
        case "compare", [sign, left, right]:
            return f"{written(left, 5)} {sign} {written(right, 5)}"
        case "in", [item, *choices]:
            return f"{written(item, 5)} IN ({', '.join(written(choice, 5) for choice in choices)})"
        case "like", [item, pattern]:
            return f"{written(item, 5)} LIKE {_constant(pattern)}"
        case "null", [item]:
            return f"{written(item, 5)} IS NULL"
        case _, [left, right]:
            return f"{written(left, own)} {operator} {written(right, own + 1)}"
    raise AssertionError(operator)


def _constant(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return (
        {None: "NULL", True: "TRUE", False: "FALSE"}.get(value, "")
        if (value is None or isinstance(value, bool))
        else repr(value)
    )


def worked_out(tree: Any, properties: Mapping[str, Any]) -> Any:
    """The value of the tree; None is unknown."""
    operator, *parts = tree
    match operator, parts:
        case "constant", [value]:
            return value
        case "property", [name]:
            return properties.get(name)
        case "exists", [name]:
            return name in properties
        case "and" | "or", [left, right]:
            return _joined(operator, left, right, properties)
        case "not", [item]:
            value = truth(worked_out(item, properties))
            return None if value is None else not value
        case "null", [item]:
            return worked_out(item, properties) is None
        case "like", [item, pattern]:
            text = worked_out(item, properties)
            return slow_like(text, pattern, None) if isinstance(text, str) else None
        case "in", [item, *choices]:
            return _among(worked_out(item, properties), choices, properties)
        case "compare", [sign, left, right]:
            return _compared(sign, worked_out(left, properties), worked_out(right, properties))
        case "negative", [item]:
            value = worked_out(item, properties)
            return (
                _calculated("-", 0, value)
                if type(value) is int
                else (-value if type(value) is float else None)
            )
        case _, [left, right]:
            return _calculated(
                operator, worked_out(left, properties), worked_out(right, properties)
            )
    raise AssertionError(operator)


def truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _joined(operator: str, left: Any, right: Any, properties: Mapping[str, Any]) -> bool | None:
    decisive = operator == "or"
    first = truth(worked_out(left, properties))
    if first is decisive:
        return decisive
    second = truth(worked_out(right, properties))
    if second is decisive:
        return decisive
    return None if None in (first, second) else not decisive


def _among(value: Any, choices: list[Any], properties: Mapping[str, Any]) -> bool | None:
    if value is None:
        return None
    answers = []
    for choice in choices:
        answers.append(_compared("=", value, worked_out(choice, properties)))
        if answers[-1] is True:
            return True
    return None if None in answers else False


def _compared(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if {type(left), type(right)} == {int, float}:
        left, right = float(left), float(right)
    if type(left) is not type(right):
        return None
    if sign == "=":
        return bool(left == right)
    if sign == "<>":
        return bool(left != right)
    if isinstance(left, bool):
        return None
    return bool(
        {"<": left < right, "<=": left <= right, ">": left > right}.get(sign, left >= right)
    )


def _calculated(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    if {type(left), type(right)} - {int, float}:
        return None
    if type(left) is int and type(right) is int:
        return _whole(sign, left, right)
    left, right = float(left), float(right)
    if sign in "/%" and right == 0:
        raise NotCompared
    result = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
    if result is None:
        result = left / right if sign == "/" else left - right * int(left / right)
    return result


class NotCompared(Exception):
    """Infinities and remainders of fractions have tests of their own."""


def _whole(sign: str, left: int, right: int) -> int:
    if sign in "/%":
        if right == 0:
            raise NoResult
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        result = quotient if sign == "/" else left - right * quotient
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    if result not in INT64:
        raise NoResult
    return result


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)[:-2] if repr(value).endswith(".0") else repr(value)
    return str(value)
