"""Summaries by day: totals, runs and damaged lines, known without reading the sums of a day.

BlockNotes computes a day's summary, which is stored as JSON beside its sums; Summaries reads those
of the days that matter for a report.

a note for each block, day, run and operation --> to which days a file has contributed
the same, without copies of lines             --> the usage of the month, runs that are not closed

Rule 1: of the days of the first month before the range only the totals are used: they determine
        how much of the month's price tiers was used before.
Rule 2: an open run is reported when its last line is in the range: lines that it did not write
        would have followed that line. Their maximum is the last one that the run has reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Row

from twinbus.cost.prices import PriceSheet
from twinbus.cost.report import OpenRun
from twinbus.cost.units import Amount, Operation
from twinbus.metering.operations_log import CLOSED, FLUSHED, UNWRITTEN_UNITS_MAX
from twinbus.spark.cost_report.line_parser import BROKER, NOT_COUNTED
from twinbus.spark.cost_report.log_files import (
    MINUTE_MS,
    MINUTES_A_DAY,
    NO_DAY,
    day_named,
    moment_of_ms,
)
from twinbus.spark.cost_report.report_rows import Consumed
from twinbus.spark.cost_report.state import CostState

__all__ = ["BlockNotes", "Summaries", "logged_minutes"]


def logged_minutes(state: CostState) -> tuple[int, int] | None:
    """From the first line to the end of the last one; None without lines."""
    days = sorted(state.manifest.days)
    if not days:
        return None
    first, last = state.summary(days[0]), state.summary(days[-1])
    return int(first["first_minute"]), int(last["end_minute"])


class Summaries:
    """The summaries of the days that matter for a range of minutes."""

    def __init__(self, state: CostState, first: int, end: int, source: str | None) -> None:
        self._manifest = state.manifest
        self._first, self._end, self._source = first, end, source
        begin, last = day_named(first // MINUTES_A_DAY), day_named((end - 1) // MINUTES_A_DAY)
        self._month = f"{begin[:7]}-01"
        # Later days show which runs were closed later.
        self._summaries = {
            day: state.summary(day) for day in sorted(state.manifest.days) if day >= self._month
        }
        self._begin, self._last = begin, last
        self.days = [day for day in self._summaries if begin <= day <= last]
        """The days of the range that have sums."""
        self.metered_by_broker = self._brokers_of(self.days)
        """Namespaces that have lines of their broker."""

    def _brokers_of(self, days: Iterable[str]) -> set[str]:
        return {
            namespace
            for day in days
            for namespace, source, *_ in self._summaries[day]["totals"]
            if source == BROKER
        }

    def consumed(self, sheet: PriceSheet) -> dict[str, Consumed]:
        """The billable usage of each day of the first month, and of the range."""
        return {
            day: self._consumed_on(
                day, sheet, self.metered_by_broker if day in self.days else self._brokers_of([day])
            )
            for day in self._summaries
            if day <= self._last
        }

    def _consumed_on(self, day: str, sheet: PriceSheet, brokers: set[str]) -> Consumed:
        units = size = 0
        for namespace, source, operation, messages, count, bytes_out in self._summaries[day][
            "totals"
        ]:
            if operation in NOT_COUNTED or not self._is_chosen(namespace, source, brokers):
                continue
            amount = Amount(0, messages, count, 0, bytes_out)
            units += sheet.billable(Operation(operation), amount)
            size += bytes_out
        return Consumed(units, size)

    def _is_chosen(self, namespace: str, source: str, brokers: set[str]) -> bool:
        if self._source is not None:
            return source == self._source
        return source == BROKER or namespace not in brokers

    def _is_in_range(self, at_ms: int) -> bool:
        return self._first * MINUTE_MS <= at_ms <= self._end * MINUTE_MS

    def damaged(self) -> dict[str, int]:
        """Damaged lines by reason: they have no time of their own, so their files' days count."""
        counts: dict[str, int] = {}
        for name, bundle in self._manifest.bundles.items():
            if not name or self._begin <= name <= self._last:
                for reason, count in bundle.damaged.items():
                    counts[reason] = counts.get(reason, 0) + count
        return counts

    def open_runs(self) -> tuple[OpenRun, ...]:
        """Runs whose last line is in the range, and does not close them."""
        runs: dict[tuple[str, str, str], dict[str, Any]] = {}
        for summary in self._summaries.values():
            for namespace, source, run, facts in summary["runs"]:
                if self._is_chosen(namespace, source, self.metered_by_broker):
                    known = runs.setdefault((namespace, source, run), dict(facts))
                    _merge(known, facts)
        return tuple(
            OpenRun(
                namespace=namespace,
                run=run,
                source=source,
                last_at=moment_of_ms(facts["to_ms"]),
                units_missing_max=_bound(facts),
            )
            for (namespace, source, run), facts in sorted(runs.items())
            if not facts["is_closed"] and self._is_in_range(facts["to_ms"])
        )


