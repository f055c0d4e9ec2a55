"""Operations, counted in memory and written to the operations log every second (rule C1).

A line has what one counter has gained since its last line:

    {"version":1,"run":"5f0c…","number":17,"from":"2026-11-16T10:00:00.000Z",
     "to":"2026-11-16T10:00:01.000Z","source":"broker","namespace":"demo","entity":"orders",
     "operation":"send","calls":3,"messages":300,"units":300,"bytes_in":61200,"bytes_out":0}

Rule 1: counting is cheap. Each link endpoint has the counter of its own operation; a run of
        messages costs five additions, however long it is.
Rule 2: a counter only grows. A line has the difference since the last line, so that nothing is
        counted twice and the totals can be compared with the log.
Rule 3: a deleted entity is counted without a name, once its lines are written: clients that create
        and delete entities do not fill the memory with names.
Rule 4: a meter calls ``on_full`` when a third of ``unwritten_units_max`` was counted since the
        last lines: twice as much may be counted before they are on the disk.
Rule 5: a meter keeps a list of the counters that have changed, so that the others cost nothing.
Rule 6: ``run`` and ``number`` identify a line for ever; a reader that finds one twice drops it.
        The numbers of a run have no gap: where one is missing, the disk refused a line.
Rule 7: intervals end at round times of the wall clock, midnight (UTC) among them, or slightly
        later when the machine or the disk is busy. One belongs to the day of its ``from``.
Rule 8: a run begins with the line ``opened`` and, if it is closed and not killed, ends with the
        line ``closed``. A kill loses at most the last interval, and at most the
        ``unwritten_units_max`` of the last line that has it, ``opened`` or ``flushed``: lines are
        written when a third of it was counted. The value follows the load of the run, and each
        change is a line ``flushed`` after the lines that caused it.
Rule 9: a second has LINES_A_SECOND_MAX lines at most: with more active counters the intervals are
        longer, up to ten seconds, so that a log does not grow without limit.
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

# What a kill may lose at most, of an idle run and of the busiest one.
UNWRITTEN_UNITS_MIN: Final = 1_000
UNWRITTEN_UNITS_MAX: Final = 100_000
# Deleted entities whose names are kept where no lines are written.
DELETED_COUNT_MAX: Final = 1_024
# Dead letters are counted under the name of their entity with this suffix.
DEAD_LETTERS: Final = "/$deadletterqueue"
# Names that each deletion removes: none has to remove thousands of earlier ones.
REMOVED_AT_ONCE: Final = 2


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
    """The part that is in the log."""
    is_changed: bool = field(default=False, repr=False, compare=False)
    """Whether the meter has it in its list of changed counters."""

    def total(self) -> Amount:
        return Amount(self.calls, self.messages, self.units, self.bytes_in, self.bytes_out)

    def add_incoming(self, calls: int, messages: int, units: int, size: int) -> None:
        self.calls += calls
        self.messages += messages
        self.units += units
        self.bytes_in += size
        meter = self.meter
        if not self.is_changed:
            meter.note_change(self)
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.note_full()

    def add_outgoing(self, messages: int, units: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.units += units
        self.bytes_out += size
        meter = self.meter
        if not self.is_changed:
            meter.note_change(self)
        meter.room_units -= units
        if meter.room_units <= 0:
            meter.note_full()

    def add_request(self) -> None:
        """A request without a message."""
        self.add_incoming(1, 0, 1, 0)

    def merge(self, other: OperationCounter) -> None:
        """Add what another counter has counted, and the part of it that is written."""
        self.calls, self.messages, self.units, self.bytes_in, self.bytes_out = self.total().plus(
            other.total()
        )
        self.written = self.written.plus(other.written)
        if not self.is_changed:
            self.meter.note_change(self)


class Meter:
    """The counters of one namespace."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Operation], OperationCounter] = {}
        self._changed: dict[tuple[str, Operation], OperationCounter] = {}
        self.unwritten_units_max = UNWRITTEN_UNITS_MIN
        """How many units may be counted before the next lines are on the disk."""
        self.room_units = self._flush_units
        """How many units may still be counted before on_full is called."""
        self.on_full: Callable[[], object] = lambda: None
        """Called when a third of unwritten_units_max was counted since the last lines."""
        self.has_lines = False
        """Whether lines are written; otherwise only totals are used."""
        self._deleted: list[str] = []
        self._to_remove: deque[str] = deque()
        """Deleted entities whose lines are written."""

    def counter(self, entity: str, operation: Operation) -> OperationCounter:
        """The counter of an operation on an entity; get it once and keep it."""
        key = entity, operation
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = OperationCounter(entity, operation, self)
        return counter

    @property
    def _flush_units(self) -> int:
        return self.unwritten_units_max // 3

    def note_full(self) -> None:
        self.room_units = self._flush_units
        self.on_full()

    def note_change(self, counter: OperationCounter) -> None:
        counter.is_changed = True
        self._changed[counter.entity, counter.operation] = counter

    @property
    def has_changed(self) -> bool:
        """Whether a counter has changed since the last lines."""
        return bool(self._changed)

    def changed(self) -> list[OperationCounter]:
        """The counters that have changed since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        for counter in changed:
            counter.is_changed = False
        return changed

    def note_written(self, units: int, *, is_early: bool = False) -> None:
        """Everything that was counted is in lines now, ``units`` in the last ones; ``is_early``:
        they were written before the end of the interval."""
        self.unwritten_units_max = next_bound(self.unwritten_units_max, units, is_early=is_early)
        self.room_units = self._flush_units
        self._queue_removals()

    def note_deleted(self, entity: str, exists: Callable[[str], bool]) -> None:
        """An entity was deleted; ``exists`` returns whether an entity with a name exists now."""
        self._deleted.append(entity)
        if not self.has_lines and len(self._deleted) > DELETED_COUNT_MAX:
            self._queue_removals()
        for _ in range(min(REMOVED_AT_ONCE, len(self._to_remove))):
            name = self._to_remove.popleft()
            if not exists(name):
                self._remove(name)

    def _queue_removals(self) -> None:
        self._to_remove.extend(self._deleted)
        self._deleted.clear()

    def _remove(self, entity: str) -> None:
        for operation in Operation:
            for name in (entity, entity + DEAD_LETTERS):
                counter = self._counters.pop((name, operation), None)
                self._changed.pop((name, operation), None)
                if counter is not None:
                    self.counter("", operation).merge(counter)

    @property
    def unwritten_units(self) -> int:
        """The units that are not in the log yet."""
        return sum(counter.units - counter.written.units for counter in self)

    def __iter__(self) -> Iterator[OperationCounter]:
        return iter(self._counters.values())


def next_bound(bound: int, units: int, *, is_early: bool) -> int:
    """The next ``unwritten_units_max``, after lines of ``units``; ``bound`` is the current one.

    Three times the units of the lines: about a third is counted until the next ones, and the rest
    is for a growing load and a slow disk. It grows at once, and falls only to half or less, so
    that it seldom changes.
    """
    if is_early:
        # No more than twice: a third of the new one may be counted before it is in the log.
        wanted = max(3 * units, 2 * bound)
    elif bound // 2 < 3 * units <= bound:
        wanted = bound
    else:
        wanted = _round_up(3 * units)
    return min(max(wanted, UNWRITTEN_UNITS_MIN), UNWRITTEN_UNITS_MAX)


def _round_up(number: int) -> int:
    """To one digit and zeros."""
    step = int("1" + "0" * (len(str(number)) - 1))
    return -(-number // step) * step


INTERVAL_MS: Final = 1_000
# Intervals of a run that has many lines, in INTERVAL_MS: a day has a whole number of each.
LONGER_INTERVALS: Final = (1, 2, 5, 10)
# A line has some 280 bytes: 50 of them in every second are 1.2 GB a day.
LINES_A_SECOND_MAX: Final = 50
RECORD_VERSION: Final = 1
# The lines without counts: the first, one that changes unwritten_units_max, the last.
OPENED: Final = "opened"
FLUSHED: Final = "flushed"
CLOSED: Final = "closed"
NOT_COUNTED: Final = (OPENED, FLUSHED, CLOSED)

Source = Literal["broker", "client"]
"""What counted: a broker all operations on a namespace, a client its own."""


class Timers(Protocol):
    """The part of an event loop that starts timers."""

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...


class OperationsLog:
    """Writes the counters of one namespace to its operations log."""

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
        self._written_bound = UNWRITTEN_UNITS_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._submit: Callable[[Callable[[], None]], None] | None = None

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write at the end of every interval, and earlier under load; ``submit`` runs a job that
        may wait for the disk."""
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
        """Submit nothing more; close() writes what is counted from now on."""
        self._submit = None
        if self._timer is not None:
            self._timer.cancel()

    # -- lines --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there are lines to write: a counter has changed, or unwritten_units_max has to
        fall to its minimum."""
        return self._meter.has_changed or self._written_bound != UNWRITTEN_UNITS_MIN

    def until_interval_ends_s(self) -> float:
        return (self._interval_ms - self._clock.now().wall_ms % self._interval_ms) / 1000

    def opened(self) -> Callable[[], None]:
        """The first line, as a job that writes it."""
        at_ms = self._from_ms
        record = {**self._bound(at_ms, OPENED), "interval_s": INTERVAL_MS // 1000}
        return lambda: self._lines.append(at_ms, [record])

    def take(self, *, is_early: bool = False) -> Callable[[], None]:
        """The new lines, as a job that writes them; ``is_early``: before the interval ends."""
        return self._job(is_last=False, is_early=is_early)

    def close(self) -> Callable[[], None]:
        """The new lines and the last one, as a job that writes them."""
        return self._job(is_last=True)

    def _job(self, *, is_last: bool, is_early: bool = False) -> Callable[[], None]:
        now_ms = self._clock.now().wall_ms
        at_ms = self._from_ms
        to_ms = max(now_ms, at_ms)
        records = self._gains(to_ms)
        self._meter.note_written(sum(each["units"] for each in records), is_early=is_early)
        if not is_early:
            self._interval_ms = INTERVAL_MS * _interval_factor(len(records))
        if is_last:
            records.append(self._record(to_ms, "", CLOSED, NOTHING))
        elif self._meter.unwritten_units_max != self._written_bound:
            records.append(self._bound(to_ms, FLUSHED))
        self._from_ms = now_ms
        return lambda: self._lines.append(at_ms, records)

    def _gains(self, to_ms: int) -> list[dict[str, Any]]:
        records = []
        for counter in self._meter.changed():
            total = counter.total()
            gained = total.minus(counter.written)
            if gained != NOTHING:
                counter.written = total
                records.append(self._record(to_ms, counter.entity, counter.operation.value, gained))
        return records

    def _bound(self, to_ms: int, operation: str) -> dict[str, Any]:
        """A line without counts that states how many units a kill may lose after it."""
        self._written_bound = self._meter.unwritten_units_max
        record = self._record(to_ms, "", operation, NOTHING)
        return {**record, "unwritten_units_max": self._written_bound}

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


def _interval_factor(line_count: int) -> int:
    """By how much intervals are longer with this many lines (rule 9)."""
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
