"""What was found in the lines of some days, short enough to be kept beside the sums as JSON.

a note for each block, day, run and operation --> to which days a file has contributed
the same, what came twice being counted once  --> what the month has had, who is not closed
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row

from twinbus.metering.operations import CLOSED, FLUSHED
from twinbus.spark.cost.days import MINUTE_MS, MINUTES_A_DAY, NO_DAY, day_named

__all__ = ["BlockNotes"]


class BlockNotes:
    """The notes of counting.py, and what they tell.

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
            # The last word counts; a line that changes it is never older than the first one.
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
