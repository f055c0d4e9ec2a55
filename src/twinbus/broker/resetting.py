"""A namespace as if it were new: everything in it goes, or only the messages.

Rule 1: all of it is one transaction. A crash leaves everything or nothing; on a full disk it holds
        at once for everybody, and on disk as soon as there is room.
Rule 2: an entity that is kept is made anew, with another id: its messages, locks and history are
        those of one that is gone, its links are detached, and housekeeping takes its rows away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.forwarding import targets_first
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Subscription
from twinbus.broker.store.port import Op

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


async def reset_namespace(namespace: Namespace, *, keep_entities: bool = False) -> int:
    """Remove all messages and, unless they are kept, all entities; how many there were."""
    entities = namespace.catalogue.entities()
    wanted = [(queue.description, _rules(queue)) for queue in entities]
    ops: list[Op] = []
    for queue in entities:
        # A topic takes its subscriptions with it.
        ops += namespace.withdraw(queue)
    if keep_entities:
        for description, rules in targets_first(wanted):
            made, more = namespace.make(description, rules)
            ops += more
            namespace.caretakers.look_at(made)
    await namespace.written(ops, is_kept=True)
    return len(wanted)


def _rules(queue: Queue) -> list[RuleDescription] | None:
    return queue.rules if isinstance(queue, Subscription) else None
