"""Who looks after entities and links, without a peer that asks: forwarding, and idle ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.queue import Queue
from twinbus.broker.forwarding import Forwarding
from twinbus.broker.idle_links import IdleLinks
from twinbus.broker.idleness import Idleness

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


class Caretakers:
    """The caretakers of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._forwarding = Forwarding(namespace)
        self._idleness = Idleness(namespace)
        idle_s = namespace.options.idle_detach_s
        self._idle_links = None if idle_s is None else IdleLinks(namespace, idle_s)
        for entity in namespace.catalogue.entities():
            self.look_at(entity)

    def look_at(self, entity: Queue) -> None:
        """An entity was made, changed or deleted."""
        self._forwarding.look_at(entity)
        self._idleness.look_at(entity)

    def clock_moved(self) -> None:
        self._idleness.look()

    def stop(self) -> None:
        self._forwarding.stop()
        self._idleness.stop()
        if self._idle_links is not None:
            self._idle_links.stop()
