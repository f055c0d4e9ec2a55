"""Every operation of a namespace, counted (rule C1).

Rule 1: counting is cheap. An end of a link holds the tally of its own operation; a run of
        messages costs four additions, however long it is.
Rule 2: a tally only grows. What is new since the last line was written is a difference, so
        that nothing is counted twice and the totals can be compared with the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twinbus.core.costs import NOTHING, Amount, Operation


@dataclass(slots=True)
class Tally:
    """One operation on one entity, since the namespace started."""

    entity: str
    operation: Operation
    calls: int = 0
    messages: int = 0
    units: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    written: Amount = NOTHING
    """What the log holds of it."""

    def total(self) -> Amount:
        return Amount(self.calls, self.messages, self.units, self.bytes_in, self.bytes_out)

    def took_in(self, calls: int, messages: int, units: int, size: int) -> None:
        self.calls += calls
        self.messages += messages
        self.units += units
        self.bytes_in += size

    def gave_out(self, messages: int, units: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.units += units
        self.bytes_out += size

    def happened(self) -> None:
        """A request that carries no message."""
        self.calls += 1
        self.units += 1


class Meter:
    """The tallies of one namespace."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, Operation], Tally] = {}

    def tally(self, entity: str, operation: Operation) -> Tally:
        """Where to count an operation on an entity; ask once and keep it."""
        key = entity, operation
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(entity, operation)
        return tally

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._tallies.values())
