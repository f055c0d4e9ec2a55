"""The entities of a namespace by name, and how they come and go.

A queue and a subscription are two machines each, itself and its dead-letter queue; a topic is one.
Each is a row of the store, made and deleted in one transaction. Ids are never used again.

Rule 1: a path belongs to one entity: a queue and a topic cannot share one.
Rule 2: an entity is there for others once it is on disk: what leans on one that the disk may yet
        refuse (a subscription, a rule, a forwarded message) would outlive it.
Rule 3: a subscription lives and dies with its topic, a rule with its subscription. Rules are rows
        of their own (catalogue_rules.py), so that adding one does not write the others again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from random import Random
from typing import Any

from twinbus.broker.catalogue_rules import KIND_RULE, RuleRows, rule_of
from twinbus.broker.entities.changes import check_change
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.filters import RuleDescription, default_rule
from twinbus.broker.entities.forwarding import check_forwarding, targets_of
from twinbus.broker.entities.history import History
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Subscription, Topic
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.broker.entities.witness import Witness
from twinbus.broker.store.port import (
    DeleteEntity,
    EntityRow,
    Op,
    PutCounters,
    PutEntity,
    QueueCounters,
    Recovered,
    SeenRow,
)
from twinbus.errors import ConfigurationError, EntityExists

KIND_QUEUE = QueueDescription.kind
KIND_TOPIC = TopicDescription.kind
KIND_SUBSCRIPTION = SubscriptionDescription.kind

KIND_DEAD_LETTER = "dead-letter"
DEAD_LETTER_SUFFIX = "/$deadletterqueue"

# A topic comes before its subscriptions, and they before their rules.
_RECOVERED_IN_ORDER: dict[str, type[QueueDescription]] = {
    KIND_QUEUE: QueueDescription,
    KIND_TOPIC: TopicDescription,
    KIND_SUBSCRIPTION: SubscriptionDescription,
}


class Catalogue:
    """Every entity, by canonical path."""

    def __init__(
        self, recovered: Recovered, chance: Random, witness: Witness | None = None
    ) -> None:
        self._chance = chance
        self._witness = witness
        self._next_queue_id = recovered.next_queue_id
        self._machines: dict[str, Queue] = {}
        self._unborn: set[Queue] = set()
        self._changing_ways = asyncio.Lock()
        self.dirty: dict[Queue, None] = {}
        self.rules = RuleRows(self._take_id)
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        ids = {entity.path: entity.queue_id for entity in recovered.entities}
        for kind, described in _RECOVERED_IN_ORDER.items():
            for entity in recovered.entities:
                if entity.kind == kind:
                    description = described.from_json(entity.description_json)
                    dead_id = ids.get(entity.path + DEAD_LETTER_SUFFIX, 0)
                    self._machines[entity.path] = self._build(
                        description,
                        recovered.counters.get(entity.queue_id, _empty(entity.queue_id)),
                        recovered.counters.get(dead_id, _empty(dead_id)),
                        recovered.seen.get(entity.queue_id, []),
                    )
                    sessions = self._machines[entity.path].sessions
                    if sessions is not None:
                        sessions.recover(recovered.sessions.get(entity.queue_id, []))
        for entity in recovered.entities:
            if entity.kind == KIND_RULE:
                owner = self._machines[entity.path.rpartition("/rules/")[0]]
                assert isinstance(owner, Subscription)
                owner.topic.add_rule(owner, rule_of(entity), entity.queue_id)

    def _build(
        self,
        description: QueueDescription,
        counters: QueueCounters,
        dead: QueueCounters,
        seen: list[SeenRow],
    ) -> Queue:
        queue = self._machine(description, counters, dead)
        for machine in (queue, queue.dead_letters):
            if machine is not None:
                machine.witness = self._witness
        if description.requires_duplicate_detection:
            queue.history = History(seen, is_partitioned=description.enable_partitioning)
        return queue

    def _machine(
        self, description: QueueDescription, counters: QueueCounters, dead: QueueCounters
    ) -> Queue:
        if isinstance(description, TopicDescription):
            return Topic(description, counters, self._chance)
        dead_letters = Queue(description, dead, self._chance, None)
        if not isinstance(description, SubscriptionDescription):
            return Queue(description, counters, self._chance, dead_letters)
        topic = self._topic_of(description)
        subscription = Subscription(description, counters, self._chance, dead_letters, topic)
        topic.add_subscription(description.name.lower(), subscription)
        return subscription

    def _topic_of(self, description: SubscriptionDescription) -> Topic:
        topic = self.find(description.topic_path)
        if not isinstance(topic, Topic):
            raise ConfigurationError(
                f"There is no topic {description.topic_path!r} for the subscription "
                f"{description.name!r}",
                hint="Create the topic first",
            )
        return topic

    # -- finding --------------------------------------------------------------------------

    def find(self, path: str, sub_queue: str | None = None) -> Queue | None:
        """The machine behind a canonical path and sub-queue."""
        queue = self._machines.get(path)
        if queue is None or queue in self._unborn:
            return None
        if sub_queue is None:
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
        machines = [self._machines[path] for path in sorted(self._machines)]
        return [machine for machine in machines if machine not in self._unborn]

    def machines(self) -> Iterator[Queue]:
        """Everything that holds messages: the entities and their dead-letter queues."""
        for queue in self._machines.values():
            yield queue
            if queue.dead_letters is not None:
                yield queue.dead_letters

    def _descriptions(self) -> Iterator[QueueDescription]:
        machines = self._machines.values()
        return (queue.description for queue in machines if queue not in self._unborn)

    # -- coming and going -----------------------------------------------------------------

    def _take_id(self) -> int:
        self._next_queue_id += 1
        return self._next_queue_id - 1

    def create(
        self, description: QueueDescription, rules: Sequence[RuleDescription] | None = None
    ) -> tuple[Queue, list[Op]]:
        """A new entity, and what must be stored before it is used.

        ``rules`` are for a subscription; None means the one that lets every message in.
        """
        existing = self._machines.get(description.path)
        if existing is not None:
            raise EntityExists(kind=existing.description.kind, path=description.path)
        check_forwarding(description, self._descriptions())
        queue_id = self._take_id()
        dead_id = 0 if isinstance(description, TopicDescription) else self._take_id()
        queue = self._build(description, _empty(queue_id), _empty(dead_id), [])
        self._machines[description.path] = queue
        ops = _ops_to_create(queue)
        if isinstance(queue, Subscription):
            try:
                for rule in [default_rule(description.created_at_ms)] if rules is None else rules:
                    ops += self.rules.add(queue, rule)
            except ConfigurationError:
                self.delete(queue)
                raise
        return queue, ops

    @contextmanager
    def unborn(self, queue: Queue) -> Iterator[None]:
        """Nobody else sees the entity meanwhile, but its name is taken."""
        self._unborn.add(queue)
        try:
            yield
        finally:
            self._unborn.discard(queue)

    def one_way_at_a_time(self, description: QueueDescription) -> AbstractAsyncContextManager[Any]:
        """Two forwards that are each allowed may be a circle together: one after the other."""
        return self._changing_ways if targets_of(description) else nullcontext()

    def ops_to_update(self, queue: Queue, description: QueueDescription) -> list[Op]:
        """What must be stored before an entity that exists is described so."""
        if queue.is_deleted:
            path = queue.description.path
            raise ConfigurationError(f"The {queue.description.kind} {path!r} was deleted meanwhile")
        check_change(queue.description, description)
        check_forwarding(description, self._descriptions())
        return [PutEntity(_row(queue.queue_id, description))]

    def update(self, queue: Queue, description: QueueDescription) -> None:
        """From now on the entity is described so."""
        queue.description = description
        if queue.dead_letters is not None:
            queue.dead_letters.description = description

    def delete(self, queue: Queue) -> list[Op]:
        """Forget an entity and everything in it; of a topic, the subscriptions go before it."""
        del self._machines[queue.description.path]
        ids = [queue.queue_id]
        self.dirty.pop(queue, None)
        if queue.dead_letters is not None:
            self.dirty.pop(queue.dead_letters, None)
            ids.append(queue.dead_letters.queue_id)
        if isinstance(queue, Subscription):
            ids += queue.rule_ids.values()
            queue.topic.remove_subscription(queue.description.path.rpartition("/")[2])
        return [DeleteEntity(each) for each in ids]


def _ops_to_create(queue: Queue) -> list[Op]:
    ops: list[Op] = [
        PutEntity(_row(queue.queue_id, queue.description)),
        PutCounters(_empty(queue.queue_id)),
    ]
    if queue.dead_letters is not None:
        dead_id = queue.dead_letters.queue_id
        path = queue.description.path + DEAD_LETTER_SUFFIX
        ops.append(PutEntity(EntityRow(dead_id, path, KIND_DEAD_LETTER, "")))
        ops.append(PutCounters(_empty(dead_id)))
    return ops


def _row(queue_id: int, description: QueueDescription) -> EntityRow:
    return EntityRow(queue_id, description.path, description.kind, description.to_json())


def _empty(queue_id: int) -> QueueCounters:
    return QueueCounters(queue_id, 1, 0, 0, 0, 0)
