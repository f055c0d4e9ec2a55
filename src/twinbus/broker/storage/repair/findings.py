"""What can be wrong with a store, as values: one sentence each, and what a repair does about it.

    error    the broker refuses the store, or would lose or repeat messages
    warning  the broker opens the store, but an operator should check it

Rule 1: a finding names its place: the namespace, the entity or the table, the sequence numbers.
Rule 2: no finding contains a message, a key or a session id.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"


class FindingKind(enum.StrEnum):
    """The kind of damage. ``--output json`` contains these values, so they do not change."""

    DATABASE_MISSING = "database-missing"
    DATABASE_EMPTY = "database-empty"
    HEADER_DAMAGED = "header-damaged"
    FOREIGN_DATABASE = "foreign-database"
    VERSION_NEWER = "version-newer"
    SCHEMA_DAMAGED = "schema-damaged"
    PAGE_DAMAGED = "page-damaged"
    ROW_DAMAGED = "row-damaged"
    LOG_DAMAGED = "log-damaged"
    COMMITS_MISSING = "commits-missing"
    MARK_FOREIGN = "mark-foreign"
    MARK_DAMAGED = "mark-damaged"
    LEDGER_DAMAGED = "ledger-damaged"
    CHUNKS_OVERLAP = "chunks-overlap"
    SHARED_BODY_MISSING = "shared-body-missing"
    REFERENCE_BROKEN = "reference-broken"
    SESSION_MISSING = "session-missing"
    COUNTERS_WRONG = "counters-wrong"
    COUNTERS_MISSING = "counters-missing"
    SEQUENCE_REUSE = "sequence-reuse"
    ENTITY_MISSING = "entity-missing"
    ENTITY_DUPLICATE = "entity-duplicate"
    ENTITY_UNREADABLE = "entity-unreadable"
    TOPIC_MISSING = "topic-missing"
    SUBSCRIPTION_MISSING = "subscription-missing"
    DEAD_LETTER_MISSING = "dead-letter-missing"
    FORWARD_TARGET_MISSING = "forward-target-missing"
    FORWARD_CIRCLE = "forward-circle"
    KEYS_UNREADABLE = "keys-unreadable"
    KEYS_EXPOSED = "keys-exposed"
    FILE_UNREADABLE = "file-unreadable"
    REFUSED_BY_BROKER = "refused-by-broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of damage in one place."""

    kind: FindingKind
    sentence: str
    repair: str
    """What ``--repair`` does about it."""
    severity: Severity = Severity.ERROR
    namespace: str | None = None
    entity: str | None = None
    table: str | None = None
    queue_id: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None

    def placed(self, namespace: str, paths: dict[int, str]) -> Finding:
        """The finding with its namespace and the path of its entity."""
        entity = self.entity
        if entity is None and self.queue_id is not None:
            entity = paths.get(self.queue_id)
        return replace(self, namespace=namespace, entity=entity)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Sequence numbers of a queue whose messages are lost, as far as that is known."""

    queue_id: int
    first_seq: int
    last_seq: int
    is_exact: bool
    """Whether all of them are lost; otherwise some of the range are."""


@dataclass(slots=True)
class Totals:
    """Messages, the scheduled ones included."""

    found: int = 0
    """Messages that could be read and that belong to an entity."""
    lost: int = 0
    repeated: int = 0
    """Messages that may have been settled already: repeated rather than lost."""

    def add(self, other: Totals) -> None:
        self.found += other.found
        self.lost += other.lost
        self.repeated += other.repeated


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
