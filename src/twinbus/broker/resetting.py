"""A namespace as if it were new: everything in it goes, or only the messages.

Rule 1: all of it is one transaction. A crash leaves everything or nothing.
Rule 2: an entity that is kept is made anew, with another id: its messages, locks and history are
        those of one that is gone, its links are detached, and housekeeping takes its rows away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.forwarding import targets_first
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Subscription

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


async def reset_namespace(namespace: Namespace, *, keep_entities: bool = False) -> int:
    """Remove all messages and, unless they are kept, all entities; how many there were."""
    catalogue = namespace.catalogue
    tops = [*catalogue.queues(), *catalogue.topics()]
    subscriptions = [each for topic in catalogue.topics() for each in topic.subscriptions.values()]
    wanted = [(queue.description, _rules(queue)) for queue in [*tops, *subscriptions]]
    # A topic takes its subscriptions with it.
    changes: list[Coroutine[Any, Any, object]] = [namespace.delete_queue(queue) for queue in tops]
    if keep_entities:
        changes += [namespace.create_queue(*each) for each in targets_first(wanted)]
    # They begin in this order, before anything is written: one transaction takes all of them.
    await asyncio.gather(*changes)
    return len(wanted)


def _rules(queue: Queue) -> list[RuleDescription] | None:
    return queue.rules if isinstance(queue, Subscription) else None
