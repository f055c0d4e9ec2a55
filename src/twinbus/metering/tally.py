"""Every operation of a namespace, counted (rule C1).

Rule 1: counting is cheap. An end of a link holds the tally of its own operation; a run of
        messages costs five additions, however long it is.
Rule 2: a tally only grows. What is new since the last line was written is a difference, so
        that nothing is counted twice and the totals can be compared with the log.
Rule 3: an entity that was deleted is counted under no name, once its lines are written: whoever
        creates and deletes entities does not fill the memory with their names.
Rule 4: a meter says when a third of ``unwritten_units_max`` was counted since the last lines,
        wherever that happens: twice as much may be counted before they are on the disk.
Rule 5: a meter knows which tallies have changed, so that lines cost nothing for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from twinbus.core.costs import NOTHING, Amount, Operation

# What a kill may cost at most, of a quiet run and of the busiest one.
UNWRITTEN_UNITS_MIN: Final = 1_000
UNWRITTEN_UNITS_MAX: Final = 100_000
# Deleted entities whose names are kept where no lines are written.
GONE_COUNT_MAX: Final = 1_024
# What the dead letters of an entity are counted under is its name with this behind it.
DEAD_LETTERS: Final = "/$deadletterqueue"
# Names that are forgotten for each one that comes: no deletion pays for thousands of earlier ones.
FORGOTTEN_AT_ONCE: Final = 2


@dataclass(slots=True)
class OperationCounter:
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
    is_changed: bool = field(default=False, repr=False, compare=False)
    """Whether the meter knows that lines have to tell of it."""

    def total(self) -> Amount:
        return Amount(self.calls, self.messages, self.units, self.bytes_in, self.bytes_out)

    def took_in(self, calls: int, messages: int, units: int, size: int) -> None:
        self.calls += calls
        self.messages += messages
        self.units += units
        self.bytes_in += size
        meter = self.meter
        if not self.is_changed:
            meter.note_change(self)
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.filled()

    def gave_out(self, messages: int, units: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.units += units
        self.bytes_out += size
        meter = self.meter
        if not self.is_changed:
            meter.note_change(self)
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.filled()

    def happened(self) -> None:
        """A request that carries no message."""
        self.took_in(1, 0, 1, 0)

    def takes_over(self, other: OperationCounter) -> None:
        """Count what another one has counted, and what of it is written."""
        self.calls, self.messages, self.units, self.bytes_in, self.bytes_out = self.total().plus(
            other.total()
        )
        self.written = self.written.plus(other.written)
        if not self.is_changed:
            self.meter.note_change(self)


class Meter:
    """The tallies of one namespace."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, Operation], OperationCounter] = {}
        self._changed: dict[tuple[str, Operation], OperationCounter] = {}
        self.unwritten_units_max = UNWRITTEN_UNITS_MIN
        """What may be counted before the next lines are on the disk."""
        self.room_units = self._flush_units
        """What may still be counted before lines are asked for."""
        self.on_full: Callable[[], object] = lambda: None
        """Called when a third of unwritten_units_max was counted since the last lines."""
        self.has_lines = False
        """Whether lines are written; without them only totals are wanted."""
        self._gone: list[str] = []
        self._written_off: deque[str] = deque()
        """Deleted entities whose lines are written."""

    def counter(self, entity: str, operation: Operation) -> OperationCounter:
        """Where to count an operation on an entity; ask once and keep it."""
        key = entity, operation
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = OperationCounter(entity, operation, self)
        return tally

    @property
    def _flush_units(self) -> int:
        return self.unwritten_units_max // 3

    def filled(self) -> None:
        self.room_units = self._flush_units
        self.on_full()

    def note_change(self, counter: OperationCounter) -> None:
        counter.is_changed = True
        self._changed[counter.entity, counter.operation] = counter

    @property
    def has_changed(self) -> bool:
        """Whether something was counted since the last lines."""
        return bool(self._changed)

    def changed(self) -> list[OperationCounter]:
        """The tallies that have changed since they were asked for the last time."""
        changed, self._changed = list(self._changed.values()), {}
        for tally in changed:
            tally.is_changed = False
        return changed

    def was_written(self, units: int, *, is_early: bool = False) -> None:
        """Everything that was counted is in lines now, ``units`` in the last ones; ``is_early``:
        they were asked for before their time."""
        self.unwritten_units_max = next_bound(self.unwritten_units_max, units, is_early=is_early)
        self.room_units = self._flush_units
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
                self._changed.pop((name, operation), None)
                if tally is not None:
                    self.counter("", operation).takes_over(tally)

    @property
    def unwritten_units(self) -> int:
        """What the log does not hold yet."""
        return sum(tally.units - tally.written.units for tally in self)

    def __iter__(self) -> Iterator[OperationCounter]:
        return iter(self._tallies.values())


def next_bound(bound: int, units: int, *, is_early: bool) -> int:
    """What may be unwritten from now on, after lines of so many units, and ``bound`` before.

    Three times what these have: about a third is counted until the next ones, and the rest is for
    a load that grows and a disk that is slow. It grows at once, and falls to half or less, so that
    it seldom changes.
    """
    if is_early:
        # No more than twice: a third of the new one may be counted before a reader knows it.
        wanted = max(3 * units, 2 * bound)
    elif bound // 2 < 3 * units <= bound:
        wanted = bound
    else:
        wanted = _rounded_up(3 * units)
    return min(max(wanted, UNWRITTEN_UNITS_MIN), UNWRITTEN_UNITS_MAX)


def _rounded_up(number: int) -> int:
    """To one digit and zeros."""
    step = int("1" + "0" * (len(str(number)) - 1))
    return -(-number // step) * step
