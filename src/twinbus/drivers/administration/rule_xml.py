"""The rules of a subscription as a client sees them, as XML and back.

    RuleProperties(name="urgent", filter=SqlRuleFilter("priority > 3"), action="SET seen = 1")

Rule 1: texts, numbers and booleans are written; a property of any other type is read as its text.
Rule 2: a filter of an unknown kind is returned by its name and never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from twinbus.drivers.administration.entity_xml import SERVICE_BUS, TEXT, ParsedEntry

__all__ = [
    "RULE",
    "CorrelationRuleFilter",
    "Filter",
    "NamedRuleFilter",
    "RuleProperties",
    "SqlRuleFilter",
    "parse_rule",
    "rule_xml",
]

RULE: Final = "RuleDescription"
_CONNECT: Final = f"{{{SERVICE_BUS}}}"
_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_TYPE: Final = f"{{{_INSTANCE}}}type"
_PAIR: Final = "KeyValueOfstringanyType"
# In the order that the service requires.
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
_INT_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class SqlRuleFilter:
    """An expression that must be true of a message."""

    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationRuleFilter:
    """Values that a message must have; None is not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, str | bool | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedRuleFilter:
    """Every message (TrueFilter), none (FalseFilter), or an unknown kind."""

    kind: str = "TrueFilter"


Filter = SqlRuleFilter | CorrelationRuleFilter | NamedRuleFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleProperties:
    """Which messages a subscription gets, and how it changes them."""

    name: str
    filter: Filter = NamedRuleFilter()
    action: str | None = None
    """An expression that changes the subscription's copy."""


# -- out ------------------------------------------------------------------------------------


def rule_xml(rule: RuleProperties) -> bytes:
    """The body of a request that creates the rule."""
    kind = '<Action i:type="EmptyRuleAction"/>'
    if rule.action is not None:
        kind = f'<Action i:type="SqlRuleAction">{_sql(rule.action)}</Action>'
    return (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
        f'<content type="application/xml"><{RULE} xmlns="{SERVICE_BUS}" xmlns:i="{_INSTANCE}">'
        f"{_filter_xml(rule.filter)}{kind}{_element('Name', rule.name)}</{RULE}></content></entry>"
    ).encode()


def _filter_xml(wanted: Filter) -> str:
    match wanted:
        case SqlRuleFilter(expression):
            kind, inside = "SqlFilter", _sql(expression)
        case NamedRuleFilter(kind):
            inside = _sql("1=0" if kind == "FalseFilter" else "1=1")
        case CorrelationRuleFilter():
            kind, inside = "CorrelationFilter", _correlation(wanted)
    return f'<Filter i:type="{kind}">{inside}</Filter>'


def _sql(expression: str) -> str:
    return f"{_element('SqlExpression', expression)}<CompatibilityLevel>20</CompatibilityLevel>"


def _correlation(wanted: CorrelationRuleFilter) -> str:
    conditions = [(name, getattr(wanted, field)) for name, field in _CONDITIONS.items()]
    parts = [_element(name, value) for name, value in conditions if value is not None]
    pairs = [_pair(name, value) for name, value in wanted.properties.items()]
    if pairs:
        parts.append(f"<Properties>{''.join(pairs)}</Properties>")
    return "".join(parts)


def _pair(name: str, value: str | bool | int | float) -> str:
    match value:
        case bool():
            kind, text = "boolean", "true" if value else "false"
        case int():
            kind, text = "int" if -_INT_MAX <= value < _INT_MAX else "long", str(value)
        case float():
            kind, text = "double", repr(value)
        case str():
            kind, text = "string", TEXT.write(value) or ""
    typed = f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{_SCHEMA}">{text}</Value>'
    return f"<{_PAIR}>{_element('Key', name)}{typed}</{_PAIR}>"


def _element(name: str, text: str) -> str:
    return f"<{name}>{TEXT.write(text) or escape(text)}</{name}>"


# -- in -------------------------------------------------------------------------------------


def parse_rule(entry: ParsedEntry) -> RuleProperties:
    """The rule of an entry."""
    found = entry.described.find(_CONNECT + "Filter")
    action = entry.described.find(_CONNECT + "Action")
    expression = None if action is None else action.findtext(_CONNECT + "SqlExpression")
    return RuleProperties(
        name=entry.described.findtext(_CONNECT + "Name") or entry.title,
        filter=NamedRuleFilter() if found is None else _filter_in(found),
        action=expression or None,
    )


def _filter_in(found: Element) -> Filter:
    match kind := _type_of(found):
        case "SqlFilter":
            return SqlRuleFilter(found.findtext(_CONNECT + "SqlExpression") or "")
        case "CorrelationFilter":
            texts = {field: found.findtext(_CONNECT + name) for name, field in _CONDITIONS.items()}
            conditions = {field: text for field, text in texts.items() if text is not None}
            return CorrelationRuleFilter(**conditions, properties=_pairs_in(found))
    return NamedRuleFilter(kind)


def _pairs_in(found: Element) -> dict[str, Any]:
    values = {}
    for pair in found.iterfind(f"{_CONNECT}Properties/{_CONNECT}{_PAIR}"):
        value = pair.find(_CONNECT + "Value")
        if value is not None:
            values[pair.findtext(_CONNECT + "Key") or ""] = _value_in(value)
    return values


def _value_in(value: Element) -> str | bool | int | float:
    text = value.text or ""
    try:
        match _type_of(value):
            case "boolean":
                return text.strip() in ("true", "1")
            case "int" | "long" | "short":
                return int(text)
            case "double" | "float":
                return float(text)
    except ValueError:
        pass
    return text


def _type_of(element: Element) -> str:
    return element.get(_TYPE, "").rpartition(":")[2].strip()
