"""The rules of subscriptions: which messages of a topic they let in, and what they change.

rule_description.py   filters, actions and rules as data, checked when built; rule_values.py the
                      values they bring along
compiled_rule.py      a rule as closures: does it match, what does it change
rule_book.py          all rules of a topic: who gets a message; guard.py how it is found quickly
message_view.py       a message as rules see it, decoded once
rewriting.py          a message with the changes of an action
correlation.py        correlation filters
sql_filter.py         SQL filters; actions.py SQL actions
  lexer, parser       text to words to trees (syntax.py)
  expressions         trees to closures, with like.py for patterns and values.py for all that two
                      values have to do with each other
system_properties.py  what may follow sys., and what an action may change
limits.py             what a rule may cost
"""

from __future__ import annotations

from twinbus.broker.entities.filters.compiled_rule import CompiledRule, compile_rule
from twinbus.broker.entities.filters.message_view import MessageView
from twinbus.broker.entities.filters.rewriting import Changes, apply_changes
from twinbus.broker.entities.filters.rule_book import Match, RuleIndex
from twinbus.broker.entities.filters.rule_description import (
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
from twinbus.broker.entities.filters.rule_values import PropertyValue
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
