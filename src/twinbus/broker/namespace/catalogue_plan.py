"""The catalogue as values, administrative changes planned on them, and rules as rows.

    entries + call --Draft--> refusal (an error, and nothing else)
                          \\--> the entries after the change, and the ops to write first

A rule of a subscription is an entity without messages, with the path
``<topic>/subscriptions/<name>/rules/<rule>``. It has an id like every other entity, because the
store identifies entities by id, and it is a row of its own, so that adding one does not write the
others again.

Rule 1: a plan uses no machine, no clock and no disk. The caller writes its ops and applies it
        (catalogue.py) when they are durable; if they are refused the caller drops the plan, and
        nothing has changed (rule M15).
Rule 2: everything that can be refused is refused here: names that exist, forwards without a target,
        rules that cannot be compiled or are one too many. Applying a plan never fails.
Rule 3: a path belongs to one entity: a queue and a topic cannot share one. A subscription is
        deleted with its topic, a rule with its subscription. A forward is removed with its target:
        a new entity of that name is not the one that was allowed as target (rule M14).
Rule 4: the calls of one transaction are planned one after the other: each sees the results of those
        before it, and a refused one has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_change,
)
from twinbus.broker.engine.filters import (
    CompiledRule,
    RuleDescription,
    compile_rule,
    default_rule,
)
from twinbus.broker.engine.filters.rule_index import RuleCounts
from twinbus.broker.engine.forwarding import (
    check_forwarding,
    targets_of,
    without_forwards,
)
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.storage.interface import (
    QUEUE_ID_MAX,
    DeleteEntity,
    EntityRow,
    Op,
    PutCounters,
    PutEntity,
    QueueCounters,
)
from twinbus.errors import ConfigurationError, EntityExists

__all__ = [
    "DEAD_LETTER_SUFFIX",
    "KIND_DEAD_LETTER",
    "KIND_RULE",
    "Draft",
    "Entry",
    "StoredRule",
    "find_rule",
    "rule_of",
    "rule_row",
]

KIND_RULE: Final = "rule"


def find_rule(subscription: Subscription, name: str) -> RuleDescription:
    """The rule of that name; ConfigurationError if there is none."""
    rule = subscription.find_rule(name)
    if rule is not None:
        return rule
    raise ConfigurationError(
        f"Rule {name[:60]!a} not found in subscription {subscription.description.display_path!r}",
        hint="List its rules",
    )


def rule_of(entity: EntityRow) -> RuleDescription:
    """The rule that a row holds."""
    return RuleDescription.from_dict(json.loads(entity.description_json))


def rule_row(subscription_path: str, rule: RuleDescription, rule_id: int) -> EntityRow:
    """The row that holds a rule."""
    path = f"{subscription_path}/rules/{rule.key}"
    return EntityRow(rule_id, path, KIND_RULE, json.dumps(rule.to_dict(), sort_keys=True))


KIND_DEAD_LETTER: Final = "dead-letter"
DEAD_LETTER_SUFFIX: Final = "/$deadletterqueue"
# As in Azure. A key with Manage on one topic can create them, and each takes 15 KB. A message
# may have a copy for each, and all copies are one transaction.
SUBSCRIPTIONS_MAX: Final = 2_000
# Rules that are written, or freed, in one step.
RULES_IN_STEP: Final = 512


class StoredRule(NamedTuple):
    """A rule of a subscription, and its row in the store."""

    rule_id: int
    rule: CompiledRule

    @property
    def description(self) -> RuleDescription:
        return self.rule.description


_NO_RULES: Final[Mapping[str, StoredRule]] = MappingProxyType({})
_NO_COUNTS: Final = RuleCounts()


class Entry(NamedTuple):
    """One queue, topic or subscription as a value."""

    queue_id: int
    dead_id: int
    """The row of its dead-letter queue; 0 for a topic, which has none."""
    description: QueueDescription
    rules: Mapping[str, StoredRule] = _NO_RULES
    """Of a subscription, by key, oldest first."""
    subscriptions: frozenset[str] = frozenset()
    """Of a topic, their paths."""
    rule_counts: RuleCounts = _NO_COUNTS
    """Of its rules; of a topic, what all its subscriptions have together."""


class RemovedRules(NamedTuple):
    """The rules of a deleted subscription: there may be a hundred thousand."""

    rules: dict[str, StoredRule]


class Draft:
    """The catalogue after the planned changes, and the ops that write them."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        next_id: int,
        missing: frozenset[str],
        forwarding: Collection[str],
    ) -> None:
        """``missing`` are targets of forwards that do not exist; ``forwarding`` are the paths of
        the entries that forward."""
        self._entries = entries
        self._missing = missing
        self._forwarding = forwarding
        self._parent: Draft | None = None
        self.changed: dict[str, Entry | None] = {}
        """What differs from the entries; None is deleted."""
        self.changed_rules: dict[str, dict[str, None]] = {}
        """Which rules of a subscription, by their keys, were added, changed or removed."""
        self.ops: list[Op | RemovedRules] = []
        self.removed_rule_count = 0
        self.next_id = next_id

    def fork(self) -> Draft:
        """A draft for one more call; ``merge`` it, or drop it if the call is refused."""
        child = Draft(self._entries, self.next_id, self._missing, self._forwarding)
        child._parent = self
        return child

    def merge(self, child: Draft) -> None:
        self.changed.update(child.changed)
        for path, keys in child.changed_rules.items():
            known = self.changed_rules.setdefault(path, {})
            for key in keys:
                known.pop(key, None)  # One that is created again comes last.
                known[key] = None
        self.ops += child.ops
        self.removed_rule_count += child.removed_rule_count
        self.next_id = child.next_id

    def write_down(self, ops: list[Op]) -> Iterator[int]:
        """Append the ops to ``ops``, in order; each step yields how many it has appended."""
        for op in self.ops:
            if isinstance(op, RemovedRules):
                rules = iter(op.rules.values())
                while some := list(islice(rules, RULES_IN_STEP)):
                    ops += [DeleteEntity(stored.rule_id) for stored in some]
                    yield len(some)
            else:
                ops.append(op)
        yield len(self.ops)

    def free_rules(self) -> Iterator[int]:
        """Free the rules of deleted subscriptions: all at once would take a tenth of a second.

        Each step yields how many it has freed. Only the draft has them by then.
        """
        for op in self.ops:
            if isinstance(op, RemovedRules):
                while op.rules:
                    count = min(RULES_IN_STEP, len(op.rules))
                    for _ in range(count):
                        op.rules.popitem()
                    yield count

    # -- finding --------------------------------------------------------------------------

    def find(self, path: str) -> Entry | None:
        if path in self.changed:
            return self.changed[path]
        return self._entries.get(path) if self._parent is None else self._parent.find(path)

    def entries(self) -> Iterator[Entry]:
        """Every entity, in no order."""
        for entry in self.changed.values():
            if entry is not None:
                yield entry
        below = self._entries.values() if self._parent is None else self._parent.entries()
        for entry in below:
            if entry.description.path not in self.changed:
                yield entry

    def expect(self, queue_id: int, description: QueueDescription) -> Entry:
        """The entry of an entity that the caller has found; it may have been deleted since."""
        entry = self.find(description.path)
        if entry is None or entry.queue_id != queue_id:
            raise ConfigurationError(
                f"The {description.kind} {description.path!r} no longer exists"
            )
        return entry

    # -- entities -------------------------------------------------------------------------

    def create(
        self,
        description: QueueDescription,
        rules: Sequence[RuleDescription] | None,
        at_ms: int,
    ) -> Entry:
        """A new entity. ``rules`` are for a subscription; None accepts every message."""
        existing = self.find(description.path)
        if existing is not None:
            raise EntityExists(kind=existing.description.kind, path=description.path)
        self._check_forwarding(description)
        if isinstance(description, SubscriptionDescription):
            _check_count(self._topic_of(description))
        if description.path in self._missing:
            self._end_forwards_to(description.path)
        return self._make(
            replace(description, created_at_ms=at_ms, updated_at_ms=at_ms),
            [default_rule(at_ms)] if rules is None else rules,
        )

    def provide(
        self,
        description: QueueDescription,
        rules: Sequence[RuleDescription] | None,
        at_ms: int,
    ) -> None:
        """Create an entity unless it exists; one of another kind must not exist."""
        existing = self.find(description.path)
        if existing is None:
            self.create(description, rules, at_ms)
        elif existing.description.kind != description.kind:
            raise ConfigurationError(
                f"{description.path!r} is a {existing.description.kind}, not a {description.kind}",
                hint=f"Use another name, or delete the {existing.description.kind}",
            )

    def update(
        self, queue_id: int, old: QueueDescription, description: QueueDescription, at_ms: int
    ) -> None:
        """Change the description of an entity; ``old`` is the one that the caller has seen."""
        entry = self.expect(queue_id, old)
        made_at_ms = entry.description.created_at_ms
        described = replace(description, created_at_ms=made_at_ms, updated_at_ms=at_ms)
        check_change(entry.description, described)
        self._check_forwarding(described)
        self.ops.append(PutEntity(_row(queue_id, described)))
        self.changed[described.path] = entry._replace(description=described)

    def delete(self, queue_id: int, path: str) -> None:
        """Delete an entity and everything in it; nothing if it is deleted already.

        Another entity with its path is not the one that the caller has seen, and stays.
        """
        entry = self.find(path)
        if entry is None:
            return
        entry = self.expect(queue_id, entry.description)
        for below in sorted(entry.subscriptions):
            subscription = self.find(below)
            if subscription is not None:
                self._remove(subscription)
        self._remove(entry)
        if isinstance(entry.description, SubscriptionDescription):
            self._leave_topic(entry.description, entry)
        else:
            self._end_forwards_to(path)

    def _end_forwards_to(self, path: str) -> None:
        for source in self._sources():
            described = without_forwards(source.description, {path})
            if described is not source.description:
                self.ops.append(PutEntity(_row(source.queue_id, described)))
                self.changed[described.path] = source._replace(description=described)

    def reset(self, *, keep_entities: bool, at_ms: int) -> int:
        """Delete everything; entities that are kept are created again with other ids.

        A kept one has the same description, also if the target of its forward does not exist: the
        forward is not new. Returns how many entities there were.
        """
        entries = sorted(self.entries(), key=_topics_first)
        for entry in entries:
            self._remove(entry)
        if keep_entities:
            for entry in entries:
                described = replace(entry.description, created_at_ms=at_ms, updated_at_ms=at_ms)
                self._make(described, [stored.description for stored in entry.rules.values()])
        return len(entries)

    def _check_forwarding(self, description: QueueDescription) -> None:
        if targets_of(description):
            sources = [entry.description for entry in self._sources()]
            paths = {path for each in (description, *sources) for path in targets_of(each)}
            targets = [entry.description for path in paths if (entry := self.find(path))]
            check_forwarding(description, (*targets, *sources))

    def _sources(self) -> list[Entry]:
        """The entities that forward. They are few of thousands, so they are tracked by path."""
        found: dict[str, Entry] = {}
        for path in (*self._forwarding, *self._changed_paths()):
            entry = self.find(path)
            if entry is not None and targets_of(entry.description):
                found[path] = entry
        return list(found.values())

    def _changed_paths(self) -> list[str]:
        above = [] if self._parent is None else self._parent._changed_paths()
        return [*above, *self.changed]

    def _make(self, description: QueueDescription, rules: Sequence[RuleDescription]) -> Entry:
        if isinstance(description, SubscriptionDescription):
            self._topic_of(description)
        queue_id = self._take_id()
        dead_id = 0 if isinstance(description, TopicDescription) else self._take_id()
        self.ops += [PutEntity(_row(queue_id, description)), PutCounters(QueueCounters(queue_id))]
        if dead_id:
            path = description.path + DEAD_LETTER_SUFFIX
            self.ops.append(PutEntity(EntityRow(dead_id, path, KIND_DEAD_LETTER, "")))
            self.ops.append(PutCounters(QueueCounters(dead_id)))
        entry = Entry(queue_id, dead_id, description)
        if isinstance(description, SubscriptionDescription):
            entry = self._join_topic(description, entry, rules)
        self.changed[description.path] = entry
        return entry

    def _join_topic(
        self, description: SubscriptionDescription, entry: Entry, rules: Sequence[RuleDescription]
    ) -> Entry:
        topic = self._topic_of(description)
        counts, own = topic.rule_counts, _NO_COUNTS
        known: dict[str, StoredRule] = {}
        for rule in rules:
            _check_is_free(description, rule, known)
            stored = StoredRule(self._take_id(), compile_rule(rule))
            counts, own = counts.having(stored.rule), own.having(stored.rule)
            known[rule.key] = stored
            self.ops.append(PutEntity(rule_row(description.path, rule, stored.rule_id)))
        paths = topic.subscriptions | {description.path}
        joined = topic._replace(subscriptions=paths, rule_counts=counts)
        self.changed[topic.description.path] = joined
        return entry._replace(rules=known, rule_counts=own)

    def _remove(self, entry: Entry) -> None:
        self.ops.append(DeleteEntity(entry.queue_id))
        if entry.dead_id:
            self.ops.append(DeleteEntity(entry.dead_id))
        if isinstance(entry.rules, dict):
            self.ops.append(RemovedRules(entry.rules))
            self.removed_rule_count += len(entry.rules)
        self.changed[entry.description.path] = None

    def _topic_of(self, description: SubscriptionDescription) -> Entry:
        topic = self.find(description.topic_path)
        if topic is None or not isinstance(topic.description, TopicDescription):
            raise ConfigurationError(
                f"Topic {description.topic_path!r} not found for subscription {description.name!r}",
                hint="Create the topic first",
            )
        return topic

    def _leave_topic(self, description: SubscriptionDescription, entry: Entry) -> None:
        topic = self._topic_of(description)
        paths = topic.subscriptions - {description.path}
        counts = topic.rule_counts.minus(entry.rule_counts)
        left = topic._replace(subscriptions=paths, rule_counts=counts)
        self.changed[topic.description.path] = left

    def _take_id(self) -> int:
        if self.next_id > QUEUE_ID_MAX:
            raise ConfigurationError(
                f"This namespace has used all of its {QUEUE_ID_MAX} entity numbers",
                hint="Use a new namespace",
            )
        self.next_id += 1
        return self.next_id - 1

    # -- rules ----------------------------------------------------------------------------

    def add_rule(
        self, queue_id: int, description: QueueDescription, rule: RuleDescription, at_ms: int
    ) -> RuleDescription:
        """One more rule of a subscription."""
        rule = replace(rule, created_at_ms=at_ms)
        entry = self.expect(queue_id, description)
        _check_is_free(entry.description, rule, entry.rules)
        stored = StoredRule(self._take_id(), compile_rule(rule))
        self._put_rules(entry, {**entry.rules, rule.key: stored}, None, stored.rule, rule.key)
        self.ops.append(PutEntity(rule_row(entry.description.path, rule, stored.rule_id)))
        return rule

    def replace_rule(
        self, queue_id: int, description: QueueDescription, rule: RuleDescription
    ) -> RuleDescription:
        """Replace a rule by another of the same name, with its position and creation time."""
        entry = self.expect(queue_id, description)
        old = _find_rule(entry, rule.name)
        rule = replace(rule, created_at_ms=old.description.created_at_ms)
        stored = StoredRule(old.rule_id, compile_rule(rule))
        self._put_rules(entry, {**entry.rules, rule.key: stored}, old.rule, stored.rule, rule.key)
        self.ops.append(PutEntity(rule_row(entry.description.path, rule, stored.rule_id)))
        return rule

    def remove_rule(self, queue_id: int, description: QueueDescription, name: str) -> None:
        entry = self.expect(queue_id, description)
        old = _find_rule(entry, name)
        key = old.description.key
        rest = dict(entry.rules)
        del rest[key]
        self._put_rules(entry, rest, old.rule, None, key)
        self.ops.append(DeleteEntity(old.rule_id))

    def _put_rules(
        self,
        entry: Entry,
        rules: Mapping[str, StoredRule],
        old: CompiledRule | None,
        new: CompiledRule | None,
        key: str,
    ) -> None:
        description = entry.description
        assert isinstance(description, SubscriptionDescription)
        topic = self._topic_of(description)
        counts, own = topic.rule_counts, entry.rule_counts
        if old is not None:
            counts, own = counts.without(old), own.without(old)
        if new is not None:
            counts, own = counts.having(new), own.having(new)
        self.changed[description.path] = entry._replace(rules=rules, rule_counts=own)
        keys = self.changed_rules.setdefault(description.path, {})
        keys.pop(key, None)
        keys[key] = None
        self.changed[topic.description.path] = topic._replace(rule_counts=counts)


def _topics_first(entry: Entry) -> tuple[bool, str]:
    """A subscription needs its topic."""
    return isinstance(entry.description, SubscriptionDescription), entry.description.path


def _check_count(topic: Entry) -> None:
    if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise ConfigurationError(
            f"The topic {topic.description.display_path!r} has reached the limit of "
            f"{SUBSCRIPTIONS_MAX} subscriptions",
            hint="Delete a subscription first",
        )


def _check_is_free(
    description: QueueDescription, rule: RuleDescription, rules: Mapping[str, StoredRule]
) -> None:
    if rule.key in rules:
        raise ConfigurationError(
            f"Rule {rule.name!r} already exists in subscription {description.display_path!r}",
            hint="Use another name, or update the rule",
        )


def _find_rule(entry: Entry, name: str) -> StoredRule:
    stored = entry.rules.get(name.lower())
    if stored is None:
        raise ConfigurationError(
            f"Rule {name[:60]!a} not found in subscription {entry.description.display_path!r}",
            hint="List its rules",
        )
    return stored


def _row(queue_id: int, description: QueueDescription) -> EntityRow:
    return EntityRow(queue_id, description.path, description.kind, description.to_json())
