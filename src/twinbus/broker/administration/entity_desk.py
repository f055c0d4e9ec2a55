"""Queues over the administration protocol.

Rule 1: PUT creates, and with ``If-Match: *`` it changes. Whether the entity exists is decided in
        the same turn of the loop that makes it, so of two that race one is told 409.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from twinbus.broker.administration.call import Answer, Call
from twinbus.broker.administration.descriptions import QUEUE
from twinbus.broker.administration.facts import queue_facts
from twinbus.broker.administration.refusals import Refused
from twinbus.broker.administration.requests import body_of
from twinbus.broker.administration.values import time_text
from twinbus.broker.administration.xml_reading import description_in
from twinbus.broker.administration.xml_writing import Entry, element, escaped
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.queue import Queue

__all__ = ["delete_entity", "get_entity", "get_namespace", "list_queues", "put_entity"]


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
    return call.one(Entry(call.href("$namespaceinfo"), namespace.name, "NamespaceInfo", content))


async def list_queues(call: Call) -> Answer:
    found = call.namespace.queues()
    return call.many("Queues", "$Resources/queues", found, lambda queue: _entry(call, queue))


async def get_entity(call: Call) -> Answer:
    queue = call.namespace.queue(call.target.path)
    return call.nothing() if queue is None else call.one(_entry(call, queue))


async def put_entity(call: Call) -> Answer:
    described = description_in(await body_of(call.request), {QUEUE.kind})
    return await (_update_queue if call.is_update else _create_queue)(call, described)


async def delete_entity(call: Call) -> Answer:
    path = call.target.path
    if call.namespace.queue(path) is None:
        raise _missing(path)
    await call.namespace.delete_queue(path)
    return Answer(200, b"")


async def _create_queue(call: Call, described: Element) -> Answer:
    path = call.target.path
    values = QUEUE.read(described, call.audience, None)
    description = QueueDescription.from_dict({**values, "path": path})
    call.check_is_missing(call.namespace.queue(path), f"queue {path!a}")
    queue = await call.namespace.create_queue(description)
    return call.one(_entry(call, queue), 201)


async def _update_queue(call: Call, described: Element) -> Answer:
    path = call.target.path
    queue = call.namespace.queue(path)
    if queue is None:
        raise _missing(path)
    before = queue.description
    values = QUEUE.read(described, call.audience, before)
    kept = {
        "path": before.path,
        "display_path": before.display_path,
        "created_at_ms": before.created_at_ms,
    }
    await call.namespace.update_queue(QueueDescription.from_dict({**values, **kept}))
    return call.one(_entry(call, queue))


def _entry(call: Call, queue: Queue) -> Entry:
    described = queue.description
    content = QUEUE.write(described, queue_facts(queue), call.namespace.endpoint, call.version)
    return Entry(
        call.href(described.display_path),
        described.display_path,
        QUEUE.kind,
        content,
        described.created_at_ms,
        described.updated_at_ms,
    )


def _missing(path: str) -> Refused:
    return Refused(404, f"There is no queue {path[:260]!a} here. Create it first.")
