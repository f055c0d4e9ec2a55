"""All rules of one topic: which subscriptions get a message, and because of which rules.

Rule 1: only rules whose guard the message passes are evaluated. A thousand rules that each need
        another value of one property cost one lookup.
Rule 2: a rule that fails affects its own subscription only.
Rule 3: subscriptions are in the order of their first rules, rules in the order in which they were
        added.
Rule 4: thousands of rules take longer than the event loop may be blocked: they are evaluated in
        steps, and others have their turns in between. Rules that change meanwhile apply to the
        next message.

    message --guards--> candidates --evaluate each--> Match(subscription, rules, error)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from twinbus.broker.engine.filters.action_compiler import Changes, apply_changes
from twinbus.broker.engine.filters.compiled_rule import CompiledRule
from twinbus.broker.engine.filters.filter_compiler import Prefilter, lookup_key
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_description import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.filters.rule_values import (
    CORRELATION_RULES_PER_TOPIC_MAX,
    LARGE_PROPERTIES_BYTES,
    SQL_RULES_PER_TOPIC_MAX,
    STEP_WEIGHT,
)
from twinbus.broker.engine.stored_message import Record
from twinbus.common.steps import Steps
from twinbus.errors import ConfigurationError, FilterError

K = TypeVar("K", bound=Hashable)

# Rules of a match that are checked for actions in one step.
RULES_IN_STEP: Final = 8_192
# Up to this many candidates are sorted at once. More are merged while they are evaluated.
SORTED_AT_ONCE_MAX: Final = 1_024

RULE_NAME_PROPERTY: Final = "RuleName"
"""A copy that an action has changed has the name of its rule in this property."""


@dataclass(slots=True)
class Match(Generic[K]):
    """A subscription with a rule that matched a message, or failed on it."""

    subscription: K
    rules: list[CompiledRule] = field(default_factory=list)
    """The rules that matched."""
    error: FilterError | None = None
    """The first error of a rule, if there is one."""

    def record_steps(self, view: MessageView) -> Steps[list[Record | None]]:
        """The copies of the subscription; None is the unchanged message. A step for each action.

        All rules without an action share one copy; each rule with an action makes its own, which
        has the rule's name. An action that fails makes no copy, and sets ``error``.
        """
        records: list[Record | None] = []
        has_plain = False
        for number, rule in enumerate(self.rules, 1):
            if number % RULES_IN_STEP == 0:
                yield
            if not rule.has_action:
                if not has_plain:
                    has_plain = True
                    records.append(None)
                continue
            try:
                records.append(apply_changes(view.record, _named(rule, view), view))
            except FilterError as error:
                self.error = self.error or error
            yield
        return records


def _named(rule: CompiledRule, view: MessageView) -> Changes:
    changes = rule.apply(view) or Changes()
    return Changes(changes.system, {**changes.user, RULE_NAME_PROPERTY: rule.name})


@dataclass(slots=True, eq=False)
class _Entry(Generic[K]):
    order: int
    subscription: K
    rule: CompiledRule
    guard: Prefilter | None = None


@dataclass(slots=True)
class _Bucket(Generic[K]):
    """The rules with a guard on one property."""

    by_key: dict[Any, list[_Entry[K]]] = field(default_factory=dict)
    """Those that need one of some values, by the values' lookup keys."""
    present: list[_Entry[K]] = field(default_factory=list)

    def lists(self, guard: Prefilter) -> Iterator[list[_Entry[K]]]:
        """The lists that contain an entry with this guard."""
        if guard.keys is None:
            yield self.present
        else:
            for key in guard.keys:
                yield self.by_key.setdefault(key, [])

    def discard(self, entry: _Entry[K], guard: Prefilter) -> None:
        for entries in self.lists(guard):
            _delete(entries, entry)
        for key in guard.keys or ():
            if not self.by_key[key]:
                del self.by_key[key]


class RuleCounts(NamedTuple):
    """How many rules a topic has, by kind of limit."""

    sql: int = 0
    correlation: int = 0

    def having(self, rule: CompiledRule) -> RuleCounts:
        """The counts with one more rule; ConfigurationError if it is one too many."""
        if isinstance(rule.description.filter, SqlFilter):
            return RuleCounts(_counted(self.sql + 1, SQL_RULES_PER_TOPIC_MAX, "SQL"), self[1])
        allowed = CORRELATION_RULES_PER_TOPIC_MAX
        return RuleCounts(self.sql, _counted(self.correlation + 1, allowed, "correlation"))

    def without(self, rule: CompiledRule) -> RuleCounts:
        if isinstance(rule.description.filter, SqlFilter):
            return RuleCounts(self.sql - 1, self.correlation)
        return RuleCounts(self.sql, self.correlation - 1)

    def minus(self, other: RuleCounts) -> RuleCounts:
        return RuleCounts(self.sql - other.sql, self.correlation - other.correlation)


