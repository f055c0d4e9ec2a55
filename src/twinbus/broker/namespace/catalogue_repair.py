"""Repair of a catalogue: checks that the entities of a store fit together, and corrects them.

    read descriptions -> pair dead letters -> name what has no entity -> one entity to a path
    -> topics for subscriptions -> rules -> forwards

Rule 1: no message is dropped. An entity with messages keeps its path, or gets the path
        ``<path>-recovered-<number>`` where another one has it.
Rule 2: of several entities with one path the one with messages keeps it, of several with messages
        the first that was created; empty ones are dropped.
Rule 3: an entity whose description is lost gets default properties; its messages are unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from struct import error as StructError

from twinbus.amqp.errors import AmqpError
from twinbus.broker.engine.descriptions import (
    SUBSCRIPTION_NAME_LENGTH_MAX,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.forwarding import check_forwarding, targets_of, without_forwards
from twinbus.broker.engine.stored_message import chunk_starts, expiry_of, facts_of
from twinbus.broker.namespace.catalogue import KIND_QUEUE, KIND_SUBSCRIPTION, KIND_TOPIC
from twinbus.broker.namespace.catalogue_plan import (
    DEAD_LETTER_SUFFIX,
    KIND_DEAD_LETTER,
    KIND_RULE,
    rule_of,
)
from twinbus.broker.storage.interface import EntityRow
from twinbus.broker.storage.repair.catalogue_rows import (
    CataloguePlan,
    CatalogueRows,
    entity_forgotten,
    entity_missing,
)
from twinbus.broker.storage.repair.findings import Finding, FindingKind, Severity, counted
from twinbus.broker.storage.repair.inspection import ChunkFacts
from twinbus.common.entity_path import ENTITY_PATH_LENGTH_MAX
from twinbus.errors import TwinbusError

_DESCRIBED: dict[str, type[QueueDescription]] = {
    KIND_QUEUE: QueueDescription,
    KIND_TOPIC: TopicDescription,
    KIND_SUBSCRIPTION: SubscriptionDescription,
}
_SUBSCRIPTIONS = "/subscriptions/"


def check_catalogue(rows: CatalogueRows) -> CataloguePlan:
    """The entities as a broker can serve them."""
    return _CatalogueRepair(rows).plan()


def read_chunk(blob: bytes, count: int) -> ChunkFacts:
    """The earliest expiry of a chunk's messages, and their session."""
    try:
        starts = chunk_starts(blob, count)
        expiries = [expiry_of(blob, starts[at]) for at in range(count)]
        session_id = facts_of(blob[starts[0] : starts[1]]).session_id
    except (LookupError, ArithmeticError, StructError, AmqpError, TwinbusError) as error:
        raise ValueError("the messages of a chunk cannot be read") from error
    return ChunkFacts(min((at for at in expiries if at is not None), default=None), session_id)


class _Entity:
    """A queue, topic or subscription of the new catalogue."""

    def __init__(self, queue_id: int, description: QueueDescription) -> None:
        self.queue_id = queue_id
        self.description = description
        self.dead_id: int | None = None

    @property
    def path(self) -> str:
        return self.description.path


class _Forwards:
    """The entities of a namespace with those of their forwards that were checked."""

    def __init__(self, descriptions: list[QueueDescription]) -> None:
        self.known = {each.path: without_forwards(each, targets_of(each)) for each in descriptions}
        self._sources: dict[str, list[str]] = defaultdict(list)
        self._subscriptions: dict[str, list[str]] = defaultdict(list)
        for each in descriptions:
            if isinstance(each, SubscriptionDescription):
                self._subscriptions[each.topic_path].append(each.path)
                self._sources[each.path].append(each.topic_path)

    def keep(self, description: QueueDescription) -> None:
        self.known[description.path] = description
        for target in targets_of(description):
            self._sources[target].append(description.path)

    def connected_to(self, description: QueueDescription) -> list[QueueDescription]:
        """The entities before and behind an entity. Its forwards affect only these, and a check of
        a whole namespace with thousands of entities for each of them would take long."""
        behind = self._reached(targets_of(description), self._following)
        behind |= self._reached(self._subscriptions.get(description.path, ()), self._following)
        before = self._reached(self._sources.get(description.path, ()), self._preceding)
        paths = sorted((behind | before) - {description.path})
        return [self.known[path] for path in paths if path in self.known]

    def _following(self, path: str) -> Iterable[str]:
        targets = targets_of(self.known[path]) if path in self.known else []
        return [*targets, *self._subscriptions.get(path, ())]

    def _preceding(self, path: str) -> Iterable[str]:
        return self._sources.get(path, ())

    def _reached(self, first: Iterable[str], step: Callable[[str], Iterable[str]]) -> set[str]:
        found: set[str] = set()
        waiting = list(first)
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += step(path)
        return found


