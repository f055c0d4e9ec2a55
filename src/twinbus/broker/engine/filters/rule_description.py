"""The descriptions of filters, actions and rules.

Rule 1: a description that exists is valid. An expression has been parsed, its parameters exist,
        and every error is one sentence about what is wrong and where.
Rule 2: descriptions are data. compiled_rule.py applies them to messages.
Rule 3: ``from_dict(x.to_dict()) == x``; an unknown kind or key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from twinbus.broker.engine.filters.parser import parse_action, parse_filter
from twinbus.broker.engine.filters.rule_values import (
    RULE_NAME_CHARACTERS_MAX,
    PropertyValue,
    check_text,
    check_values,
    values_from_dict,
    values_to_dict,
)
from twinbus.broker.engine.filters.syntax_tree import Node, Statement
from twinbus.errors import ConfigurationError

DEFAULT_RULE_NAME: Final = "$Default"
"""The rule of a new subscription: a true filter, unless its creator sets another one."""

# A rule's name is a part of its address, as an entity's is.
_NOT_IN_NAMES: Final = frozenset("/\\@?#*")


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Every message."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "true"}


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Messages whose properties equal all of these values; None is not compared.

    Names of properties are not case-sensitive, values are. Without any condition every message
    matches.
    """

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)
    """Application properties, compared by value and type: the number 2 is not the text "2"."""

    def __post_init__(self) -> None:
        for name in SYSTEM_CONDITIONS:
            value = getattr(self, name)
            if value is not None:
                check_text(value, f"Property {name} of a correlation filter")
        checked = check_values(self.properties, "the properties of a correlation filter")
        object.__setattr__(self, "properties", checked)

    def to_dict(self) -> dict[str, Any]:
        conditions = {name: getattr(self, name) for name in SYSTEM_CONDITIONS}
        given = {name: value for name, value in conditions.items() if value is not None}
        return {"kind": "correlation", **given, "properties": values_to_dict(self.properties)}


SYSTEM_CONDITIONS: Final = tuple(
    item.name for item in fields(CorrelationFilter) if item.name != "properties"
)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages for which the expression is true."""

    expression: str
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict)
    """Values for the names that begin with @ in the expression."""
    tree: Node = field(init=False, repr=False, compare=False)
    """The parsed expression, with the values of the parameters."""

    def __post_init__(self) -> None:
        _settle_parameters(self)
        object.__setattr__(self, "tree", parse_filter(self.expression, self.parameters))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "sql", **_expression_to_dict(self)}


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Changes to the copy of a message that matches the rule."""

    expression: str
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict)
    statements: tuple[Statement, ...] = field(init=False, repr=False, compare=False)
    """The parsed expression."""

    def __post_init__(self) -> None:
        _settle_parameters(self)
        statements = parse_action(self.expression, self.parameters)
        object.__setattr__(self, "statements", tuple(statements))

    def to_dict(self) -> dict[str, Any]:
        return _expression_to_dict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SqlAction:
        """Read what ``to_dict`` wrote."""
        return cls(*_expression_from_dict(values, "an action"))


Filter: TypeAlias = TrueFilter | FalseFilter | CorrelationFilter | SqlFilter