class RuleList(Sequence[RuleDescription]):
    """The rules of a subscription as a lazy sequence, for pages of a hundred thousand rules."""

    def __init__(self, entries: Mapping[str, _Entry[Any]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> RuleDescription: ...

    @overload
    def __getitem__(self, place: slice) -> list[RuleDescription]: ...

    def __getitem__(self, place: int | slice) -> RuleDescription | list[RuleDescription]:
        if isinstance(place, int):
            return self[place : place + 1][0]
        start, stop, step = place.indices(len(self))
        found = islice(self._entries.values(), start, stop, step)
        return [entry.rule.description for entry in found]


class RuleIndex(Generic[K]):
    """The rules of all subscriptions of a topic, by a key that names the subscription."""

    def __init__(self) -> None:
        self._subscriptions: dict[K, dict[str, _Entry[K]]] = {}
        self._unguarded: list[_Entry[K]] = []
        self._user: dict[str, _Bucket[K]] = {}
        self._system: dict[str, _Bucket[K]] = {}
        self._next_order = 0
        self._counts = RuleCounts()
        self.correlation_filter_count = 0
        """Rules with a correlation filter; the others are reported as SQL filters."""
        self.evaluated_count = 0
        """Rules that read a message, or change it."""
        self._open: Counter[K] = Counter()
        """How many rules of a subscription match every message and do not change it."""

    def __len__(self) -> int:
        return self._counts.sql + self._counts.correlation

    def add(self, subscription: K, rule: CompiledRule) -> None:
        """Add a rule; ConfigurationError if its name exists or the topic has too many rules."""
        rules = self._subscriptions.get(subscription, {})
        if rule.description.key in rules:
            raise ConfigurationError(
                f"Rule {rule.name!a} already exists in the subscription",
                hint="Choose another name",
            )
        self._counts = self._counts.having(rule)
        self._note_filter(subscription, rule, 1)
        entry = _Entry(self._next_order, subscription, rule)
        self._next_order += 1
        self._subscriptions.setdefault(subscription, rules)[rule.description.key] = entry
        self._place(entry)

    def replace(self, subscription: K, rule: CompiledRule) -> None:
        """Replace the rule of the same name; ConfigurationError as in add()."""
        rules = self._subscriptions[subscription]
        old = rules[rule.description.key]
        self._counts = self._counts.without(old.rule).having(rule)
        self._note_filter(subscription, old.rule, -1)
        self._note_filter(subscription, rule, 1)
        self._displace(old)
        rules[rule.description.key] = entry = _Entry(old.order, subscription, rule)
        self._place(entry)

    def remove(self, subscription: K, rule_name: str) -> bool:
        """Remove a rule; False if there is none of that name."""
        rules = self._subscriptions.get(subscription, {})
        entry = rules.pop(rule_name.lower(), None)
        if entry is None:
            return False
        if not rules:
            del self._subscriptions[subscription]
        self._counts = self._counts.without(entry.rule)
        self._note_filter(subscription, entry.rule, -1)
        self._displace(entry)
        return True

    def remove_subscription(self, subscription: K) -> None:
        """Remove all rules of a subscription."""
        for name in list(self._subscriptions.get(subscription, {})):
            self.remove(subscription, name)

    def open_subscriptions(self) -> list[K]:
        """Subscriptions that get every message unchanged, in no order."""
        return list(self._open)

    def find(self, subscription: K, rule_name: str) -> RuleDescription | None:
        """The rule of that name."""
        entry = self._subscriptions.get(subscription, {}).get(rule_name.lower())
        return None if entry is None else entry.rule.description

    def rule_list(self, subscription: K) -> RuleList:
        """The rules of a subscription, oldest first, as a lazy sequence."""
        return RuleList(self._subscriptions.get(subscription, {}))

    def rules_of(self, subscription: K) -> list[CompiledRule]:
        """The rules of a subscription, oldest first."""
        return [entry.rule for entry in self._subscriptions.get(subscription, {}).values()]

    def matching_steps(self, view: MessageView) -> Steps[list[Match[K]]]:
        """Every subscription that gets the message, or has a rule that failed on it."""
        matches: dict[K, Match[K]] = {}
        found = self._candidates(view)
        if found and view.spans.rest > LARGE_PROPERTIES_BYTES:
            _ = view.user
            yield
        weight, effort = 0, view.effort
        for entry in _in_order(found):
            rule = entry.rule
            weight += rule.weight
            if weight > STEP_WEIGHT:
                yield
                weight = rule.weight
            try:
                is_match = rule.matches(view) is True
                error = None
            except FilterError as raised:
                is_match, error = True, raised
            if rule.may_spend:
                weight += view.effort - effort
                effort = view.effort
            if not is_match:
                continue
            match = matches.get(entry.subscription)
            if match is None:
                match = matches[entry.subscription] = Match(entry.subscription, [])
            if error is None:
                match.rules.append(rule)
            else:
                match.error = match.error or error
        return list(matches.values())

    # --- the index ---------------------------------------------------------------------------

    def _candidates(self, view: MessageView) -> list[list[_Entry[K]]]:
        """The rules whose guard the message passes: copies of lists, each in order."""
        found = [self._unguarded] if self._unguarded else []
        if self._user:
            _collect(found, self._user, view.user)
        if self._system:
            _collect(found, self._system, view.system)
        return [list(entries) for entries in found]

    def _place(self, entry: _Entry[K]) -> None:
        kind = entry.rule.description.filter
        if isinstance(kind, FalseFilter):
            return
        entry.guard = min(entry.rule.guards, key=self._crowd, default=None)
        if entry.guard is None:
            _insert(self._unguarded, entry)
            return
        bucket = self._buckets(entry.guard).setdefault(entry.guard.name, _Bucket())
        for entries in bucket.lists(entry.guard):
            _insert(entries, entry)

    def _displace(self, entry: _Entry[K]) -> None:
        if entry.guard is not None:
            buckets = self._buckets(entry.guard)
            bucket = buckets.get(entry.guard.name)
            if bucket is None:
                # `a = NULL` matches no value, so it is in no list. Its bucket was deleted with the
                # last rule that was in one.
                return
            bucket.discard(entry, entry.guard)
            if not bucket.by_key and not bucket.present:
                del buckets[entry.guard.name]
        elif not isinstance(entry.rule.description.filter, FalseFilter):
            _delete(self._unguarded, entry)

    def _buckets(self, guard: Prefilter) -> dict[str, _Bucket[K]]:
        return self._system if guard.is_system else self._user

    def _crowd(self, guard: Prefilter) -> int:
        """How many rules would be evaluated together with one that has this guard."""
        bucket = self._buckets(guard).get(guard.name)
        if guard.keys is None:
            # Existence excludes few messages: prefer any value.
            return SQL_RULES_PER_TOPIC_MAX + (len(bucket.present) if bucket else 0)
        if bucket is None:
            return 0
        return sum(len(bucket.by_key.get(key, ())) for key in guard.keys)

    def _note_filter(self, subscription: K, rule: CompiledRule, change: int) -> None:
        kind = rule.description.filter
        if isinstance(kind, CorrelationFilter):
            self.correlation_filter_count += change
        if rule.has_action or not isinstance(kind, TrueFilter | FalseFilter):
            self.evaluated_count += change
        elif isinstance(kind, TrueFilter):
            self._open[subscription] += change
            if not self._open[subscription]:
                del self._open[subscription]


_BY_ORDER: Final = attrgetter("order")


def _insert(entries: list[_Entry[K]], entry: _Entry[K]) -> None:
    """Insert an entry in order: at the end, unless it replaces an older one."""
    if entries and entries[-1].order > entry.order:
        insort(entries, entry, key=_BY_ORDER)
    else:
        entries.append(entry)


def _delete(entries: list[_Entry[K]], entry: _Entry[K]) -> None:
    del entries[bisect_left(entries, entry.order, key=_BY_ORDER)]


def _in_order(lists: list[list[_Entry[K]]]) -> Iterable[_Entry[K]]:
    """The entries of all lists in order; many are merged lazily."""
    if len(lists) < 2:
        return lists[0] if lists else ()
    if sum(map(len, lists)) > SORTED_AT_ONCE_MAX:
        return merge(*lists, key=_BY_ORDER)
    return sorted(chain.from_iterable(lists), key=_BY_ORDER)


def _counted(count: int, count_max: int, kind: str) -> int:
    if count > count_max:
        raise ConfigurationError(
            f"A topic can have at most {count_max} rules with {kind} filters",
            hint="Remove rules that are not needed, or use another topic",
        )
    return count


def _collect(
    found: list[list[_Entry[K]]], buckets: dict[str, _Bucket[K]], values: dict[str, Any]
) -> None:
    """Add the lists of entries whose guard these properties pass."""
    for name in buckets.keys() & values.keys():
        value = values[name]
        if value is None:
            continue
        bucket = buckets[name]
        if bucket.present:
            found.append(bucket.present)
        waiting = bucket.by_key.get(value if type(value) is str else lookup_key(value))
        if waiting:
            found.append(waiting)
