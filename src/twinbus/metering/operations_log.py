"""Operations, counted in memory and written as lines every second.

Every operation of a namespace, counted (rule C1).

The operations log: every second, what each tally has gained since (rule C1).

    {"version":1,"run":"5f0c…","number":17,"from":"2026-11-16T10:00:00.000Z",
     "to":"2026-11-16T10:00:01.000Z","source":"broker","namespace":"demo","entity":"orders",
     "operation":"send","calls":3,"messages":300,"units":300,"bytes_in":61200,"bytes_out":0}

Rule 1: counting is cheap. An end of a link holds the tally of its own operation; a run of
        messages costs five additions, however long it is.
Rule 2: a tally only grows. What is new since the last line was written is a difference, so
        that nothing is counted twice and the totals can be compared with the log.
Rule 3: an entity that was deleted is counted under no name, once its lines are written: whoever
        creates and deletes entities does not fill the memory with their names.
Rule 4: a meter says when a third of ``unwritten_units_max`` was counted since the last lines,
        wherever that happens: twice as much may be counted before they are on the disk.
Rule 5: a meter knows which tallies have changed, so that lines cost nothing for the others.
Rule 6: ``run`` and ``number`` name a line for ever; a reader that meets one twice drops it. The
        numbers of a run have no gap: where one is missing, the disk refused a line.
Rule 7: intervals end at round times of the wall clock, midnight (UTC) among them, or a moment
        later where the machine or the disk is busy. One belongs to the day of its ``from``.
Rule 8: a run begins with the line ``opened`` and, if it is closed and not killed, ends with the
        line ``closed``. A kill loses at most the last interval, and at most the
        ``unwritten_units_max`` of the last line that has it, ``opened`` or ``flushed``: lines are
        asked for when a third of it has been counted. It follows the load of the run, and each
        change is a line ``flushed`` behind those that it follows from.
Rule 9: a second has LINES_A_SECOND_MAX lines at most: with more tallies at work the intervals are
        longer, up to ten seconds, so that a log does not grow without bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from twinbus.common.clock import Clock
from twinbus.cost.units import NOTHING, Amount, Operation
from twinbus.metering.json_lines import JsonLines, timestamp

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


INTERVAL_MS: Final = 1_000
# Intervals of a run that has many lines, in INTERVAL_MS: a day has a whole number of each.
LONGER_INTERVALS: Final = (1, 2, 5, 10)
# A line has some 280 bytes: 50 of them in every second are 1.2 GB a day.
LINES_A_SECOND_MAX: Final = 50
RECORD_VERSION: Final = 1
# The lines that count nothing: the first, one that changes the bound, the last.
OPENED: Final = "opened"
FLUSHED: Final = "flushed"
CLOSED: Final = "closed"
NOT_COUNTED: Final = (OPENED, FLUSHED, CLOSED)

Source = Literal["broker", "client"]
"""Who counted: a namespace all that is done to it, a client what it does."""


class Timers(Protocol):
    """The part of an event loop that wakes somebody later."""

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...


class OperationsLog:
    """Writes the tallies of one namespace down."""

    def __init__(
        self,
        namespace_name: str,
        meter: Meter,
        lines: JsonLines,
        run: str,
        clock: Clock,
        *,
        source: Source,
    ) -> None:
        self.run = run
        self._namespace_name = namespace_name
        self._meter = meter
        self._lines = lines
        self._source = source
        self._clock = clock
        self._number = 0
        self._from_ms = clock.now().wall_ms
        self._interval_ms = INTERVAL_MS
        self._told_bound = UNWRITTEN_UNITS_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._submit: Callable[[Callable[[], None]], None] | None = None

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write at every interval's end, and earlier when much happens; ``submit`` runs a job
        that may wait for the disk."""
        self._submit = submit
        self._meter.on_full, self._meter.has_lines = self._write_early, True
        submit(self.opened())
        self._set_timer(timers)

    def _set_timer(self, timers: Timers) -> None:
        self._timer = timers.call_later(self.until_interval_ends_s(), self._on_timer, timers)

    def _on_timer(self, timers: Timers) -> None:
        self._write(is_early=False)
        self._set_timer(timers)

    def _write_early(self) -> None:
        self._write(is_early=True)

    def _write(self, *, is_early: bool) -> None:
        if self._submit is not None:
            has_news = self.has_news
            job = self.take(is_early=is_early)
            if has_news:
                self._submit(job)

    def stop(self) -> None:
        """Submit nothing more; what is counted from now on is for close()."""
        self._submit = None
        if self._timer is not None:
            self._timer.cancel()

    # -- lines --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there are lines to write: something was counted, or nothing for the first time
        after much."""
        return self._meter.has_changed or self._told_bound != UNWRITTEN_UNITS_MIN

    def until_interval_ends_s(self) -> float:
        return (self._interval_ms - self._clock.now().wall_ms % self._interval_ms) / 1000

    def opened(self) -> Callable[[], None]:
        """The first line, as a job that writes it."""
        at_ms = self._from_ms
        record = {**self._bound(at_ms, OPENED), "interval_s": INTERVAL_MS // 1000}
        return lambda: self._lines.append(at_ms, [record])

    def take(self, *, is_early: bool = False) -> Callable[[], None]:
        """What is new, as a job that writes it; ``is_early``: because much was counted."""
        return self._job(is_last=False, is_early=is_early)

    def close(self) -> Callable[[], None]:
        """What is new, and that nothing comes after it."""
        return self._job(is_last=True)

    def _job(self, *, is_last: bool, is_early: bool = False) -> Callable[[], None]:
        now_ms = self._clock.now().wall_ms
        at_ms = self._from_ms
        to_ms = max(now_ms, at_ms)
        records = self._gains(to_ms)
        self._meter.was_written(sum(each["units"] for each in records), is_early=is_early)
        if not is_early:
            self._interval_ms = INTERVAL_MS * _longer(len(records))
        if is_last:
            records.append(self._record(to_ms, "", CLOSED, NOTHING))
        elif self._meter.unwritten_units_max != self._told_bound:
            records.append(self._bound(to_ms, FLUSHED))
        self._from_ms = now_ms
        return lambda: self._lines.append(at_ms, records)

    def _gains(self, to_ms: int) -> list[dict[str, Any]]:
        records = []
        for tally in self._meter.changed():
            total = tally.total()
            gained = total.minus(tally.written)
            if gained != NOTHING:
                tally.written = total
                records.append(self._record(to_ms, tally.entity, tally.operation.value, gained))
        return records

    def _bound(self, to_ms: int, operation: str) -> dict[str, Any]:
        """A line that counts nothing, and says how much may be missing behind it."""
        self._told_bound = self._meter.unwritten_units_max
        record = self._record(to_ms, "", operation, NOTHING)
        return {**record, "unwritten_units_max": self._told_bound}

    def _record(self, to_ms: int, entity: str, operation: str, amount: Amount) -> dict[str, Any]:
        self._number += 1
        return {
            "version": RECORD_VERSION,
            "run": self.run,
            "number": self._number,
            "from": timestamp(self._from_ms),
            "to": timestamp(to_ms),
            "source": self._source,
            "namespace": self._namespace_name,
            "entity": entity,
            "operation": operation,
            **amount._asdict(),
        }


def _longer(line_count: int) -> int:
    """How many intervals have to share so many lines (rule 9)."""
    fitting = (each for each in LONGER_INTERVALS if line_count <= each * LINES_A_SECOND_MAX)
    return next(fitting, LONGER_INTERVALS[-1])


def operations_log(
    directory: Path,
    namespace_name: str,
    meter: Meter,
    run: str,
    clock: Clock,
    *,
    source: Source,
    keep_days: int | None = None,
) -> OperationsLog:
    """The log of a namespace below ``directory``. A broker's runs follow each other in one
    file; clients run at the same time, so each has its own."""
    name = "operations" if source == "broker" else f"operations-{run}"
    lines = JsonLines(directory / namespace_name, name, keep_days=keep_days)
    return OperationsLog(namespace_name, meter, lines, run, clock, source=source)
