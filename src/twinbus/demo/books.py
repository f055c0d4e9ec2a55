"""Who sent what, what arrived where, and what is missing.

    attempted --acknowledged--> expected in every place of its entity --arrived--> delivered
        '-----failed-----> may arrive all the same

Rule 1: a message is delivered when it has arrived in every place: a topic's in each subscription.
Rule 2: lost is what was acknowledged and is not delivered. Unexpected is what nobody sent there.
Rule 3: no clock and no network here; moments come in as arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["DeliveryCheck"]


class DeliveryCheck:
    """The counts of one run, message by message."""

    def __init__(self, destinations: Mapping[str, tuple[str, ...]]) -> None:
        self._destinations = destinations
        self._attempted: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._acknowledged: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._detoured: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._arrived: dict[str, Counter[str]] = {
            place: Counter() for places in destinations.values() for place in places
        }
        self.failed_sends = 0
        """Messages whose send ended with an error."""

    # -- what happens -------------------------------------------------------------------------

    def attempt(self, entity: str, ids: Iterable[str]) -> None:
        self._attempted[entity].update(ids)

    def acknowledge(self, entity: str, ids: Iterable[str], *, is_detoured: bool) -> None:
        self._acknowledged[entity].update(ids)
        if is_detoured:
            self._detoured[entity].update(ids)

    def fail(self, count: int) -> None:
        self.failed_sends += count

    def arrive(self, place: str, message_id: str) -> None:
        self._arrived[place][message_id] += 1

    # -- what came of it ----------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self._acknowledged.values()))

    @property
    def detoured(self) -> int:
        """Messages that were acknowledged while their entity was diverted."""
        return sum(map(len, self._detoured.values()))

    @property
    def diverted_missing(self) -> int:
        """Of these, messages that have not arrived yet."""
        return sum(len(self._missing(entity, ids)) for entity, ids in self._detoured.items())

    @property
    def copies(self) -> int:
        """Everything that arrived, whatever it was."""
        return sum(counter.total() for counter in self._arrived.values())

    @property
    def lost(self) -> list[str]:
        """The ids of what was acknowledged and has not arrived everywhere."""
        return sorted(
            message_id
            for entity, ids in self._acknowledged.items()
            for message_id in self._missing(entity, ids)
        )

    @property
    def delivered(self) -> int:
        return self.sent - len(self.lost)

    @property
    def duplicates(self) -> int:
        """Copies beyond the first in a place."""
        return sum(counter.total() - len(counter) for counter in self._arrived.values())

    @property
    def unexpected(self) -> list[str]:
        """The ids of what arrived where nobody had sent it."""
        return sorted(
            message_id
            for entity, places in self._destinations.items()
            for place in places
            for message_id in self._arrived[place].keys() - self._attempted[entity]
        )

    def _missing(self, entity: str, ids: set[str]) -> set[str]:
        places = self._destinations[entity]
        return {each for place in places for each in ids - self._arrived[place].keys()}
