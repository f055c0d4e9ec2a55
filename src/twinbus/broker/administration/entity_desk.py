"""The namespace, its queues and its topics over the administration protocol."""

from __future__ import annotations

from twinbus.broker.administration.call import Answer, Call
from twinbus.broker.administration.described import create, delete, entry_of, find, update
from twinbus.broker.administration.descriptions import QUEUE, TOPIC
from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.xml_reading import description_in
from twinbus.broker.administration.xml_writing import FeedEntry, element, escaped

__all__ = [
    "delete_entity",
    "get_entity",
    "get_namespace",
    "list_queues",
    "list_topics",
    "put_entity",
]


async def get_namespace(call: Call) -> Answer:
    """What the namespace is called, and what it can do."""
    namespace = call.namespace
    told = {
        "CreatedTime": time_text(namespace.started_at_ms),
        "MessagingSKU": "Standard",
        "ModifiedTime": time_text(namespace.started_at_ms),
        "Name": escaped(namespace.name),
        "NamespaceType": "Messaging",
    }
    content = "".join(element(name, text) for name, text in told.items())
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
