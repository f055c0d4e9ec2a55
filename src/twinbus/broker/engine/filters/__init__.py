"""The rules of subscriptions: which messages of a topic they let in, and what they change.

rule_description      filters, actions and rules as data, checked when built
rule_values           the values they bring along, and what a rule may cost
compiled_rule         a rule as closures: does it match, what does it change
rule_index            all rules of a topic: who gets a message
message_view          a message as rules see it, decoded once
filter_compiler       SQL filters and correlation filters
action_compiler       SQL actions, and messages with their changes
  lexer, parser       text to tokens to trees (syntax_tree)
  expressions         trees to closures, with like for patterns and values for all that two
                      values have to do with each other
system_properties     what may follow sys., and what an action may change
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
