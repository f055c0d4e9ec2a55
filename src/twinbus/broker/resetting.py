"""A namespace as if it were new: everything in it goes, or only the messages.

Rule 1: all of it is one transaction. A crash leaves everything or nothing; on a full disk it is
        refused, and nothing has changed (rule M15).
Rule 2: an entity that is kept is made anew, with another id: its messages, locks and history are
        those of one that is gone, its links are detached, and housekeeping takes its rows away.
Rule 3: an entity that is kept is described as before, also if it forwards to one that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.catalogue_plan import Draft

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


async def reset_namespace(namespace: Namespace, *, keep_entities: bool = False) -> int:
    """Remove all messages and, unless they are kept, all entities; how many there were."""
    count = 0

    def plan(draft: Draft) -> None:
        nonlocal count
        count = draft.reset(keep_entities=keep_entities, at_ms=namespace.now().wall_ms)

    await namespace.changed(plan)
    return count
