"""The entities of a store as rows, and how a repair wants them: for whoever knows what they mean.

The store knows nothing of topics and rules. Its doctor hands over what it found (CatalogueRows) and
takes back how it is to be (CataloguePlan).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from twinbus.broker.storage.interface import EntityRow
from twinbus.broker.storage.repair.findings import Finding, FindingKind


@dataclass(slots=True)
class CatalogueRows:
    """What was found."""

    entities: list[EntityRow]
    unsealed: list[EntityRow]
    """Entities whose checksum is wrong and that are in no other row."""
    contents: dict[int, int]
    """Queue id -> how many messages it holds, the scheduled ones included."""
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
    """How the entities are to be."""

    entities: list[EntityRow]
    findings: list[Finding] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    """Ids that go with all of their rows."""
    with_sessions: set[int] = field(default_factory=set)
    """Ids of entities that require sessions."""
    with_counters: set[int] = field(default_factory=set)
    """Ids of entities that must have had counters."""


CatalogueCheck = Callable[[CatalogueRows], CataloguePlan]


def keep_entities(rows: CatalogueRows) -> CataloguePlan:
    """Every entity as it is, and a name for what has none."""
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
        sentence=f"Entity number {queue_id} is missing, and there are messages of it.",
        repair=f"They are in the queue {path!r}.",
        entity=path,
        queue_id=queue_id,
    )


def entity_forgotten(queue_id: int) -> Finding:
    return Finding(
        kind=FindingKind.REFERENCE_BROKEN,
        sentence=f"Entity number {queue_id} is missing; there are rows of it, and no messages.",
        repair="The rows are dropped.",
        queue_id=queue_id,
    )
