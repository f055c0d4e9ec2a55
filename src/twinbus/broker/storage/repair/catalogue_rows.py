"""The entities of a store as rows, and the plan for them, for the package that interprets them.

The store does not interpret topics and rules. The repair hands over the rows that it found
(CatalogueRows) and takes back the entities of the new store (CataloguePlan).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from twinbus.broker.storage.interface import EntityRow
from twinbus.broker.storage.repair.findings import Finding, FindingKind


@dataclass(slots=True)
class CatalogueRows:
    """The rows that were found."""

    entities: list[EntityRow]
    unsealed: list[EntityRow]
    """Entities whose checksum is wrong and that have no other row."""
    contents: dict[int, int]
    """Queue id -> number of messages, the scheduled ones included."""
    orphans: set[int]
    """Ids with rows and without an entity."""
    sessions: set[int]
    """Ids whose messages have sessions."""
    counted: set[int]
    """Ids that have counters."""
    next_queue_id: int

    def take_id(self) -> int:
        self.next_queue_id += 1
        return self.next_queue_id - 1


@dataclass(slots=True)
class CataloguePlan:
    """The entities of the new store."""

    entities: list[EntityRow]
    findings: list[Finding] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    """Ids that are deleted with all of their rows."""
    with_sessions: set[int] = field(default_factory=set)
    """Ids of entities that require sessions."""
    with_counters: set[int] = field(default_factory=set)
    """Ids of entities that must have had counters."""


CatalogueCheck = Callable[[CatalogueRows], CataloguePlan]


def keep_entities(rows: CatalogueRows) -> CataloguePlan:
    """Keep every entity as it is, and name queues without one."""
    plan = CataloguePlan([*rows.entities, *rows.unsealed])
    known = {entity.queue_id for entity in plan.entities}
    for queue_id in sorted(rows.orphans - known):
        if not rows.contents.get(queue_id):
            plan.dropped.add(queue_id)
            plan.findings.append(entity_forgotten(queue_id))
            continue
        plan.entities.append(EntityRow(queue_id, f"recovered-{queue_id}", "queue", "{}"))
        plan.findings.append(entity_missing(queue_id, f"recovered-{queue_id}"))
    return plan


def entity_missing(queue_id: int, path: str) -> Finding:
    return Finding(
        kind=FindingKind.ENTITY_MISSING,
        sentence=f"Entity number {queue_id} is missing, but messages of it exist.",
        repair=f"The messages are moved to the queue {path!r}.",
        entity=path,
        queue_id=queue_id,
    )


def entity_forgotten(queue_id: int) -> Finding:
    return Finding(
        kind=FindingKind.REFERENCE_BROKEN,
        sentence=f"Entity number {queue_id} is missing; it has rows but no messages.",
        repair="The rows are deleted.",
        queue_id=queue_id,
    )
