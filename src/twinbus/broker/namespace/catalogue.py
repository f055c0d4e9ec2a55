"""The entities of a namespace by name: as values (catalogue_plan.py), and as state machines.

A queue and a subscription are two state machines each, itself and its dead-letter queue; a topic is
one. Each is a row of the store, created and deleted in one transaction. Ids are never used again.

    plan() --> draft --written--> apply(draft): machines are removed, created and changed

Rule 1: an entity exists once it is on disk, and is removed once it is removed there: the machines
        follow the values, and the values follow the disk (rule M15).
Rule 2: rules are rows of their own (catalogue_plan.py); a subscription is deleted with its topic, a
        rule with its subscription.
Rule 3: a store whose rows do not belong together is refused with a sentence. A forward whose target
        was deleted is allowed: its messages wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from twinbus.broker.engine.audit_hooks import AuditSink
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.duplicate_detection import DuplicateHistory
from twinbus.broker.engine.filters import compile_rule
from twinbus.broker.engine.forwarding import targets_of
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.namespace.catalogue_plan import (
    DEAD_LETTER_SUFFIX,
    KIND_DEAD_LETTER,
    KIND_RULE,
    Draft,
    Entry,
    StoredRule,
    rule_of,
)
from twinbus.broker.storage.interface import EntityRow, QueueCounters, Recovered
from twinbus.errors import ConfigurationError, StoreCorrupt

KIND_QUEUE: Final = QueueDescription.kind
KIND_TOPIC: Final = TopicDescription.kind
KIND_SUBSCRIPTION: Final = SubscriptionDescription.kind

# A topic comes before its subscriptions, and they before their rules.
_RECOVERED_IN_ORDER: Final[dict[str, type[QueueDescription]]] = {
    KIND_QUEUE: QueueDescription,
    KIND_TOPIC: TopicDescription,
    KIND_SUBSCRIPTION: SubscriptionDescription,
}
# Rules that are removed in one step, with their subscription.
RULES_IN_STEP: Final = 16
_KINDS: Final = {*_RECOVERED_IN_ORDER, KIND_DEAD_LETTER, KIND_RULE}


@dataclass(slots=True)
class Applied:
    """What a change did to the machines."""

    removed: list[Queue] = field(default_factory=list)
    """Subscriptions before their topic."""
    created: list[Queue] = field(default_factory=list)
    updated: list[Queue] = field(default_factory=list)
    """Those that are described differently now."""
    ends_rights: bool = False
    """Some of these have other access rules, or another forward."""


class Catalogue:
    """Every entity, by canonical path."""

    def __init__(
        self, recovered: Recovered, chance: Random, audit_sink: AuditSink | None = None
    ) -> None:
        self._chance = chance
        self._audit_sink = audit_sink
        self._machines: dict[str, Queue] = {}
        self.entries, self._next_id = _entries(recovered), recovered.next_queue_id
        """The entities as values, by path."""
        self._forwarding = {
            path: None for path, each in self.entries.items() if targets_of(each.description)
        }
        """The paths of entities that forward: few of thousands."""
        self._missing = _missing_targets(self.entries)
        self.dirty: dict[Queue, None] = {}
        for entry in sorted(self.entries.values(), key=_topics_first):
            self._make(entry, recovered)

    # -- finding --------------------------------------------------------------------------

    def find(self, path: str, sub_queue: str | None = None) -> Queue | None:
        """The state machine of a canonical path and sub-queue."""
        queue = self._machines.get(path)
        if queue is None or sub_queue is None:
            return queue
        return queue.dead_letters if sub_queue == "dead-letter" else None

    def queues(self) -> list[Queue]:
        """The queues, without their dead-letter queues, by name."""
        return [queue for queue in self.entities() if queue.description.kind == KIND_QUEUE]

    def topics(self) -> list[Topic]:
        """The topics by name."""
        return [topic for topic in self.entities() if isinstance(topic, Topic)]

    def entities(self) -> list[Queue]:
        """Queues, topics and subscriptions by path."""
        return [self._machines[path] for path in sorted(self._machines)]

    def machines(self) -> Iterator[Queue]:
        """All state machines with messages: the entities and their dead-letter queues."""
        for queue in self._machines.values():
            yield queue
            if queue.dead_letters is not None:
                yield queue.dead_letters

    # -- changing -------------------------------------------------------------------------

    def plan(self) -> Draft:
        """A draft in which nothing has changed yet."""
        return Draft(self.entries, self._next_id, self._missing, self._forwarding)

    def apply(self, draft: Draft) -> Applied:
        """The draft is on disk: apply it to the machines."""
        applied = Applied()
        for _step in self.apply_in_steps(draft, applied):
            pass
        return applied

    def apply_in_steps(self, draft: Draft, applied: Applied) -> Iterator[None]:
        """The draft is on disk: after the last step it is applied to the machines.

        There is a step for each entity; what was done so far is in ``applied``.
        """
        changed = [(path, self.entries.get(path), new) for path, new in draft.changed.items()]
        for path, old, new in sorted(changed, key=_subscriptions_first):
            if old is not None and (new is None or new.queue_id != old.queue_id):
                yield from self._forget_rules(path)
                applied.removed.append(self._remove(path))
                yield
        for path, _old, new in changed:
            if new is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = new
            if new is not None and targets_of(new.description):
                self._forwarding[path] = None
            else:
                self._forwarding.pop(path, None)
        fresh = [
            new
            for _path, old, new in changed
            if new is not None and (old is None or old.queue_id != new.queue_id)
        ]
        for entry in sorted(fresh, key=_topics_first):
            applied.created.append(self._make(entry))
            yield
        for path, old, new in changed:
            if old is None or new is None or old.queue_id != new.queue_id:
                continue
            yield
            if _update(self._machines[path], old, new, draft.changed_rules.get(path, {})):
                applied.updated.append(self._machines[path])
                applied.ends_rights |= _ends_rights(old.description, new.description)
        self._next_id = draft.next_id

    def _forget_rules(self, path: str) -> Iterator[None]:
        """Remove the rules of a deleted subscription, a few in each step."""
        queue = self._machines[path]
        if isinstance(queue, Subscription):
            keys = list(queue.rule_ids)
            while keys:
                if len(keys) % RULES_IN_STEP == 0:
                    yield
                # One at a time: to free a hundred thousand texts at once takes long, too.
                queue.topic.remove_rule(queue, keys.pop())

    def _remove(self, path: str) -> Queue:
        queue = self._machines.pop(path)
        self.dirty.pop(queue, None)
        if queue.dead_letters is not None:
            self.dirty.pop(queue.dead_letters, None)
        if isinstance(queue, Subscription):
            queue.topic.remove_subscription(path.rpartition("/")[2])
        return queue

    def _make(self, entry: Entry, recovered: Recovered | None = None) -> Queue:
        found = recovered or Recovered()
        description, queue_id = entry.description, entry.queue_id
        queue = self._machine(
            description,
            found.counters.get(queue_id, QueueCounters(queue_id)),
            found.counters.get(entry.dead_id, QueueCounters(entry.dead_id)),
        )
        for machine in (queue, queue.dead_letters):
            if machine is not None:
                machine.audit_sink = self._audit_sink
        if description.requires_duplicate_detection:
            seen = found.seen.get(queue_id, [])
            queue.history = DuplicateHistory(seen, is_partitioned=description.enable_partitioning)
        if queue.sessions is not None:
            states = found.state_bytes.get(queue_id, 0)
            queue.sessions.recover(found.sessions.get(queue_id, []), states)
        if isinstance(queue, Subscription):
            for stored in entry.rules.values():
                queue.topic.put_rule(queue, stored.rule, stored.rule_id)
        self._machines[description.path] = queue
        return queue

    def _machine(
        self, description: QueueDescription, counters: QueueCounters, dead: QueueCounters
    ) -> Queue:
        if isinstance(description, TopicDescription):
            return Topic(description, counters, self._chance)
        dead_letters = Queue(description, dead, self._chance, None)
        if not isinstance(description, SubscriptionDescription):
            return Queue(description, counters, self._chance, dead_letters)
        topic = self._machines[description.topic_path]
        assert isinstance(topic, Topic)
        subscription = Subscription(description, counters, self._chance, dead_letters, topic)
        topic.add_subscription(description.name.lower(), subscription)
        return subscription


def _update(queue: Queue, old: Entry, new: Entry, rule_keys: Iterable[str]) -> bool:
    """Apply a changed entry to its machine; returns whether its description has changed.

    ``rule_keys`` are the rules that may have changed, of a hundred thousand.
    """
    if isinstance(queue, Subscription):
        changed = [(key, old.rules.get(key), new.rules.get(key)) for key in rule_keys]
        for key, before, after in changed:
            if before is not None and (after is None or after.rule_id != before.rule_id):
                # A rule that was created again under its name comes last, as after a restart.
                queue.topic.remove_rule(queue, key)
        for _key, before, after in changed:
            if after is not None and after is not before:
                queue.topic.put_rule(queue, after.rule, after.rule_id)
    if new.description is old.description:
        return False
    queue.description = new.description
    if queue.dead_letters is not None:
        queue.dead_letters.description = new.description
    return True


def _ends_rights(old: QueueDescription, new: QueueDescription) -> bool:
    """Whether links to the entity may have to end."""
    return old.authorization_rules != new.authorization_rules or targets_of(old) != targets_of(new)


def _subscriptions_first(change: tuple[str, Entry | None, Entry | None]) -> bool:
    _path, old, _new = change
    return old is None or not isinstance(old.description, SubscriptionDescription)


def _topics_first(entry: Entry) -> bool:
    return isinstance(entry.description, SubscriptionDescription)


# -- from rows to values ----------------------------------------------------------------------


def _missing_targets(entries: Mapping[str, Entry]) -> frozenset[str]:
    """Targets of forwards that do not exist. Older versions did not remove such forwards."""
    targets = (path for entry in entries.values() for path in targets_of(entry.description))
    return frozenset(path for path in targets if path not in entries)


def _entries(recovered: Recovered) -> dict[str, Entry]:
    """The entities that the rows of a store describe; StoreCorrupt if they do not fit together."""
    rows = {row.path: row for row in recovered.entities}
    for row in recovered.entities:
        if row.kind not in _KINDS:
            raise _unfit(recovered, f"{row.path!r} has the unknown kind {row.kind!r}", row)
    entries: dict[str, Entry] = {}
    for kind in _RECOVERED_IN_ORDER:
        for row in recovered.entities:
            if row.kind == kind:
                _add_entry(entries, row, rows, recovered)
    rules: dict[str, dict[str, StoredRule]] = {}
    for row in recovered.entities:
        if row.kind == KIND_RULE:
            _add_rule(entries, rules, row, recovered)
        elif row.kind == KIND_DEAD_LETTER:
            owner = entries.get(row.path.removesuffix(DEAD_LETTER_SUFFIX))
            if owner is None or owner.dead_id != row.queue_id:
                raise _unfit(recovered, f"{row.path!r} does not belong to an entity", row)
    for path, known in rules.items():
        entries[path] = entries[path]._replace(rules=known)
    return entries


def _add_entry(
    entries: dict[str, Entry], row: EntityRow, rows: dict[str, EntityRow], recovered: Recovered
) -> None:
    try:
        description = _RECOVERED_IN_ORDER[row.kind].from_json(row.description_json)
    except ConfigurationError as error:
        raise _unfit(recovered, f"{row.path!r} cannot be read: {error.sentence}", row) from error
    if description.path != row.path:
        detail = f"{row.path!r} has the description of {description.path!r}"
        raise _unfit(recovered, detail, row)
    dead = rows.get(row.path + DEAD_LETTER_SUFFIX)
    if isinstance(description, TopicDescription):
        dead = None
    elif dead is None or dead.kind != KIND_DEAD_LETTER:
        raise _unfit(recovered, f"{row.path!r} has no dead-letter queue", row)
    if isinstance(description, SubscriptionDescription):
        topic = entries.get(description.topic_path)
        if topic is None or not isinstance(topic.description, TopicDescription):
            raise _unfit(recovered, f"the topic of {row.path!r} is missing", row)
        paths = topic.subscriptions | {row.path}
        entries[description.topic_path] = topic._replace(subscriptions=paths)
    dead_id = 0 if dead is None else dead.queue_id
    entries[row.path] = Entry(row.queue_id, dead_id, description)


def _add_rule(
    entries: dict[str, Entry],
    rules: dict[str, dict[str, StoredRule]],
    row: EntityRow,
    recovered: Recovered,
) -> None:
    path = row.path.rpartition("/rules/")[0]
    owner = entries.get(path)
    if owner is None or not isinstance(owner.description, SubscriptionDescription):
        raise _unfit(recovered, f"the subscription of {row.path!r} is missing", row)
    try:
        stored = StoredRule(row.queue_id, compile_rule(rule_of(row)))
        topic = entries[owner.description.topic_path]
        counts = topic.rule_counts.having(stored.rule)
        own = owner.rule_counts.having(stored.rule)
    except (ConfigurationError, ValueError) as error:
        raise _unfit(recovered, f"{row.path!r} cannot be read", row) from error
    entries[topic.description.path] = topic._replace(rule_counts=counts)
    entries[path] = owner._replace(rule_counts=own)
    rules.setdefault(path, {})[stored.description.key] = stored


def _unfit(recovered: Recovered, detail: str, row: EntityRow) -> StoreCorrupt:
    return StoreCorrupt(path=recovered.path, detail=detail, queue_id=row.queue_id)