def _merge(known: dict[str, Any], facts: Mapping[str, Any]) -> None:
    known["to_ms"] = max(known["to_ms"], facts["to_ms"])
    known["is_closed"] |= facts["is_closed"]
    later = max(known, facts, key=lambda each: each["bound_ms"])
    known |= {name: later[name] for name in ("bound_ms", "unwritten_units_max")}


def _bound(facts: Mapping[str, Any]) -> int:
    reported = facts["unwritten_units_max"]
    return UNWRITTEN_UNITS_MAX if reported is None else int(reported)


class BlockNotes:
    """The notes of block_jobs.py, and what follows from them.

    Those ``of_blocks`` are about every block by itself: a file contributes to a day also with
    lines of which another copy was counted. ``counted`` are about what is in the sums.
    """

    def __init__(self, of_blocks: Iterable[Row] = (), counted: Iterable[Row] = ()) -> None:
        self._damaged: list[Row] = []
        self._days: dict[str, set[str]] = {}
        for note in of_blocks:
            if note.reason is not None:
                self._damaged.append(note)
            elif note.operation is not None:
                self._days.setdefault(_bundle(note.file_day), set()).add(_day(note))
        self._counted = [note for note in counted if note.operation is not None]

    def days_of(self, bundle: str) -> set[str]:
        """To which days the files of a bundle have contributed."""
        return self._days.get(bundle, set())

    def damaged_of(self, bundle: str) -> dict[str, int]:
        """Damaged lines of a bundle, by reason."""
        counts: dict[str, int] = {}
        for row in self._damaged:
            if _bundle(row.file_day) == bundle:
                counts[row.reason] = counts.get(row.reason, 0) + row.records
        return counts

    def summary_of(self, day: str) -> dict[str, Any]:
        """What is kept of a day beside its sums."""
        totals: dict[tuple[str, str, str], list[int]] = {}
        runs: dict[tuple[str, str, str], dict[str, Any]] = {}
        rows = [row for row in self._counted if _day(row) == day]
        for row in rows:
            total = totals.setdefault((row.namespace, row.source, row.operation), [0, 0, 0])
            for at, amount in enumerate((row.messages, row.units, row.bytes_out)):
                total[at] += amount
            run = runs.setdefault(
                (row.namespace, row.source, row.run),
                {"to_ms": 0, "is_closed": False, "bound_ms": -1, "unwritten_units_max": None},
            )
            run["to_ms"] = max(run["to_ms"], row.to_ms)
            run["is_closed"] |= row.operation == CLOSED
            # The last value counts; a line that changes it is never older than the first one.
            is_later = row.to_ms + (row.operation == FLUSHED) > run["bound_ms"]
            if row.unwritten_units_max is not None and is_later:
                run["bound_ms"] = row.to_ms
                run["unwritten_units_max"] = row.unwritten_units_max
        return {
            "first_minute": min(row.minute for row in rows),
            "end_minute": max(max(row.last_minute + 1, -(-row.to_ms // MINUTE_MS)) for row in rows),
            "totals": [[*key, *amounts] for key, amounts in totals.items()],
            "runs": [[*key, facts] for key, facts in runs.items()],
        }


def _day(row: Row) -> str:
    return day_named(row.minute // MINUTES_A_DAY)


def _bundle(file_day: int) -> str:
    return "" if file_day == NO_DAY else day_named(file_day)
