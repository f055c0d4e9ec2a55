"""Every operation of a namespace, counted (rule C1).

Rule 1: counting is cheap. An end of a link holds the tally of its own operation; a run of
        messages costs five additions, however long it is.
Rule 2: a tally only grows. What is new since the last line was written is a difference, so
        that nothing is counted twice and the totals can be compared with the log.
Rule 3: an entity that was deleted is counted under no name, once its lines are written: whoever
        creates and deletes entities does not fill the memory with their names.
Rule 4: a meter says when much was counted since the last lines, wherever that happens, so that a
        kill never costs more than UNWRITTEN_UNITS_MAX.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from twinbus.core.costs import NOTHING, Amount, Operation

# What a kill may cost at most. A hundred thousand operations are some cents.
UNWRITTEN_UNITS_MAX: Final = 100_000
# Lines are asked for at half of it: as much again may be counted before they are on the disk.
FLUSH_UNITS: Final = UNWRITTEN_UNITS_MAX // 2
# Deleted entities whose names are kept where no lines are written.
GONE_COUNT_MAX: Final = 1_024
# What the dead letters of an entity are counted under is its name with this behind it.
DEAD_LETTERS: Final = "/$deadletterqueue"
# Names that are forgotten for each one that comes: no deletion pays for thousands of earlier ones.
FORGOTTEN_AT_ONCE: Final = 2


@dataclass(slots=True)
class Tally:
    """One operation on one entity, since the namespace started."""

    entity: str
    operation: Operation
    meter: Meter = field(repr=False, compare=False)
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
        meter = self.meter
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.filled()

    def gave_out(self, messages: int, units: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.units += units
        self.bytes_out += size
        meter = self.meter
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.filled()

    def happened(self) -> None:
        """A request that carries no message."""
        self.took_in(1, 0, 1, 0)

    def takes_over(self, other: Tally) -> None:
        """Count what another one has counted, and what of it is written."""
        self.calls, self.messages, self.units, self.bytes_in, self.bytes_out = self.total().plus(
            other.total()
        )
        self.written = self.written.plus(other.written)


class Meter:
    """The tallies of one namespace."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, Operation], Tally] = {}
        self.room_units = FLUSH_UNITS
        """What may still be counted before lines are asked for."""
        self.on_full: Callable[[], object] = lambda: None
        """Called when FLUSH_UNITS were counted since the last lines."""
        self.has_lines = False
        """Whether lines are written; without them only totals are wanted."""
        self._gone: list[str] = []
        self._written_off: deque[str] = deque()
        """Deleted entities whose lines are written."""

    def tally(self, entity: str, operation: Operation) -> Tally:
        """Where to count an operation on an entity; ask once and keep it."""
        key = entity, operation
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(entity, operation, self)
        return tally

    def filled(self) -> None:
        self.room_units = FLUSH_UNITS
        self.on_full()

    def was_written(self) -> None:
        """Everything that was counted is in lines now."""
        self.room_units = FLUSH_UNITS
        self._write_off()

    def gone(self, entity: str, is_there: Callable[[str], bool]) -> None:
        """An entity was deleted; ``is_there`` says of a name whether another one has it."""
        self._gone.append(entity)
        if not self.has_lines and len(self._gone) > GONE_COUNT_MAX:
            self._write_off()
        for _ in range(min(FORGOTTEN_AT_ONCE, len(self._written_off))):
            name = self._written_off.popleft()
            if not is_there(name):
                self._forget(name)

    def _write_off(self) -> None:
        self._written_off.extend(self._gone)
        self._gone.clear()

    def _forget(self, entity: str) -> None:
        for operation in Operation:
            for name in (entity, entity + DEAD_LETTERS):
                tally = self._tallies.pop((name, operation), None)
                if tally is not None:
                    self.tally("", operation).takes_over(tally)

    @property
    def unwritten_units(self) -> int:
        """What the log does not hold yet."""
        return sum(tally.units - tally.written.units for tally in self)

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._tallies.values())
