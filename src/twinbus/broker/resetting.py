"""A namespace as if it were new: everything in it goes, or only the messages.

Rule 1: all of it is one transaction. A crash leaves everything or nothing.
Rule 2: an entity that is kept is made anew, with another id: its messages, locks and history are
        those of one that is gone, its links are detached, and housekeeping takes its rows away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.broker.entities.queue import Queue

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


async def reset_namespace(namespace: Namespace, *, keep_entities: bool = False) -> int:
    """Remove all messages and, unless they are kept, all entities; how many there were."""
    entities = namespace.catalogue.queues()
    changes = [namespace.delete_queue(queue) for queue in entities]
    if keep_entities:
        changes += [_made_anew(namespace, queue) for queue in entities]
    # They begin in this order, before anything is written: one transaction takes all of them.
    await asyncio.gather(*changes)
    return len(entities)


async def _made_anew(namespace: Namespace, queue: Queue) -> None:
    await namespace.create_queue(queue.description)
