"""All rules of one topic: which subscriptions get a message, and because of which rules.

Rule 1: only rules whose guard the message passes are asked. A thousand rules that each wait for
        another value of one property cost one lookup.
Rule 2: a rule that fails spoils the message for its own subscription and for nobody else.
Rule 3: subscriptions come in the order in which they got their first rule, rules in the order in
        which they were added.

    message --guards--> candidates --ask each--> Match(subscription, rules, error)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from twinbus.broker.entities.filters.compiled_rule import CompiledRule
from twinbus.broker.entities.filters.guard import Guard
from twinbus.broker.entities.filters.limits import (
    CORRELATION_RULES_PER_TOPIC_MAX,
    SQL_RULES_PER_TOPIC_MAX,
)
from twinbus.broker.entities.filters.message_view import MessageView
from twinbus.broker.entities.filters.rewriting import Changes, rewritten
from twinbus.broker.entities.filters.rule_description import (
    CorrelationFilter,
    FalseFilter,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.entities.record import Record
from twinbus.errors import ConfigurationError, FilterError

K = TypeVar("K", bound=Hashable)

RULE_NAME_PROPERTY: Final = "RuleName"
"""A copy that an action has changed says in this property which rule made it."""


@dataclass(slots=True)
class Match(Generic[K]):
    """A subscription that a message concerns."""

    subscription: K
    rules: list[CompiledRule] = field(default_factory=list)
    """Those that let the message in."""
    error: FilterError | None = None
    """Why a rule could not be worked out; the first, if there are several."""

    def copies(self, view: MessageView) -> list[Changes | None]:
        """What the subscription gets, None being the message as it is.

        All rules without an action share one copy; each rule with an action makes its own, which
        carries the rule's name. An action that fails makes no copy, and becomes ``error``.
        """
        copies: list[Changes | None] = []
        for rule in self.rules:
            if not rule.has_action:
                if None not in copies:
                    copies.append(None)
                continue
            try:
                copies.append(_named(rule, view))
            except FilterError as error:
                self.error = self.error or error
        return copies

    def records(self, view: MessageView) -> list[Record | None]:
        """The same copies as they are to be stored, None being the message's own record."""
        records: list[Record | None] = []
        for changes in self.copies(view):
            try:
                records.append(None if changes is None else rewritten(view.record, changes))
            except FilterError as error:
                self.error = self.error or error
        return records


def _named(rule: CompiledRule, view: MessageView) -> Changes:
    changes = rule.apply(view) or Changes()
    return Changes(changes.system, {**changes.user, RULE_NAME_PROPERTY: rule.name})


@dataclass(slots=True, eq=False)
class _Entry(Generic[K]):
    order: int
    subscription: K
    rule: CompiledRule
    guard: Guard | None = None


@dataclass(slots=True)
class _Bucket(Generic[K]):
    """The rules that wait for one property."""

    by_value: dict[Any, list[_Entry[K]]] = field(default_factory=dict)
    present: list[_Entry[K]] = field(default_factory=list)

    def lists(self, guard: Guard) -> Iterator[list[_Entry[K]]]:
        """Where an entry with this guard stands."""
        if guard.values is None:
            yield self.present
        else:
            for value in guard.values:
                yield self.by_value.setdefault(value, [])

    def discard(self, entry: _Entry[K], guard: Guard) -> None:
        for entries in self.lists(guard):
            entries.remove(entry)
        for value in guard.values or ():
            if not self.by_value[value]:
                del self.by_value[value]


