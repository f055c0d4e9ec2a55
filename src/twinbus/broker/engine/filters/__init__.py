"""The rules of subscriptions: which messages of a topic match, and what actions change.

rule_description      filters, actions and rules as data, checked when built
rule_values           the values in rules, and the limits of a rule
compiled_rule         a rule as closures: whether it matches, what it changes
rule_index            all rules of a topic: which subscriptions get a message
message_view          a message as rules see it, decoded once
filter_compiler       SQL filters and correlation filters
action_compiler       SQL actions, and messages with their changes
  lexer, parser       text to tokens to trees (syntax_tree)
  expressions         trees to closures, with like for patterns and values for comparisons and
                      calculations
system_properties     the system properties (sys.), and which of them an action may change
"""

from __future__ import annotations

from twinbus.broker.engine.filters.action_compiler import Changes, apply_changes
from twinbus.broker.engine.filters.compiled_rule import CompiledRule, compile_rule
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_description import (
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    default_rule,
    filter_from_dict,
)
from twinbus.broker.engine.filters.rule_index import Match, RuleIndex
from twinbus.broker.engine.filters.rule_values import PropertyValue
from twinbus.errors import FilterError

__all__ = [
    "DEFAULT_RULE_NAME",
    "Changes",
    "CompiledRule",
    "CorrelationFilter",
    "FalseFilter",
    "Filter",
    "FilterError",
    "Match",
    "MessageView",
    "PropertyValue",
    "RuleDescription",
    "RuleIndex",
    "SqlAction",
    "SqlFilter",
    "TrueFilter",
    "apply_changes",
    "compile_rule",
    "default_rule",
    "filter_from_dict",
]
