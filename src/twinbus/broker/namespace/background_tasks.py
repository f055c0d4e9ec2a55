"""The background tasks of a namespace, and auto-delete on idle (rule M3).

An entity is in use while a link to it is open (sending, receiving, management; of a topic, also to
its subscriptions), or while it has scheduled messages. It was used when a link was opened since the
last check, when it was changed, or when something was sent to it; a message that a topic passes on
does not count as use of the subscription, as in Azure.

Rule 1: never too early. A check that finds an entity used, or in use until just now, restarts its
        idle time; so it is deleted between 1 and 1.25 times its idle time after its last use.
Rule 2: checks cost nothing while no entity has auto-delete on idle. Links are counted by path as
        they open and close, so that a check costs in proportion to the entities with auto-delete
        on idle, a few hundred at a time.
Rule 3: a restart of the broker restarts all idle times, and a deletion that the disk refused
        restarts that of its entity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.namespace.forwarder import Forwarding
from twinbus.broker.namespace.idle_links import IdleLinks

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace

logger = logging.getLogger("twinbus.broker")

# Between two checks: short enough for a test with one second, long for five minutes.
CHECK_S_MIN = 0.2
CHECK_S_MAX = 30.0
CHECKS_PER_IDLE_TIME = 4
# Entities that are checked before others have their turn.
CHECKED_PER_TURN = 256


class _Watched:
    """The last observed use of one entity."""

    def __init__(self, marks: object, now_s: float) -> None:
        self.marks = marks
        self.was_in_use = False
        self.idle_since_s = now_s


class AutoDelete:
    """Deletes the idle entities of one namespace that have auto-delete on idle."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._watched: dict[Queue, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def entity_changed(self, entity: Queue) -> None:
        """An entity was created, changed or deleted: its idle time restarts, or ends."""
        if entity.is_deleted or entity.description.auto_delete_on_idle_ms is None:
            self._watched.pop(entity, None)
        else:
            now_s = self._namespace.now().monotonic_s
            self._watched[entity] = _Watched(_marks(entity), now_s)
            self._set_timer()

    def stop(self) -> None:
        self._is_stopped = True
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched:
            shortest_s = min(map(_idle_s, self._watched))
            pause_s = min(max(shortest_s / CHECKS_PER_IDLE_TIME, CHECK_S_MIN), CHECK_S_MAX)
            self._timer = self._namespace.call_later(pause_s, self.check)

    def check(self) -> None:
        """Note which entities are in use; delete those that were idle for long enough."""
        self._check_some(iter(list(self._watched)))

    def _check_some(self, entities: Iterator[Queue]) -> None:
        for entity in islice(entities, CHECKED_PER_TURN):
            watched = self._watched.get(entity)
            if watched is None:
                continue
            now_s = self._namespace.now().monotonic_s
            is_in_use = self._is_in_use(entity)
            marks = _marks(entity)
            if is_in_use or watched.was_in_use or marks != watched.marks:
                watched.idle_since_s = now_s
            elif now_s - watched.idle_since_s >= _idle_s(entity):
                self._delete(entity)
            watched.was_in_use, watched.marks = is_in_use, marks
        rest = list(entities)
        if rest and not self._is_stopped:
            self._namespace.call_later(0, partial(self._check_some, iter(rest)))
        else:
            self._set_timer()

    def _is_in_use(self, entity: Queue) -> bool:
        return entity.scheduled_count > 0 or self._namespace.linked[entity.description.path] > 0

    def _delete(self, entity: Queue) -> None:
        self._watched.pop(entity, None)
        kind, path = entity.description.kind, entity.description.path
        name = self._namespace.name

        def finished(error: Exception | None) -> None:
            if error is None:
                logger.info("Namespace %s: the idle %s %s was deleted", name, kind, path)
                return
            # It still exists, and its idle time restarts.
            logger.warning(
                "Namespace %s: the idle %s %s could not be deleted: %s", name, kind, path, error
            )
            if self._namespace.failure is None and not self._is_stopped:
                self.entity_changed(entity)

        self._namespace.submit(lambda draft: draft.delete(entity.queue_id, path), finished)


def _idle_s(entity: Queue) -> float:
    return (entity.description.auto_delete_on_idle_ms or 0) / 1000


def entities_kept_by(link_path: str) -> Iterator[str]:
    """The paths of the entities that a link keeps in use: its own node, the entity to which that
    node belongs, and for a subscription the topic, too."""
    yield link_path
    at = link_path.find("/")
    while at >= 0:
        if link_path.startswith(("$", "subscriptions/"), at + 1):
            yield link_path[:at]
        at = link_path.find("/", at + 1)


def _marks(entity: Queue) -> object:
    """A value that differs after any use of the entity, however short."""
    machines = [entity, *([] if entity.dead_letters is None else [entity.dead_letters])]
    if isinstance(entity, Topic):
        machines += entity.subscriptions.values()
    visits = sum(machine.visit_count for machine in machines)
    if isinstance(entity, Subscription):
        return visits, tuple(entity.rule_ids)
    return visits, sum(machine.next_seq for machine in machines)


class BackgroundTasks:
    """The background tasks of one namespace: forwarding, auto-delete on idle, idle links."""

    def __init__(self, namespace: Namespace) -> None:
        self._forwarding = Forwarding(namespace)
        self._auto_delete = AutoDelete(namespace)
        idle_s = namespace.options.idle_detach_s
        self._idle_links = None if idle_s is None else IdleLinks(namespace, idle_s)
        for entity in namespace.catalogue.entities():
            self.entity_changed(entity)

    def entity_changed(self, entity: Queue) -> None:
        """An entity was created, changed or deleted."""
        self._forwarding.entity_changed(entity)
        self._auto_delete.entity_changed(entity)

    def clock_moved(self) -> None:
        self._auto_delete.check()

    def stop(self) -> None:
        self._forwarding.stop()
        self._auto_delete.stop()
        if self._idle_links is not None:
            self._idle_links.stop()
