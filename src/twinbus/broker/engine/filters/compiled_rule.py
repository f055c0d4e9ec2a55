"""A rule that is ready to be evaluated for messages.

Rule 1: everything that does not depend on the message is done in advance: an expression is parsed
        and turned into closures once, and its constants are converted once.
Rule 2: a rule returns True for a match, False for none, and None for unknown, which is not
        a match. FilterError concerns this message and this subscription only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from twinbus.broker.engine.filters.action_compiler import Changes, compile_action
from twinbus.broker.engine.filters.filter_compiler import (
    Prefilter,
    compile_correlation,
    compile_sql,
    may_spend,
)
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
)

Predicate: TypeAlias = Callable[[MessageView], bool | None]
Action: TypeAlias = Callable[[MessageView], Changes]

# The weight of a rule without an expression: a few lookups and comparisons.
RULE_WEIGHT: Final = 16


class CompiledRule:
    """The result of compile_rule()."""

    __slots__ = ("_action", "description", "guards", "matches", "may_spend", "weight")

    matches: Predicate
    """True: this message; False or None: not this message. May raise FilterError."""

    def __init__(
        self,
        description: RuleDescription,
        matches: Predicate,
        guards: Sequence[Prefilter] = (),
        action: Action | None = None,
    ) -> None:
        self.description = description
        self.matches = matches
        self.guards = tuple(guards)
        """Each of them excludes only messages that do not match; any one can be used."""
        self._action = action
        sql = description.filter if isinstance(description.filter, SqlFilter) else None
        self.weight = RULE_WEIGHT + (len(sql.expression) if sql else 0)
        """The maximum cost of evaluating it, without the effort that it spends (rule_values.py)."""
        self.may_spend = sql is not None and may_spend(sql.tree)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def has_action(self) -> bool:
        return self._action is not None

    def apply(self, message: MessageView) -> Changes | None:
        """What the rule's action changes on its copy of ``message``; None without an action.

        May raise FilterError, like ``matches``.
        """
        return None if self._action is None else self._action(message)


def compile_rule(rule: RuleDescription) -> CompiledRule:
    """The rule as closures."""
    matches, guards = _compile_filter(rule)
    return CompiledRule(rule, matches, guards, _compile_action(rule))


def _compile_filter(rule: RuleDescription) -> tuple[Predicate, Sequence[Prefilter]]:
    described = rule.filter
    if isinstance(described, CorrelationFilter):
        return compile_correlation(described)
    if isinstance(described, SqlFilter):
        return compile_sql(described)
    return (_never if isinstance(described, FalseFilter) else _always), ()


def _compile_action(rule: RuleDescription) -> Action | None:
    return None if rule.action is None else compile_action(rule.action)


def _always(message: MessageView) -> bool:
    return True


def _never(message: MessageView) -> bool:
    return False
