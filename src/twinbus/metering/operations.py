"""The operations log: every second, what each tally has gained since (rule C1).

    {"version":1,"run":"5f0c…","number":17,"from":"2026-11-16T10:00:00.000Z",
     "to":"2026-11-16T10:00:01.000Z","source":"broker","namespace":"demo","entity":"orders",
     "operation":"send","calls":3,"messages":300,"units":300,"bytes_in":61200,"bytes_out":0}

Rule 1: ``run`` and ``number`` name a line for ever; a reader that meets one twice drops it. The
        numbers of a run have no gap: where one is missing, the disk refused a line.
Rule 2: intervals end at round times of the wall clock, midnight (UTC) among them, or a moment
        later where the machine or the disk is busy. One belongs to the day of its ``from``.
Rule 3: a run begins with the line ``opened`` and, if it is closed and not killed, ends with the
        line ``closed``. A kill loses at most the last interval, and at most the
        ``unwritten_units_max`` of the last line that has it, ``opened`` or ``flushed``: lines are
        asked for when a third of it has been counted. It follows the load of the run, and each
        change is a line ``flushed`` behind those that it follows from.
Rule 4: a second has LINES_A_SECOND_MAX lines at most: with more tallies at work the intervals are
        longer, up to ten seconds, so that a log does not grow without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from twinbus.clock import Clock
from twinbus.core.costs import NOTHING, Amount
from twinbus.metering.lines import JsonLines, timestamp
from twinbus.metering.tally import UNWRITTEN_UNITS_MIN, Meter

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
    """How many intervals have to share so many lines (rule 4)."""
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