class _CatalogueRepair:
    def __init__(self, rows: CatalogueRows) -> None:
        self._rows = rows
        self._plan = CataloguePlan([])
        self._orphans = set(rows.orphans)
        self._entities: list[_Entity] = []
        self._paths: set[str] = set()
        """The paths of the entities, while dead letters are assigned to them."""
        self._dead: dict[int, str] = {}
        self._rules: list[EntityRow] = []
        self._old_ids = {row.queue_id for row in (*rows.entities, *rows.unsealed)}

    def plan(self) -> CataloguePlan:
        for row in self._rows.unsealed:
            self._report(
                FindingKind.ENTITY_UNREADABLE,
                f"The row of the entity {row.path!r} does not match its checksum.",
                "It is kept as far as it is readable; check its properties.",
                row.path,
            )
        for row in sorted([*self._rows.entities, *self._rows.unsealed], key=lambda r: r.queue_id):
            self._classify(row)
        self._orphans -= self._old_ids
        self._pair_dead_letters()
        self._name_orphans()
        self._resolve_duplicates()
        self._provide_topics()
        self._add_dead_letters()
        self._check_forwards()
        self._check_rules()
        self._write()
        return self._plan

    def _report(
        self,
        kind: FindingKind,
        sentence: str,
        repair: str,
        entity: str | None = None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        finding = Finding(
            kind=kind, sentence=sentence, repair=repair, entity=entity, severity=severity
        )
        self._plan.findings.append(finding)

    def _holds(self, entity: _Entity) -> int:
        """Messages of an entity and of its dead letters."""
        contents = self._rows.contents
        dead = 0 if entity.dead_id is None else contents.get(entity.dead_id, 0)
        return contents.get(entity.queue_id, 0) + dead

    # -- reading --------------------------------------------------------------------------

    def _classify(self, row: EntityRow) -> None:
        if row.kind == KIND_DEAD_LETTER:
            self._dead[row.queue_id] = row.path
        elif row.kind == KIND_RULE:
            self._rules.append(row)
        elif row.kind in _DESCRIBED:
            self._entities.append(_Entity(row.queue_id, self._described(row)))
        else:
            self._unknown(row)

    def _described(self, row: EntityRow) -> QueueDescription:
        described = _DESCRIBED[row.kind]
        try:
            description = described.from_json(row.description_json)
            if description.path == row.path:
                return description
            reason = "names another path"
        except (TwinbusError, ValueError, TypeError, RecursionError):
            reason = "cannot be read"
        self._report(
            FindingKind.ENTITY_UNREADABLE,
            f"The description of the {row.kind} {row.path!r} {reason}.",
            "It gets default properties; its messages are kept.",
            row.path,
        )
        return self._default(row.queue_id, row.kind, row.path)

    def _default(self, queue_id: int, kind: str, path: str) -> QueueDescription:
        has_sessions = queue_id in self._rows.sessions and kind != KIND_TOPIC
        try:
            return _DESCRIBED[kind](path=path, requires_session=has_sessions)
        except TwinbusError:
            return QueueDescription(path=f"recovered-{queue_id}", requires_session=has_sessions)

    def _unknown(self, row: EntityRow) -> None:
        holds = self._rows.contents.get(row.queue_id, 0)
        self._report(
            FindingKind.ENTITY_UNREADABLE,
            f"The entity {row.path!r} has the unknown kind {row.kind[:40]!r}.",
            "It becomes a queue, because it holds messages."
            if holds
            else "It is empty and is dropped.",
            row.path,
        )
        if holds:
            description = self._default(row.queue_id, KIND_QUEUE, row.path)
            self._entities.append(_Entity(row.queue_id, description))
        else:
            self._plan.dropped.add(row.queue_id)

    # -- dead letters ---------------------------------------------------------------------

    def _pair_dead_letters(self) -> None:
        """An entity and its dead letters are created together, with consecutive numbers."""
        owners = [each for each in self._entities if each.description.gives_messages]
        for entity in owners:
            if self._dead.get(entity.queue_id + 1) == entity.path + DEAD_LETTER_SUFFIX:
                entity.dead_id = entity.queue_id + 1
                del self._dead[entity.dead_id]
        by_path: dict[str, list[int]] = defaultdict(list)
        for dead_id in sorted(self._dead, reverse=True):
            by_path[self._dead[dead_id]].append(dead_id)
        for entity in owners:
            left = by_path.get(entity.path + DEAD_LETTER_SUFFIX)
            if entity.dead_id is None and left:
                entity.dead_id = left.pop()
                del self._dead[entity.dead_id]
        self._paths = {each.path for each in self._entities}
        for dead_id, path in self._dead.items():
            self._adopt(dead_id, path.removesuffix(DEAD_LETTER_SUFFIX))

    def _adopt(self, dead_id: int, owner_path: str) -> None:
        """Dead letters without their owner: it is created, or they are dropped when empty."""
        has_owner = owner_path in self._paths
        holds = self._rows.contents.get(dead_id, 0)
        sentence = f"{owner_path!r} is missing, but its dead-letter queue exists."
        if has_owner:
            sentence = f"{owner_path!r} has two dead-letter queues."
        if dead_id - 1 in self._orphans and not has_owner:
            self._orphans.discard(dead_id - 1)
            entity = self._create_owner(dead_id - 1, owner_path, dead_id)
            repair = f"The {entity.description.kind} {entity.path!r} is created with default "
            repair += "properties and its messages."
        elif not holds:
            self._plan.dropped.add(dead_id)
            repair = "It is empty and is dropped."
        elif has_owner:
            path = self._free_path(owner_path, dead_id)
            self._append(_Entity(dead_id, self._default(dead_id, KIND_QUEUE, path)))
            repair = f"Its messages are in the queue {path!r}."
        else:
            entity = self._create_owner(self._rows.take_id(), owner_path, dead_id)
            repair = f"The {entity.description.kind} {entity.path!r} is created."
        self._report(FindingKind.DEAD_LETTER_MISSING, sentence, repair, owner_path)

    def _create_owner(self, queue_id: int, path: str, dead_id: int) -> _Entity:
        kind = KIND_SUBSCRIPTION if _SUBSCRIPTIONS in path else KIND_QUEUE
        entity = _Entity(queue_id, self._default(queue_id, kind, path))
        entity.dead_id = dead_id
        self._append(entity)
        return entity

    def _append(self, entity: _Entity) -> None:
        self._entities.append(entity)
        self._paths.add(entity.path)

    def _name_orphans(self) -> None:
        """Rows whose entity does not exist."""
        for entity in self._entities:
            has_dead_letters = entity.description.gives_messages and entity.dead_id is None
            if has_dead_letters and entity.queue_id + 1 in self._orphans:
                entity.dead_id = entity.queue_id + 1
                self._orphans.discard(entity.dead_id)
                self._report_no_dead_letters(entity)
        for queue_id in sorted(self._orphans):
            if queue_id not in self._orphans:
                continue
            if self._is_empty(queue_id):
                self._plan.dropped.add(queue_id)
                self._plan.findings.append(entity_forgotten(queue_id))
                continue
            path = f"recovered-{queue_id}"
            entity = _Entity(queue_id, self._default(queue_id, KIND_QUEUE, path))
            self._entities.append(entity)
            self._plan.findings.append(entity_missing(queue_id, path))
            if queue_id + 1 in self._orphans and self._is_empty(queue_id + 1):
                # A queue and its dead letters have consecutive numbers.
                entity.dead_id = queue_id + 1
                self._orphans.discard(entity.dead_id)

    def _is_empty(self, queue_id: int) -> bool:
        return not self._rows.contents.get(queue_id) and queue_id not in self._rows.sessions

    def _report_no_dead_letters(self, entity: _Entity) -> None:
        self._report(
            FindingKind.DEAD_LETTER_MISSING,
            f"The {entity.description.kind} {entity.path!r} has no dead-letter queue.",
            "It gets one.",
            entity.path,
        )

    def _add_dead_letters(self) -> None:
        for entity in self._entities:
            if entity.dead_id is None and entity.description.gives_messages:
                if entity.queue_id in self._old_ids:
                    self._report_no_dead_letters(entity)
                entity.dead_id = self._rows.take_id()

    # -- one entity to a path -------------------------------------------------------------

    def _resolve_duplicates(self) -> None:
        by_path: dict[str, list[_Entity]] = defaultdict(list)
        for entity in self._entities:
            by_path[entity.path].append(entity)
        topics = {
            entity.description.topic_path
            for entity in self._entities
            if isinstance(entity.description, SubscriptionDescription)
        }
        kept: list[_Entity] = []
        for path, entities in by_path.items():
            stays = max(entities, key=lambda each: self._rank(each, topics))
            kept.append(stays)
            for entity in entities:
                if entity is not stays:
                    kept += self._rename_or_drop(entity, path, stays)
        self._entities = kept

    def _rank(self, entity: _Entity, topics: set[str]) -> tuple[bool, bool, bool, int]:
        """The highest rank keeps a path that several entities have."""
        is_needed = entity.description.kind == KIND_TOPIC and entity.path in topics
        is_counted = entity.queue_id in self._rows.counted
        return is_needed, self._holds(entity) > 0, is_counted, -entity.queue_id

    def _rename_or_drop(self, entity: _Entity, path: str, stays: _Entity) -> list[_Entity]:
        holds = self._holds(entity)
        kinds = f"a {stays.description.kind} and a {entity.description.kind}"
        if stays.description.kind == entity.description.kind:
            kinds = f"two {entity.description.kind}s"
        sentence = f"The path {path!r} belongs to {kinds} (numbers {stays.queue_id} and "
        sentence += f"{entity.queue_id})."
        if not holds:
            self._plan.dropped.add(entity.queue_id)
            if entity.dead_id is not None:
                self._plan.dropped.add(entity.dead_id)
            repair = f"Number {entity.queue_id} is empty and is dropped."
            self._report(FindingKind.ENTITY_DUPLICATE, sentence, repair, path)
            return []
        new_path = self._free_path(path, entity.queue_id)
        entity.description = self._renamed(entity, new_path)
        messages = counted(holds, "message")
        repair = f"Number {entity.queue_id} with {messages} becomes {entity.path!r}."
        self._report(FindingKind.ENTITY_DUPLICATE, sentence, repair, path)
        return [entity]

    def _renamed(self, entity: _Entity, path: str) -> QueueDescription:
        """The description under another path, without forwards and auto-delete on idle."""
        description = entity.description
        if isinstance(description, TopicDescription):
            # A topic without subscriptions would drop what is scheduled.
            return QueueDescription(path=path)
        return replace(
            description,
            path=path,
            display_path=path,
            forward_to=None,
            forward_dead_lettered_messages_to=None,
            auto_delete_on_idle_ms=None,
        )

    def _free_path(self, path: str, number: int) -> str:
        suffix = f"-recovered-{number}"
        head, separator, name = path.rpartition(_SUBSCRIPTIONS)
        if separator:
            return head + separator + name[: SUBSCRIPTION_NAME_LENGTH_MAX - len(suffix)] + suffix
        return path[: ENTITY_PATH_LENGTH_MAX - len(suffix)] + suffix

    # -- topics, rules, forwards ----------------------------------------------------------

    def _provide_topics(self) -> None:
        kinds = {each.path: each.description.kind for each in self._entities}
        for entity in list(self._entities):
            description = entity.description
            if not isinstance(description, SubscriptionDescription):
                continue
            topic_path = description.topic_path
            kind = kinds.get(topic_path)
            if kind == KIND_TOPIC:
                continue
            sentence = f"The subscription {entity.path!r} has no topic {topic_path!r}."
            if kind is None:
                kinds[topic_path] = KIND_TOPIC
                description_of_topic = self._default(0, KIND_TOPIC, topic_path)
                self._entities.append(_Entity(self._rows.take_id(), description_of_topic))
                repair = "The topic is created with default properties."
            else:
                path = f"recovered-{entity.queue_id}"
                entity.description = QueueDescription(
                    path=path, requires_session=description.requires_session
                )
                repair = f"Its messages are in the queue {path!r}: a {kind} has that path."
            self._report(FindingKind.TOPIC_MISSING, sentence, repair, entity.path)

    def _check_rules(self) -> None:
        subscriptions = {
            each.path for each in self._entities if each.description.kind == KIND_SUBSCRIPTION
        }
        kept: dict[str, EntityRow] = {}
        for row in sorted(self._rules, key=lambda each: each.queue_id, reverse=True):
            owner = row.path.rpartition("/rules/")[0]
            try:
                rule_of(row)
            except (TwinbusError, ValueError, KeyError, TypeError, AttributeError):
                self._drop_rule(row, FindingKind.ENTITY_UNREADABLE, "cannot be read")
                continue
            if owner not in subscriptions:
                self._drop_rule(row, FindingKind.SUBSCRIPTION_MISSING, "has no subscription")
            elif row.path in kept:
                self._drop_rule(row, FindingKind.ENTITY_DUPLICATE, "exists twice")
            else:
                kept[row.path] = row
        self._rules = list(kept.values())

    def _drop_rule(self, row: EntityRow, kind: FindingKind, what: str) -> None:
        newest = (
            "The newest one is kept." if kind is FindingKind.ENTITY_DUPLICATE else "It is dropped."
        )
        self._plan.dropped.add(row.queue_id)
        self._report(kind, f"The rule {row.path!r} {what}.", newest, row.path)

    def _check_forwards(self) -> None:
        """Check forwards one after the other, so that the one that closes a circle is found.

        Entities with messages come last: their forwards are removed, and the messages stay.
        """
        forwards = _Forwards([each.description for each in self._entities])
        known = forwards.known
        forwarding = [each for each in self._entities if targets_of(each.description)]
        for entity in sorted(forwarding, key=lambda each: (self._holds(each), each.queue_id)):
            description = entity.description
            missing = [
                path
                for path in targets_of(description)
                if path not in known or not known[path].takes_messages
            ]
            for path in missing:
                self._report(
                    FindingKind.FORWARD_TARGET_MISSING,
                    f"The {description.kind} {entity.path!r} forwards to {path!r}, which does not "
                    "exist.",
                    # A new entity of that name is not the one that was allowed (rule M14).
                    "The forward is removed; the messages stay.",
                    entity.path,
                    Severity.WARNING,
                )
            entity.description = description = without_forwards(description, missing)
            try:
                check_forwarding(description, forwards.connected_to(description))
            except TwinbusError:
                self._report(
                    FindingKind.FORWARD_CIRCLE,
                    f"The forwards of the {description.kind} {entity.path!r} form a circle, are "
                    "too many in a row, or start at a queue with sessions.",
                    "Its forwards are removed; its messages stay.",
                    entity.path,
                )
                targets = targets_of(description)
                entity.description = description = without_forwards(description, targets)
            forwards.keep(description)

    # -- writing --------------------------------------------------------------------------

    def _write(self) -> None:
        rows = list(self._rules)
        for entity in self._entities:
            description = entity.description
            text = description.to_json()
            rows.append(EntityRow(entity.queue_id, entity.path, description.kind, text))
            if description.requires_session:
                self._plan.with_sessions.add(entity.queue_id)
            if entity.dead_id is not None:
                path = entity.path + DEAD_LETTER_SUFFIX
                rows.append(EntityRow(entity.dead_id, path, KIND_DEAD_LETTER, ""))
        self._plan.entities = sorted(rows, key=lambda each: each.queue_id)
        kept = {row.queue_id for row in self._plan.entities if row.kind != KIND_RULE}
        self._plan.with_counters = kept & self._old_ids
