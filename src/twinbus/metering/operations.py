"""The operations log: every few seconds, what each tally has gained since (rule C1).

    {"version":1,"run":"5f0c…","number":17,"from":"2026-11-16T10:00:00.000Z",
     "to":"2026-11-16T10:00:10.000Z","source":"broker","namespace":"demo","entity":"orders",
     "operation":"send","calls":3,"messages":300,"units":300,"bytes_in":61200,"bytes_out":0}

Rule 1: ``run`` and ``number`` name a line for ever; a reader that meets one twice drops it. The
        numbers of a run have no gap: where one is missing, the disk refused a line.
Rule 2: intervals end at round times of the wall clock, midnight (UTC) among them, or a moment
        later where the machine or the disk is busy. One belongs to the day of its ``from``.
Rule 3: a run begins with the line ``opened`` and, if it is closed and not killed, ends with the
        line ``closed``. A kill loses at most the last interval, and of a busy one at most
        UNWRITTEN_UNITS_MAX: lines are written before that much has been counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from twinbus.clock import Clock
from twinbus.core.costs import NOTHING, Amount
from twinbus.metering.lines import JsonLines, timestamp
from twinbus.metering.tally import UNWRITTEN_UNITS_MAX, Meter

INTERVAL_MS: Final = 10_000
RECORD_VERSION: Final = 1
# The two lines that count nothing.
OPENED: Final = "opened"
CLOSED: Final = "closed"

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
        self._timer: asyncio.TimerHandle | None = None
        self._submit: Callable[[Callable[[], None]], None] | None = None

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write at every interval's end, and earlier when much happens; ``submit`` runs a job
        that may wait for the disk."""
        self._submit = submit
        self._meter.on_full, self._meter.has_lines = self._write, True
        submit(self.opened())
        self._set_timer(timers)

    def _set_timer(self, timers: Timers) -> None:
        self._timer = timers.call_later(self.until_interval_ends_s(), self._on_timer, timers)

    def _on_timer(self, timers: Timers) -> None:
        self._write()
        self._set_timer(timers)

    def _write(self) -> None:
        if self._submit is not None:
            self._submit(self.take())

    def stop(self) -> None:
        """Submit nothing more; what is counted from now on is for close()."""
        self._submit = None
        if self._timer is not None:
            self._timer.cancel()

    # -- lines --------------------------------------------------------------------------------

    def until_interval_ends_s(self) -> float:
        return (INTERVAL_MS - self._clock.now().wall_ms % INTERVAL_MS) / 1000

    def opened(self) -> Callable[[], None]:
        """The first line, as a job that writes it."""
        at_ms = self._from_ms
        bounds = {
            "unwritten_units_max": UNWRITTEN_UNITS_MAX,
            "interval_s": INTERVAL_MS // 1000,
        }
        record = {**self._record(at_ms, "", OPENED, NOTHING), **bounds}
        return lambda: self._lines.append(at_ms, [record])

    def take(self) -> Callable[[], None]:
        """What is new, as a job that writes it."""
        return self._job(is_last=False)

    def close(self) -> Callable[[], None]:
        """What is new, and that nothing comes after it."""
        return self._job(is_last=True)

    def _job(self, *, is_last: bool) -> Callable[[], None]:
        now_ms = self._clock.now().wall_ms
        at_ms = self._from_ms
        to_ms = max(now_ms, at_ms)
        records = self._gains(to_ms)
        if is_last:
            records.append(self._record(to_ms, "", CLOSED, NOTHING))
        self._from_ms = now_ms
        return lambda: self._lines.append(at_ms, records)

    def _gains(self, to_ms: int) -> list[dict[str, Any]]:
        records = []
        for tally in self._meter:
            total = tally.total()
            gained = total.minus(tally.written)
            if gained != NOTHING:
                tally.written = total
                records.append(self._record(to_ms, tally.entity, tally.operation.value, gained))
        self._meter.was_written()
        return records

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
