"""Who looks after entities by themselves, without a peer that asks: forwarding, and idle ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.queue import Queue
from twinbus.broker.forwarding import Forwarding
from twinbus.broker.idleness import Idleness

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace


class Caretakers:
    """The caretakers of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._forwarding = Forwarding(namespace)
        self._idleness = Idleness(namespace)
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
