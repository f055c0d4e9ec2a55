"""The operations log: every few seconds, what each tally has gained since (rule C1).

    {"version":1,"run":"5f0c…","number":17,"from":"2026-11-16T10:00:00.000Z",
     "to":"2026-11-16T10:00:10.000Z","namespace":"demo","entity":"orders","operation":"send",
     "calls":3,"messages":300,"units":300,"bytes_in":61200,"bytes_out":0}

Rule 1: ``run`` and ``number`` name a line for ever; a reader that meets one twice drops it.
Rule 2: intervals end at round times of the wall clock, so that none spans midnight (UTC).
Rule 3: a kill loses at most the last interval, and never more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from twinbus.clock import Clock
from twinbus.core.costs import NOTHING
from twinbus.metering.lines import JsonLines, timestamp
from twinbus.metering.tally import Meter

INTERVAL_MS = 10_000
RECORD_VERSION = 1


class Timers(Protocol):
    """The part of an event loop that wakes somebody later."""

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...


class OperationsLog:
    """Writes the tallies of one namespace down."""

    def __init__(
        self, namespace_name: str, meter: Meter, lines: JsonLines, run: str, clock: Clock
    ) -> None:
        self._namespace_name = namespace_name
        self._meter = meter
        self._lines = lines
        self._run = run
        self._clock = clock
        self._number = 0
        self._from_ms = clock.now().wall_ms
        self._timer: asyncio.TimerHandle | None = None
        self._submit: Callable[[Callable[[], None]], None] | None = None

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write at every interval's end; ``submit`` runs a job that may wait for the disk."""
        self._submit = submit
        now_ms = self._clock.now().wall_ms
        delay_ms = INTERVAL_MS - now_ms % INTERVAL_MS
        self._timer = timers.call_later(delay_ms / 1000, self._on_timer, timers)

    def _on_timer(self, timers: Timers) -> None:
        if self._submit is not None:
            self._submit(self.take())
            self.start(timers, self._submit)

    def take(self) -> Callable[[], None]:
        """What is new, as a job that writes it."""
        now_ms = self._clock.now().wall_ms
        at_ms = self._from_ms
        records = self._records(max(now_ms, at_ms))
        self._from_ms = now_ms
        return lambda: self._lines.append(at_ms, records)

    def _records(self, to_ms: int) -> list[dict[str, Any]]:
        records = []
        for tally in self._meter:
            total = tally.total()
            gained = total.minus(tally.written)
            if gained == NOTHING:
                continue
            tally.written = total
            self._number += 1
            records.append(
                {
                    "version": RECORD_VERSION,
                    "run": self._run,
                    "number": self._number,
                    "from": timestamp(self._from_ms),
                    "to": timestamp(to_ms),
                    "namespace": self._namespace_name,
                    "entity": tally.entity,
                    "operation": tally.operation.value,
                    **gained._asdict(),
                }
            )
        return records

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def operations_log(
    directory: Path, namespace_name: str, meter: Meter, run: str, clock: Clock
) -> OperationsLog:
    """The log of a namespace below ``directory``."""
    lines = JsonLines(directory / namespace_name, "operations")
    return OperationsLog(namespace_name, meter, lines, run, clock)
