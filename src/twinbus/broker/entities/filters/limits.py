"""What a rule may cost, in characters, levels and effort.

Whoever may manage a subscription writes programs that run for every message of everybody else.
These numbers keep such a program small and its run short, whatever the message is.
"""

from __future__ import annotations

from typing import Final

RULE_NAME_CHARACTERS_MAX: Final = 50
"""Azure Service Bus's limit."""

EXPRESSION_CHARACTERS_MAX: Final = 1_024
"""Azure Service Bus's limit. It also bounds an IN list: 500 items at most fit into it."""

NESTING_MAX: Final = 64
"""Levels of an expression. Parser and closures call themselves once or twice per level, far from
Python's own limit of 1,000."""

IDENTIFIER_CHARACTERS_MAX: Final = 128
"""Nobody reads a longer property name; a name from a hostile client may be any length."""

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
"""Characters that one rule may look at one by one, for one message: at most 2.5 ms, because a rule
is asked in one piece. It is one search of the longest property there can be, or eight of them for
a word."""

MESSAGE_EFFORT_MAX: Final = 262_144
"""The same for all rules of a topic together: 25 to 40 ms, in steps (STEP_WEIGHT). 2,000 rules can
still search 1,000 characters each for a word. Rules without LIKE are not affected."""

STEP_WEIGHT: Final = 4_096
"""After so much work on one message others have their turn: characters of the rules that were
asked, each about a tenth of a microsecond at worst, and the effort of those that search."""

LARGE_PROPERTIES_BYTES: Final = 2_048
"""Properties that are read in a step of their own; a thousand of them take 2 ms."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
