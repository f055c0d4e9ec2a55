"""The rules of subscriptions as XML: filters, actions and typed values.

Parameters of an expression, and properties to compare with, are values with their type:

    <KeyValueOfstringanyType>
        <Key>count</Key>
        <Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">2</Value>
    </KeyValueOfstringanyType>

Rule 1: the kind of a filter or action is its declared type.
Rule 2: compatibility elements are ignored: there is one dialect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID
from xml.etree.ElementTree import Element

from twinbus.amqp.codec.types import Int
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    PropertyValue,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.http.atom.xml import (
    SCHEMA,
    SCHEMA_PREFIX,
    children,
    duration_us,
    element,
    escaped,
    flag,
    flag_text,
    is_empty,
    items,
    text_of,
    time_text,
    type_of,
    whole_number,
)
from twinbus.broker.http.request_checks import HttpError
from twinbus.common.durations import format_duration_us
from twinbus.errors import ConfigurationError

__all__ = ["RULE_KIND", "read_rule", "read_values", "rule_text", "values_text"]

PAIR: Final = "KeyValueOfstringanyType"
_MICROSECOND: Final = timedelta(microseconds=1)


def read_values(parent: Element) -> dict[str, PropertyValue]:
    """The values in a list of pairs."""
    values: dict[str, PropertyValue] = {}
    for pair in items(parent, PAIR):
        found = children(pair, ("Key", "Value"))
        if len(found) != 2:
            raise HttpError(400, f"A {PAIR} must have one Key and one Value.")
        name = text_of(found["Key"])
        if name in values:
            raise HttpError(400, f"The value {name[:60]!a} occurs more than once. Send it once.")
        values[name] = _read_value(found["Value"], name)
    return values


def values_text(values: Mapping[str, PropertyValue]) -> str:
    """The list of pairs."""
    return "".join(_pair_text(name, value) for name, value in values.items())


def _read_value(value: Element, name: str) -> PropertyValue:
    kind = type_of(value).lower() or "string"
    read = _READERS.get(kind)
    if read is None:
        raise HttpError(400, f"The value {name[:60]!a} must have one of the types {_KNOWN}.")
    text = text_of(value)
    try:
        return read(text if kind == "string" else text.strip(), f"The value {name[:60]!a}")
    except ConfigurationError:
        raise
    except (ArithmeticError, ValueError):
        raise HttpError(
            400, f"The value {name[:60]!a} is not a valid {kind}. Check its spelling."
        ) from None


def _duration(text: str, name: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    return sign * duration_us(text.removeprefix("-"), name) * _MICROSECOND


def _number(text: str, _name: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _duration_text(value: timedelta) -> str:
    total_us = value // _MICROSECOND
    return ("-" if total_us < 0 else "") + format_duration_us(abs(total_us))


_READERS: Final[dict[str, Callable[[str, str], PropertyValue]]] = {
    "string": lambda text, _name: text,
    "boolean": flag,
    "int": lambda text, name: Int(whole_number(text, name)),
    "short": lambda text, name: Int(whole_number(text, name)),
    "long": whole_number,
    "double": _number,
    "float": _number,
    "decimal": _number,
    "datetime": lambda text, _name: datetime.fromisoformat(text),
    "duration": _duration,
    "guid": lambda text, _name: UUID(text),
}
_KNOWN: Final = "string, boolean, int, long, double, dateTime, duration, guid"


def _typed(value: PropertyValue) -> tuple[str, str]:
    """The type's name and the value's text."""
    match value:
        case bool():
            return "boolean", flag_text(value)
        case str():
            return "string", escaped(value)
        case Int():
            return "int", str(int(value))
        case int():
            return "long", str(value)
        case float():
            return "double", repr(value)
        case datetime():
            return "dateTime", value.isoformat()
        case timedelta():
            return "duration", _duration_text(value)
    return "guid", str(value)


def _pair_text(name: str, value: PropertyValue) -> str:
    kind, text = _typed(value)
    return element(
        PAIR,
        f"{element('Key', escaped(name))}"
        f'<Value i:type="{SCHEMA_PREFIX}:{kind}" xmlns:{SCHEMA_PREFIX}="{SCHEMA}">{text}</Value>',
    )


RULE_KIND: Final = "RuleDescription"
_RULE_ELEMENTS: Final = ("Filter", "Action", "CreatedAt", "Name")
_SQL_ELEMENTS: Final = (
    "SqlExpression",
    "CompatibilityLevel",
    "Parameters",
    "RequiresPreprocessing",
)
_CONDITIONS: Final = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
# The version of the dialect that the service returns.
_COMPATIBILITY: Final = "<CompatibilityLevel>20</CompatibilityLevel>"


def read_rule(parent: Element, name: str | None = None) -> RuleDescription:
    """A rule; ``name`` is the one in the request's path."""
    found = children(parent, _RULE_ELEMENTS)
    given = text_of(found["Name"]).strip() if "Name" in found else ""
    if name is not None and given and given.lower() != name.lower():
        raise HttpError(400, "The Name of the rule must equal the name in the path.")
    if "Filter" not in found:
        raise HttpError(400, "A rule must have a Filter. Use a TrueFilter for every message.")
    action = found.get("Action")
    return RuleDescription(
        name or given,
        _read_filter(found["Filter"]),
        None if action is None else _read_action(action),
    )


