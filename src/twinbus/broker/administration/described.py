"""Queues, topics and subscriptions alike: told, made and changed by their descriptions.

Rule 1: PUT creates, and with ``If-Match: *`` it changes. Whether the entity exists is decided in
        the same turn of the loop that makes it, so of two that race one is told 409.
Rule 2: where messages go on to is checked against the caller's rights (forward_rights.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element

from twinbus.broker.administration.call import Answer, Call
from twinbus.broker.administration.descriptions import QUEUE, SUBSCRIPTION, TOPIC, Shape
from twinbus.broker.administration.facts import queue_facts, topic_facts
from twinbus.broker.administration.refusals import HttpError
from twinbus.broker.administration.xml_reading import local_name
from twinbus.broker.administration.xml_writing import FeedEntry
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Topic
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.entity_path import parse_entity_path

__all__ = ["create", "delete", "entry_of", "find", "missing", "update"]

SHAPES: Final[dict[str, tuple[Shape, type[QueueDescription]]]] = {
    QUEUE.kind: (QUEUE, QueueDescription),
    TOPIC.kind: (TOPIC, TopicDescription),
    SUBSCRIPTION.kind: (SUBSCRIPTION, SubscriptionDescription),
}
_SHAPES_BY_CLASS: Final = {described: shape for shape, described in SHAPES.values()}


def find(call: Call, path: str) -> Queue | None:
    """The machine behind a path, whatever its kind."""
    return call.namespace.access.catalogue.find(parse_entity_path(path))


def missing(what: str, path: str) -> HttpError:
    return HttpError(404, f"There is no {what} {path[:260]!a} here. Create it first.")


async def create(
    call: Call, described: Element, path: str, rules: Sequence[RuleDescription] | None = None
) -> Answer:
    """Make the entity that the element describes."""
    shape, kind = SHAPES[local_name(described)]
    values = shape.read(described, call.audience, None)
    description = kind.from_dict({**values, "path": path})
    found = find(call, path)
    call.check_is_missing(found, f"name {path[:260]!a}")
    call.check_forwards(None, description)
    return call.one(
        entry_of(call, await call.namespace.access.create_queue(description, rules)), 201
    )


async def update(call: Call, described: Element, path: str) -> Answer:
    """Change an entity to what the element says."""
    shape, kind = SHAPES[local_name(described)]
    machine = find(call, path)
    if machine is None or type(machine.description) is not kind:
        raise missing(kind.kind, path)
    before = machine.description
    values = shape.read(described, call.audience, before)
    kept = {"path": before.path, "display_path": before.display_path}
    description = kind.from_dict({**values, **kept})
    await call.namespace.access.update_queue(
        machine, description, lambda replaced: call.check_forwards(replaced, description)
    )
    return call.one(entry_of(call, machine))


async def delete(call: Call, path: str, what: str) -> Answer:
    machine = find(call, path)
    if machine is None:
        raise missing(what, path)
    await call.namespace.access.delete_queue(machine)
    return Answer(200, b"")


def entry_of(call: Call, machine: Queue) -> FeedEntry:
    """The entity as it is told."""
    description = machine.description
    shape = _SHAPES_BY_CLASS[type(description)]
    facts = topic_facts(machine) if isinstance(machine, Topic) else queue_facts(machine)
    path = description.display_path
    return FeedEntry(
        call.href(path),
        description.name if isinstance(description, SubscriptionDescription) else path,
        shape.kind,
        shape.write(description, facts, call.namespace.endpoint, call.version),
        description.created_at_ms,
        description.updated_at_ms,
    )
