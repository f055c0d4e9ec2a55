"""The values in rules, and the limits of a rule.

A client with the right to manage a subscription writes expressions that run for every message of
all senders. The limits, in characters, levels and effort, keep an expression small and its run
short, whatever the message is.

Values are the parameters of an expression and the properties of a correlation filter:

    {"type": "int", "value": 5}     types: string boolean int long double datetime duration uuid

Rule 1: a value has one of the types in PropertyValue, is finite and short, and can be written
        as JSON and read back as the same type.
Rule 2: an integer keeps whether it was a 32-bit ``Int``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from twinbus.amqp.codec.types import Int
from twinbus.errors import ConfigurationError

RULE_NAME_CHARACTERS_MAX: Final = 50
"""Azure Service Bus's limit."""

EXPRESSION_CHARACTERS_MAX: Final = 1_024
"""Azure Service Bus's limit. It also bounds an IN list: 500 items at most fit into it."""

NESTING_MAX: Final = 64
"""Levels of an expression. Parser and closures call themselves once or twice per level, far from
Python's own limit of 1,000."""

IDENTIFIER_CHARACTERS_MAX: Final = 128
"""A name from a hostile client could have any length."""

VALUE_CHARACTERS_MAX: Final = 1_024
"""A text that a rule compares with, when it is not part of an expression."""

VALUE_COUNT_MAX: Final = 64
"""Parameters of an expression, or properties of a correlation filter."""

TEXT_CHARACTERS_MAX: Final = 32_768
"""The longest text an expression may build: as long as a property of a message may be."""

SQL_RULES_PER_TOPIC_MAX: Final = 2_000
CORRELATION_RULES_PER_TOPIC_MAX: Final = 100_000
"""Azure Service Bus's limits."""

RULE_EFFORT_MAX: Final = 32_768
"""Characters that one rule may read one by one, for one message: at most 2.5 ms, because a rule is
evaluated in one step. This is one search of the longest possible property, or eight of them for
a word."""

MESSAGE_EFFORT_MAX: Final = 262_144
"""The same for all rules of a topic together: 25 to 40 ms, in steps (STEP_WEIGHT). 2,000 rules can
still search 1,000 characters each for a word. Rules without LIKE are not affected."""

STEP_WEIGHT: Final = 4_096
"""After this much work on one message, others have their turn: characters of the evaluated rules,
each at most about a tenth of a microsecond, and the effort of those that search."""

LARGE_PROPERTIES_BYTES: Final = 2_048
"""Larger properties are decoded in a step of their own; a thousand of them take 2 ms."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


PropertyValue: TypeAlias = str | bool | int | float | datetime | timedelta | UUID

_INT32_MAX: Final = 2**31 - 1
_MICROSECOND: Final = timedelta(microseconds=1)


def check_values(values: object, what: str) -> dict[str, PropertyValue]:
    """A copy of ``values`` with every name and value checked."""
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{what} must be a mapping of names to values")
    if len(values) > VALUE_COUNT_MAX:
        raise ConfigurationError(
            f"{what} have {len(values)} entries, the maximum is {VALUE_COUNT_MAX}",
            hint=f"Use at most {VALUE_COUNT_MAX}",
        )
    checked: dict[str, PropertyValue] = {}
    folded = set()
    for name, value in values.items():
        check_name(name, what)
        if name.lower() in folded:
            raise ConfigurationError(
                f"Duplicate name {name!a:.60} in {what}",
                hint="Use names that differ in more than upper and lower case",
            )
        folded.add(name.lower())
        checked[name] = _checked(value, f"{name!a:.60} in {what}")
    return checked


def check_name(name: object, what: str) -> None:
    """Refuse what cannot be the name of a property or parameter."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"A name in {what} must be text")
    if len(name) > IDENTIFIER_CHARACTERS_MAX:
        raise ConfigurationError(
            f"A name in {what} has {len(name)} characters, the maximum is "
            f"{IDENTIFIER_CHARACTERS_MAX}",
            hint=f"Use at most {IDENTIFIER_CHARACTERS_MAX}",
        )
    check_text(name, f"A name in {what}")


def check_text(text: object, what: str, length_max: int = VALUE_CHARACTERS_MAX) -> None:
    """Refuse what is not text, is too long, or cannot be encoded as UTF-8."""
    if not isinstance(text, str):
        raise ConfigurationError(f"{what} must be text, got {text!r:.60}")
    if len(text) > length_max:
        raise ConfigurationError(
            f"{what} has {len(text)} characters, the maximum is {length_max}",
            hint=f"Use at most {length_max}",
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{what} contains an incomplete Unicode character",
            hint="Use complete Unicode characters",
        ) from None


def _checked(value: Any, what: str) -> PropertyValue:
    if isinstance(value, bool | datetime | timedelta | UUID):
        return value
    if isinstance(value, int):
        return _checked_int(value, what)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigurationError(f"{what} must be a finite number")
        return float(value)
    if isinstance(value, str):
        check_text(value, what)
        return str(value)
    raise ConfigurationError(
        f"{what} has the unsupported type {type(value).__name__}",
        hint="Use text, a number, true or false, a date, a duration or a UUID",
    )


def _checked_int(value: int, what: str) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ConfigurationError(f"{what} must be an integer of at most 64 bits")
    return Int(value) if type(value) is Int and abs(value) <= _INT32_MAX else int(value)


# --- JSON ----------------------------------------------------------------------------------------


def values_to_dict(values: Mapping[str, PropertyValue]) -> dict[str, Any]:
    """The stored form of checked values."""
    return {name: _to_dict(value) for name, value in values.items()}


def values_from_dict(stored: object, what: str) -> dict[str, PropertyValue]:
    """Read what ``values_to_dict`` wrote; ConfigurationError for anything else."""
    if not isinstance(stored, Mapping):
        raise ConfigurationError(f"{what} must be a mapping of names to values")
    values = {name: _from_dict(value, name, what) for name, value in stored.items()}
    return check_values(values, what)


def _to_dict(value: PropertyValue) -> dict[str, Any]:
    kind = _KIND_NAMES[type(value)]
    if isinstance(value, datetime):
        return {"type": kind, "value": value.isoformat()}
    if isinstance(value, timedelta):
        return {"type": kind, "value": value // _MICROSECOND}
    if isinstance(value, UUID):
        return {"type": kind, "value": str(value)}
    return {"type": kind, "value": int(value) if type(value) is Int else value}


def _from_dict(stored: Any, name: object, what: str) -> PropertyValue:
    try:
        kind, value = stored["type"], stored["value"]
        accepted, read = _READERS[kind]
        if type(value) in accepted:
            return read(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    raise ConfigurationError(
        f"{name!a:.60} in {what} must have a type and a value",
        hint=f"Use an object with a type ({', '.join(_READERS)}) and a value",
    )


_KIND_NAMES: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    Int: "int",
    int: "long",
    float: "double",
    datetime: "datetime",
    timedelta: "duration",
    UUID: "uuid",
}
_READERS: Final[dict[str, tuple[tuple[type, ...], Callable[[Any], PropertyValue]]]] = {
    "string": ((str,), str),
    "boolean": ((bool,), bool),
    "int": ((int,), Int),
    "long": ((int,), int),
    "double": ((float, int), float),
    "datetime": ((str,), datetime.fromisoformat),
    "duration": ((int,), lambda value: value * _MICROSECOND),
    "uuid": ((str,), UUID),
}
