"""The queues of a namespace by name, and how they come and go.

Each queue is two machines: itself and its dead-letter queue. Both are rows of the store, made
and deleted in one transaction. Ids are never used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from twinbus.broker.entities.changes import check_change
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.history import History
from twinbus.broker.entities.queue import Queue
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
from twinbus.errors import ConfigurationError

KIND_QUEUE = "queue"
KIND_DEAD_LETTER = "dead-letter"
DEAD_LETTER_SUFFIX = "/$deadletterqueue"


class Catalogue:
    """Every queue, by canonical path."""

    def __init__(
        self, recovered: Recovered, chance: Random, witness: Witness | None = None
    ) -> None:
        self._chance = chance
        self._witness = witness
        self._next_queue_id = recovered.next_queue_id
        self._queues: dict[str, Queue] = {}
        self.dirty: dict[Queue, None] = {}
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        ids = {entity.path: entity.queue_id for entity in recovered.entities}
        for entity in recovered.entities:
            if entity.kind != KIND_QUEUE:
                continue
            description = QueueDescription.from_json(entity.description_json)
            dead_letter_id = ids[entity.path + DEAD_LETTER_SUFFIX]
            self._queues[entity.path] = self._build(
                description,
                recovered.counters.get(entity.queue_id, _empty(entity.queue_id)),
                recovered.counters.get(dead_letter_id, _empty(dead_letter_id)),
                recovered.seen.get(entity.queue_id, []),
            )

    def _build(
        self,
        description: QueueDescription,
        counters: QueueCounters,
        dead: QueueCounters,
        seen: list[SeenRow],
    ) -> Queue:
        dead_letters = Queue(description, dead, self._chance, None)
        queue = Queue(description, counters, self._chance, dead_letters)
        queue.witness = dead_letters.witness = self._witness
        if description.requires_duplicate_detection:
            queue.history = History(seen, is_partitioned=description.enable_partitioning)
        return queue

    def find(self, path: str, sub_queue: str | None = None) -> Queue | None:
        """The machine behind a canonical path and sub-queue."""
        queue = self._queues.get(path)
        if queue is None or sub_queue is None:
            return queue
        return queue.dead_letters if sub_queue == "dead-letter" else None

    def queues(self) -> list[Queue]:
        """The queues, without their dead-letter queues, by name."""
        return [self._queues[path] for path in sorted(self._queues)]

    def machines(self) -> Iterator[Queue]:
        """The queues and their dead-letter queues."""
        for queue in self._queues.values():
            yield queue
            if queue.dead_letters is not None:
                yield queue.dead_letters

    def create(self, description: QueueDescription) -> tuple[Queue, list[Op]]:
        """A new queue, and what must be stored before it is used."""
        if description.path in self._queues:
            raise ConfigurationError(
                f"The queue {description.path!r} exists already", hint="Choose another name"
            )
        queue_id, dead_id = self._next_queue_id, self._next_queue_id + 1
        self._next_queue_id += 2
        queue = self._build(description, _empty(queue_id), _empty(dead_id), [])
        self._queues[description.path] = queue
        dead_path = description.path + DEAD_LETTER_SUFFIX
        return queue, [
            PutEntity(EntityRow(queue_id, description.path, KIND_QUEUE, description.to_json())),
            PutCounters(_empty(queue_id)),
            PutEntity(EntityRow(dead_id, dead_path, KIND_DEAD_LETTER, "")),
            PutCounters(_empty(dead_id)),
        ]

    def ops_to_update(self, queue: Queue, description: QueueDescription) -> list[Op]:
        """What must be stored before a queue that exists is described so."""
        check_change(queue.description, description)
        row = EntityRow(queue.queue_id, description.path, KIND_QUEUE, description.to_json())
        return [PutEntity(row)]

    def update(self, queue: Queue, description: QueueDescription) -> None:
        """From now on the queue is described so."""
        queue.description = description
        if queue.dead_letters is not None:
            queue.dead_letters.description = description

    def delete(self, queue: Queue) -> list[Op]:
        """Forget a queue and everything in it."""
        del self._queues[queue.description.path]
        machines = [queue] if queue.dead_letters is None else [queue, queue.dead_letters]
        for machine in machines:
            self.dirty.pop(machine, None)
        return [DeleteEntity(machine.queue_id) for machine in machines]


def _empty(queue_id: int) -> QueueCounters:
    return QueueCounters(queue_id, 1, 0, 0, 0, 0)
