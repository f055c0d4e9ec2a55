"""Who looks after entities and links, without a peer that asks: forwarding, and idle ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.queue import Queue
from twinbus.broker.forwarding import Forwarding
from twinbus.broker.idle_links import IdleLinks
from twinbus.broker.idleness import AutoDelete

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


class BackgroundTasks:
    """The caretakers of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._forwarding = Forwarding(namespace)
        self._idleness = AutoDelete(namespace)
        idle_s = namespace.options.idle_detach_s
        self._idle_links = None if idle_s is None else IdleLinks(namespace, idle_s)
        for entity in namespace.catalogue.entities():
            self.entity_changed(entity)

    def entity_changed(self, entity: Queue) -> None:
        """An entity was made, changed or deleted."""
        self._forwarding.entity_changed(entity)
        self._idleness.entity_changed(entity)

    def clock_moved(self) -> None:
        self._idleness.look()

    def stop(self) -> None:
        self._forwarding.stop()
        self._idleness.stop()
        if self._idle_links is not None:
            self._idle_links.stop()