def rule_text(rule: RuleDescription) -> str:
    """The content of a rule's element."""
    action = rule.action
    if action is None:
        written = '<Action i:type="EmptyRuleAction"/>'
    else:
        written = f'<Action i:type="SqlRuleAction">{_sql_text(action)}</Action>'
    return (
        f"{_filter_text(rule.filter)}{written}"
        f"<CreatedAt>{time_text(rule.created_at_ms)}</CreatedAt>"
        f"{element('Name', escaped(rule.name))}"
    )


def _read_filter(parent: Element) -> Filter:
    match type_of(parent):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(**_read_sql(parent))
        case "CorrelationFilter":
            return _read_correlation(parent)
    raise HttpError(
        400, "A Filter must have the type TrueFilter, FalseFilter, SqlFilter or CorrelationFilter."
    )


def _read_action(parent: Element) -> SqlAction | None:
    kind = type_of(parent)
    if kind == "EmptyRuleAction" or (not kind and is_empty(parent)):
        return None
    if kind != "SqlRuleAction":
        raise HttpError(400, "An Action must have the type SqlRuleAction or EmptyRuleAction.")
    return SqlAction(**_read_sql(parent))


def _read_sql(parent: Element) -> dict[str, Any]:
    found = children(parent, _SQL_ELEMENTS)
    if "SqlExpression" not in found:
        raise HttpError(400, "An SQL filter or action must have a SqlExpression.")
    parameters = found.get("Parameters")
    return {
        "expression": text_of(found["SqlExpression"]),
        "parameters": {} if parameters is None else read_values(parameters),
    }


def _read_correlation(parent: Element) -> CorrelationFilter:
    found = children(parent, (*_CONDITIONS, "Properties"))
    conditions = {
        _CONDITIONS[name]: text_of(each)
        for name, each in found.items()
        if name != "Properties" and not is_empty(each)
    }
    properties = found.get("Properties")
    return CorrelationFilter(
        **conditions,
        properties={} if properties is None else read_values(properties),
    )


def _filter_text(described: Filter) -> str:
    match described:
        case TrueFilter():
            kind, inside = "TrueFilter", f"<SqlExpression>1=1</SqlExpression>{_COMPATIBILITY}"
        case FalseFilter():
            kind, inside = "FalseFilter", f"<SqlExpression>1=0</SqlExpression>{_COMPATIBILITY}"
        case SqlFilter():
            kind, inside = "SqlFilter", _sql_text(described)
        case CorrelationFilter():
            kind, inside = "CorrelationFilter", _correlation_text(described)
    return f'<Filter i:type="{kind}">{inside}</Filter>'


def _sql_text(described: SqlFilter | SqlAction) -> str:
    parameters = values_text(described.parameters) or None
    return (
        f"{element('SqlExpression', escaped(described.expression))}{_COMPATIBILITY}"
        f"{element('Parameters', parameters)}"
    )


def _correlation_text(described: CorrelationFilter) -> str:
    parts = []
    for name, field in _CONDITIONS.items():
        value: str | None = getattr(described, field)
        parts.append(element(name, None if value is None else escaped(value)))
    parts.append(element("Properties", values_text(described.properties) or None))
    return "".join(parts)