def filter_from_dict(values: object) -> Filter:
    """Read what a filter's ``to_dict`` wrote; ConfigurationError for anything else."""
    if not isinstance(values, Mapping):
        raise ConfigurationError("A filter must be a JSON object")
    rest = dict(values)
    kind = rest.pop("kind", None)
    if kind == "sql":
        return SqlFilter(*_expression_from_dict(rest, "a filter"))
    if kind == "correlation":
        return _correlation_from_dict(rest)
    if kind in ("true", "false"):
        _refuse_unknown(rest, frozenset(), "a filter")
        return TrueFilter() if kind == "true" else FalseFilter()
    raise ConfigurationError(
        f"Unknown kind of filter: {kind!a:.60}", hint="Use true, false, correlation or sql"
    )


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """One rule of a subscription: which messages match, and what it changes on them."""

    name: str
    filter: Filter = TrueFilter()
    action: SqlAction | None = None
    created_at_ms: int = 0
    """Wall time, in milliseconds since 1970."""

    def __post_init__(self) -> None:
        _check_rule_name(self.name)
        if not isinstance(self.filter, TrueFilter | FalseFilter | CorrelationFilter | SqlFilter):
            raise ConfigurationError(
                f"The filter of rule {self.name!a} must be a TrueFilter, FalseFilter, "
                "CorrelationFilter or SqlFilter"
            )
        if self.action is not None and not isinstance(self.action, SqlAction):
            raise ConfigurationError(f"The action of rule {self.name!a} must be a SqlAction")
        if not isinstance(self.created_at_ms, int) or isinstance(self.created_at_ms, bool):
            raise ConfigurationError("Property created_at_ms of a rule must be an integer")

    @property
    def key(self) -> str:
        """The name for comparisons: names of rules are not case-sensitive."""
        return self.name.lower()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "filter": self.filter.to_dict(),
            "action": None if self.action is None else self.action.to_dict(),
            "created_at_ms": self.created_at_ms,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RuleDescription:
        """Read what ``to_dict`` wrote; ConfigurationError for anything else."""
        if not isinstance(values, Mapping):
            raise ConfigurationError("A rule must be a JSON object")
        _refuse_unknown(values, frozenset(item.name for item in fields(cls)), "a rule")
        if "name" not in values:
            raise ConfigurationError("A rule must have a name")
        action = values.get("action")
        return cls(
            values["name"],
            filter_from_dict(values.get("filter", {"kind": "true"})),
            None if action is None else SqlAction.from_dict(action),
            values.get("created_at_ms", 0),
        )


def default_rule(created_at_ms: int = 0) -> RuleDescription:
    """The rule of a subscription that was created without rules."""
    return RuleDescription(DEFAULT_RULE_NAME, created_at_ms=created_at_ms)


def _check_rule_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= RULE_NAME_CHARACTERS_MAX:
        raise ConfigurationError(
            f"The name of a rule must be text of 1 to {RULE_NAME_CHARACTERS_MAX} characters"
        )
    if name != name.strip() or not name.isprintable() or _NOT_IN_NAMES & set(name):
        raise ConfigurationError(
            f"Rule name {name!a:.60} contains an invalid character",
            hint="Use letters, digits, '.', '-', '_' and '$'",
        )


def _settle_parameters(described: SqlFilter | SqlAction) -> None:
    parameters = check_values(described.parameters, "the parameters of an expression")
    object.__setattr__(described, "parameters", parameters)


def _expression_to_dict(described: SqlFilter | SqlAction) -> dict[str, Any]:
    return {
        "expression": described.expression,
        "parameters": values_to_dict(described.parameters),
    }


def _expression_from_dict(values: object, what: str) -> tuple[str, dict[str, PropertyValue]]:
    if not isinstance(values, Mapping) or "expression" not in values:
        raise ConfigurationError(f"{what} must have an expression")
    _refuse_unknown(values, frozenset({"expression", "parameters"}), what)
    parameters = values_from_dict(values.get("parameters", {}), "the parameters of an expression")
    return values["expression"], parameters


def _correlation_from_dict(values: dict[str, Any]) -> CorrelationFilter:
    _refuse_unknown(values, frozenset({*SYSTEM_CONDITIONS, "properties"}), "a correlation filter")
    stored = values.pop("properties", {})
    properties = values_from_dict(stored, "the properties of a correlation filter")
    return CorrelationFilter(**values, properties=properties)


def _refuse_unknown(values: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    for key in values:
        if key not in known:
            hint = f"Use one of: {', '.join(sorted(known))}" if known else "Remove the property"
            raise ConfigurationError(f"Unknown property of {what}: {key!a:.60}", hint=hint)