class RuleBook(Generic[K]):
    """The rules of all subscriptions of a topic, by a key that names the subscription."""

    def __init__(self) -> None:
        self._subscriptions: dict[K, dict[str, _Entry[K]]] = {}
        self._unguarded: list[_Entry[K]] = []
        self._user: dict[str, _Bucket[K]] = {}
        self._system: dict[str, _Bucket[K]] = {}
        self._next_order = 0
        self._sql_count = 0
        self._correlation_count = 0
        self.correlation_filter_count = 0
        """Of the rules, those that compare properties; the others read as SQL to who asks."""

    def __len__(self) -> int:
        return sum(len(rules) for rules in self._subscriptions.values())

    def add(self, subscription: K, rule: CompiledRule) -> None:
        """Add a rule; ConfigurationError if its name is taken or the topic has too many."""
        rules = self._subscriptions.get(subscription, {})
        if rule.description.key in rules:
            raise ConfigurationError(
                f"the subscription already has a rule {rule.name!a}", hint="Choose another name"
            )
        self._count(rule, 1)
        entry = _Entry(self._next_order, subscription, rule)
        self._next_order += 1
        self._subscriptions.setdefault(subscription, rules)[rule.description.key] = entry
        self._place(entry)

    def remove(self, subscription: K, rule_name: str) -> bool:
        """Remove a rule; False if there is none of that name."""
        rules = self._subscriptions.get(subscription, {})
        entry = rules.pop(rule_name.lower(), None)
        if entry is None:
            return False
        if not rules:
            del self._subscriptions[subscription]
        self._count(entry.rule, -1)
        self._displace(entry)
        return True

    def remove_subscription(self, subscription: K) -> None:
        """Remove all rules of a subscription."""
        for name in list(self._subscriptions.get(subscription, {})):
            self.remove(subscription, name)

    def rules_of(self, subscription: K) -> list[CompiledRule]:
        """The rules of a subscription, oldest first."""
        return [entry.rule for entry in self._subscriptions.get(subscription, {}).values()]

    def matching(self, view: MessageView) -> list[Match[K]]:
        """Every subscription that gets the message, or has a rule that failed on it."""
        matches: dict[K, Match[K]] = {}
        for entry in self._candidates(view):
            try:
                if entry.rule.matches(view) is not True:
                    continue
                error = None
            except FilterError as raised:
                error = raised
            match = matches.get(entry.subscription)
            if match is None:
                match = matches[entry.subscription] = Match(entry.subscription, [])
            if error is None:
                match.rules.append(entry.rule)
            else:
                match.error = match.error or error
        return list(matches.values())

    # --- the index ---------------------------------------------------------------------------

    def _candidates(self, view: MessageView) -> list[_Entry[K]]:
        found = list(self._unguarded)
        if self._user:
            _collect(found, self._user, view.user)
        if self._system:
            _collect(found, self._system, view.system)
        if len(found) > len(self._unguarded):
            found.sort(key=_BY_ORDER)
        return found

    def _place(self, entry: _Entry[K]) -> None:
        kind = entry.rule.description.filter
        if isinstance(kind, FalseFilter):
            return
        entry.guard = min(entry.rule.guards, key=self._crowd, default=None)
        if entry.guard is None:
            self._unguarded.append(entry)
            return
        bucket = self._buckets(entry.guard).setdefault(entry.guard.name, _Bucket())
        for entries in bucket.lists(entry.guard):
            entries.append(entry)

    def _displace(self, entry: _Entry[K]) -> None:
        if entry.guard is not None:
            buckets = self._buckets(entry.guard)
            bucket = buckets[entry.guard.name]
            bucket.discard(entry, entry.guard)
            if not bucket.by_value and not bucket.present:
                del buckets[entry.guard.name]
        elif not isinstance(entry.rule.description.filter, FalseFilter):
            self._unguarded.remove(entry)

    def _buckets(self, guard: Guard) -> dict[str, _Bucket[K]]:
        return self._system if guard.is_system else self._user

    def _crowd(self, guard: Guard) -> int:
        """How many rules would be asked together with one behind this guard."""
        bucket = self._buckets(guard).get(guard.name)
        if guard.values is None:
            # Presence says little: prefer any value to it.
            return SQL_RULES_PER_TOPIC_MAX + (len(bucket.present) if bucket else 0)
        if bucket is None:
            return 0
        return sum(len(bucket.by_value.get(value, ())) for value in guard.values)

    def _count(self, rule: CompiledRule, change: int) -> None:
        kind = rule.description.filter
        if isinstance(kind, SqlFilter):
            self._sql_count = _counted(self._sql_count + change, SQL_RULES_PER_TOPIC_MAX, "SQL")
        elif isinstance(kind, CorrelationFilter | TrueFilter | FalseFilter):
            self._correlation_count = _counted(
                self._correlation_count + change, CORRELATION_RULES_PER_TOPIC_MAX, "correlation"
            )
        if isinstance(kind, CorrelationFilter):
            self.correlation_filter_count += change


_BY_ORDER: Final = attrgetter("order")


def _counted(count: int, count_max: int, kind: str) -> int:
    if count > count_max:
        raise ConfigurationError(
            f"a topic takes at most {count_max} rules with {kind} filters",
            hint="Remove rules that are no longer needed, or use another topic",
        )
    return count


def _collect(
    found: list[_Entry[K]], buckets: dict[str, _Bucket[K]], values: dict[str, Any]
) -> None:
    """Add the entries whose guard these properties pass."""
    for name in buckets.keys() & values.keys():
        value = values[name]
        if value is None:
            continue
        bucket = buckets[name]
        found += bucket.present
        found += bucket.by_value.get(value, ())
