"""Rules of subscriptions as elements: their filters and actions.

Rule 1: the kind of a filter or action is its declared type.
Rule 2: what compatibility elements say is not looked at: there is one dialect.
"""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.typed_values import read_values, values_text
from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.xml_reading import children, is_empty, text_of, type_of
from twinbus.broker.administration.xml_writing import element, escaped
from twinbus.broker.entities.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)

__all__ = ["RULE_KIND", "read_rule", "rule_text"]

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
# The version of the dialect that the service tells.
_COMPATIBILITY: Final = "<CompatibilityLevel>20</CompatibilityLevel>"


def read_rule(parent: Element, name: str | None = None) -> RuleDescription:
    """A rule; ``name`` is the one that the request's path gives it."""
    found = children(parent, _RULE_ELEMENTS)
    said = text_of(found["Name"]).strip() if "Name" in found else ""
    if name is not None and said and said.lower() != name.lower():
        raise HttpError(400, "The rule's Name must be the one in the path of the request.")
    if "Filter" not in found:
        raise HttpError(400, "A rule must have a Filter. Use a TrueFilter for every message.")
    action = found.get("Action")
    return RuleDescription(
        name or said,
        _read_filter(found["Filter"]),
        None if action is None else _read_action(action),
    )


def rule_text(rule: RuleDescription) -> str:
    """The inside of a rule's element."""
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
