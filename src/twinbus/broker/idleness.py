"""Entities that go when nobody needs them any more (auto-delete on idle, rule M3).

An entity is in use while a link to it is open (sending, receiving, management; of a topic, also to
its subscriptions), or while it has scheduled messages. It was used when a link was opened since the
last look, when it was changed, or when something was sent to it; what a topic passes on to a
subscription is no use of that subscription, as in Azure.

Rule 1: never too early. A look that finds an entity used, or in use until just now, starts its time
        anew; so it goes between one and one and a quarter of its time after its last use.
Rule 2: looks cost nothing while no entity wants them.
Rule 3: a restart starts everybody's time anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic import Subscription, Topic
from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace

logger = logging.getLogger("twinbus.broker")

# A look goes over all links: often enough for a test with one second, seldom for five minutes.
LOOK_S_MIN = 0.2
LOOK_S_MAX = 30.0
LOOKS_PER_IDLE_TIME = 4


class _Watched:
    """What is known about one entity."""

    def __init__(self, marks: object, now_s: float) -> None:
        self.marks = marks
        self.was_in_use = False
        self.idle_since_s = now_s


class Idleness:
    """Watches the entities of one namespace that want to be deleted when idle."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._watched: dict[Queue, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._deletions: set[asyncio.Task[None]] = set()

    def look_at(self, entity: Queue) -> None:
        """An entity was made, changed or deleted: its time starts anew, or ends."""
        if entity.is_deleted or entity.description.auto_delete_on_idle_ms is None:
            self._watched.pop(entity, None)
        else:
            now_s = self._namespace.now().monotonic_s
            self._watched[entity] = _Watched(_marks(entity), now_s)
            self._set_timer()

    def stop(self) -> None:
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched:
            shortest_s = min(map(_idle_s, self._watched))
            pause_s = min(max(shortest_s / LOOKS_PER_IDLE_TIME, LOOK_S_MIN), LOOK_S_MAX)
            self._timer = self._namespace.call_later(pause_s, self.look)

    def look(self) -> None:
        """Note who is in use; delete who was not for long enough."""
        now_s = self._namespace.now().monotonic_s
        linked = self._linked_paths()
        for entity, watched in list(self._watched.items()):
            is_in_use = _is_in_use(entity, linked)
            marks = _marks(entity)
            if is_in_use or watched.was_in_use or marks != watched.marks:
                watched.idle_since_s = now_s
            elif now_s - watched.idle_since_s >= _idle_s(entity):
                self._delete(entity)
            watched.was_in_use, watched.marks = is_in_use, marks
        self._set_timer()

    def _linked_paths(self) -> set[str]:
        return {end.path for peer in self._namespace.peers for _link, end in peer.links_and_ends()}

    def _delete(self, entity: Queue) -> None:
        self._watched.pop(entity, None)
        deletion = asyncio.get_running_loop().create_task(self._deleted(entity))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _deleted(self, entity: Queue) -> None:
        if entity.is_deleted:
            # Its topic was idle as well, and took it along.
            return
        kind, path = entity.description.kind, entity.description.path
        logger.info("namespace %s: the %s %s is deleted: idle", self._namespace.name, kind, path)
        try:
            await self._namespace.delete_queue(entity)
        except TwinbusError as error:
            # It is gone for everybody; the disk will know of it when it can.
            logger.warning("namespace %s: %s", self._namespace.name, error)


def _idle_s(entity: Queue) -> float:
    return (entity.description.auto_delete_on_idle_ms or 0) / 1000


def _is_in_use(entity: Queue, linked: set[str]) -> bool:
    path = entity.description.path
    if entity.scheduled_count:
        return True
    return any(_belongs(each, path) for each in linked)


def _belongs(link_path: str, entity_path: str) -> bool:
    """Whether a link leads to the entity, to a node below it, or to a subscription of it."""
    if link_path == entity_path:
        return True
    rest = link_path.removeprefix(entity_path + "/")
    return rest != link_path and rest.startswith(("$", "subscriptions/"))


def _marks(entity: Queue) -> object:
    """What is different after somebody used the entity, however shortly."""
    machines = [entity, *([] if entity.dead_letters is None else [entity.dead_letters])]
    if isinstance(entity, Topic):
        machines += entity.subscriptions.values()
    visits = sum(machine.visit_count for machine in machines)
    if isinstance(entity, Subscription):
        return visits, tuple(entity.rule_ids)
    return visits, sum(machine.next_seq for machine in machines)
