"""The handlers of ATOM requests: the namespace, its entities, subscriptions and rules.

Rule 1: PUT creates, and with ``If-Match: *`` it changes. Whether the entity exists is decided in
        the same turn of the loop that creates it, so of two concurrent requests one gets 409.
Rule 2: the target of a forward is checked against the client's claims (forward_rights.py).
Rule 3: GET of a queue or topic that does not exist returns an empty feed, as the service does; for
        subscriptions and rules it returns 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element

from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.http.atom.entity_xml import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Shape,
    queue_facts,
    topic_facts,
)
from twinbus.broker.http.atom.requests import Answer, Call
from twinbus.broker.http.atom.rule_xml import RULE_KIND, read_rule, rule_text
from twinbus.broker.http.atom.xml import (
    FeedEntry,
    children,
    description_in,
    element,
    escaped,
    local_name,
    time_text,
)
from twinbus.broker.http.request_checks import HttpError
from twinbus.common.entity_path import parse_entity_path

__all__ = [
    "create",
    "delete",
    "delete_entity",
    "delete_rule",
    "delete_subscription",
    "entry_of",
    "find",
    "get_entity",
    "get_namespace",
    "get_rule",
    "get_subscription",
    "list_queues",
    "list_rules",
    "list_subscriptions",
    "list_topics",
    "missing",
    "put_entity",
    "put_rule",
    "put_subscription",
    "update",
]

SHAPES: Final[dict[str, tuple[Shape, type[QueueDescription]]]] = {
    QUEUE.kind: (QUEUE, QueueDescription),
    TOPIC.kind: (TOPIC, TopicDescription),
    SUBSCRIPTION.kind: (SUBSCRIPTION, SubscriptionDescription),
}
_SHAPES_BY_CLASS: Final = {described: shape for shape, described in SHAPES.values()}


def find(call: Call, path: str) -> Queue | None:
    """The entity with that path, whatever its kind."""
    return call.namespace.access.catalogue.find(parse_entity_path(path))


def missing(what: str, path: str) -> HttpError:
    return HttpError(404, f"{what.capitalize()} {path[:260]!a} not found. Create it first.")


async def create(
    call: Call, described: Element, path: str, rules: Sequence[RuleDescription] | None = None
) -> Answer:
    """Create the entity that the element describes."""
    shape, kind = SHAPES[local_name(described)]
    values = shape.read(described, call.audience, None)
    description = kind.from_dict({**values, "path": path})
    found = find(call, path)
    call.check_is_missing(found, f"Entity {path[:260]!a}")
    call.check_forwards(None, description)
    return call.one(
        entry_of(call, await call.namespace.access.create_queue(description, rules)), 201
    )


async def update(call: Call, described: Element, path: str) -> Answer:
    """Change an entity as the element describes it."""
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
    """The entity as an entry of a response."""
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


async def get_namespace(call: Call) -> Answer:
    """The name and the tier of the namespace."""
    namespace = call.namespace
    values = {
        "CreatedTime": time_text(namespace.started_at_ms),
        "MessagingSKU": "Standard",
        "ModifiedTime": time_text(namespace.started_at_ms),
        "Name": escaped(namespace.name),
        "NamespaceType": "Messaging",
    }
    content = "".join(element(name, text) for name, text in values.items())
    return call.one(
        FeedEntry(call.href("$namespaceinfo"), namespace.name, "NamespaceInfo", content)
    )


async def list_queues(call: Call) -> Answer:
    found = call.namespace.queues()
    return await call.many("Queues", "$Resources/queues", found, lambda each: entry_of(call, each))


async def list_topics(call: Call) -> Answer:
    found = call.namespace.topics()
    return await call.many("Topics", "$Resources/topics", found, lambda each: entry_of(call, each))


async def get_entity(call: Call) -> Answer:
    machine = find(call, call.target.path)
    return call.nothing() if machine is None else call.one(entry_of(call, machine))


async def put_entity(call: Call) -> Answer:
    described = description_in(await call.body(), {QUEUE.kind, TOPIC.kind})
    return await (update if call.is_update else create)(call, described, call.target.path)


async def delete_entity(call: Call) -> Answer:
    return await delete(call, call.target.path, "queue or topic")


def _path(call: Call) -> str:
    return f"{call.target.path}/subscriptions/{call.target.subscription}"


def _topic(call: Call) -> Topic:
    topic = call.namespace.topic(call.target.path)
    if topic is None:
        raise missing("topic", call.target.path)
    return topic


def _subscription(call: Call) -> Subscription:
    found = _topic(call).subscriptions.get(call.target.subscription.lower())
    if found is None:
        raise missing("subscription", _path(call))
    return found


async def list_subscriptions(call: Call) -> Answer:
    topic = _topic(call)
    found = [topic.subscriptions[name] for name in sorted(topic.subscriptions)]
    path = f"{topic.description.display_path}/subscriptions"
    return await call.many("Subscriptions", path, found, lambda each: entry_of(call, each))


async def get_subscription(call: Call) -> Answer:
    return call.one(entry_of(call, _subscription(call)))


async def put_subscription(call: Call) -> Answer:
    described = description_in(await call.body(), {SUBSCRIPTION.kind})
    topic = _topic(call)
    path = f"{topic.description.display_path}/subscriptions/{call.target.subscription}"
    if call.is_update:
        return await update(call, described, path)
    first = children(described, [row.element for row in SUBSCRIPTION.rows]).get(
        "DefaultRuleDescription"
    )
    return await create(call, described, path, None if first is None else [read_rule(first)])


async def delete_subscription(call: Call) -> Answer:
    return await delete(call, _subscription(call).description.path, "subscription")


# -- rules --------------------------------------------------------------------------------


async def list_rules(call: Call) -> Answer:
    rules = _subscription(call).rule_list
    return await call.many("Rules", f"{_path(call)}/rules", rules, lambda rule: _entry(call, rule))


async def get_rule(call: Call) -> Answer:
    return call.one(_entry(call, _rule(call)))


async def put_rule(call: Call) -> Answer:
    described = description_in(await call.body(), {RULE_KIND})
    rule = read_rule(described, call.target.rule)
    topic, name = call.target.path, call.target.subscription
    if call.is_update:
        _rule(call)
        return call.one(_entry(call, await call.namespace.update_rule(topic, name, rule)))
    call.check_is_missing(_find_rule(call), f"Rule {rule.name!a}")
    return call.one(_entry(call, await call.namespace.create_rule(topic, name, rule)), 201)


async def delete_rule(call: Call) -> Answer:
    rule = _rule(call)
    await call.namespace.delete_rule(call.target.path, call.target.subscription, rule.name)
    return Answer(200, b"")


def _find_rule(call: Call) -> RuleDescription | None:
    return _subscription(call).find_rule(call.target.rule)


def _rule(call: Call) -> RuleDescription:
    rule = _find_rule(call)
    if rule is None:
        raise missing("rule", f"{_path(call)}/rules/{call.target.rule}")
    return rule


def _entry(call: Call, rule: RuleDescription) -> FeedEntry:
    href = call.href(f"{_path(call)}/rules/{rule.name}")
    made_at_ms = rule.created_at_ms
    return FeedEntry(href, rule.name, RULE_KIND, rule_text(rule), made_at_ms, made_at_ms)
