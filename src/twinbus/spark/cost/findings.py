"""What was found in the lines of some days, short enough to be kept beside the sums as JSON.

one row for each day, file's day, run and operation --> which days has a file contributed to,
                                                       what the month has had, who is not closed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from twinbus.spark.cost.days import day_named
from twinbus.spark.cost.lines import CLOSED, NO_DAY

__all__ = ["Findings", "findings", "found_in_short"]


def found_in_short(sums: DataFrame) -> DataFrame:
    """One row for each run and operation of a day, or for each reason of damage."""
    return sums.groupBy(
        "reason", "day", "file_day", "other_file_day", "namespace", "source", "run", "operation"
    ).agg(
        F.sum("messages").alias("messages"),
        F.sum("units").alias("units"),
        F.sum("bytes_out").alias("bytes_out"),
        F.sum(F.col("records") + F.col("duplicates")).alias("lines"),
        F.min("minute").alias("minute"),
        F.max("to_ms").alias("to_ms"),
        F.max("unwritten_units_max").alias("unwritten_units_max"),
    )


def findings(sums: DataFrame) -> Findings:
    return Findings(sums.transform(found_in_short).collect())


class Findings:
    """The rows of found_in_short(), and what they tell."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._usable = [row for row in rows if row.reason is None]
        self._damaged = [row for row in rows if row.reason is not None]

    def days_of(self, bundle: str) -> set[str]:
        """To which days the files of a bundle have contributed."""
        return {
            day_named(row.day)
            for row in self._usable
            if bundle in (_bundle(row.file_day), _bundle(row.other_file_day))
        }

    def damaged_of(self, bundle: str) -> dict[str, int]:
        """Damaged lines of a bundle, by reason."""
        counts: dict[str, int] = {}
        for row in self._damaged:
            if _bundle(row.file_day) == bundle:
                counts[row.reason] = counts.get(row.reason, 0) + row.lines
        return counts

    def summary_of(self, day: str) -> dict[str, Any]:
        """What is kept of a day beside its sums."""
        totals: dict[tuple[str, str, str], list[int]] = {}
        runs: dict[tuple[str, str, str], dict[str, Any]] = {}
        rows = [row for row in self._usable if day_named(row.day) == day]
        for row in rows:
            total = totals.setdefault((row.namespace, row.source, row.operation), [0, 0, 0])
            for at, amount in enumerate((row.messages, row.units, row.bytes_out)):
                total[at] += amount
            run = runs.setdefault(
                (row.namespace, row.source, row.run),
                {"to_ms": 0, "is_closed": False, "unwritten_units_max": None},
            )
            run["to_ms"] = max(run["to_ms"], row.to_ms)
            run["is_closed"] |= row.operation == CLOSED
            if row.unwritten_units_max is not None:
                run["unwritten_units_max"] = row.unwritten_units_max
        return {
            "first_minute": min(row.minute for row in rows),
            "to_ms": max(row.to_ms for row in rows),
            "totals": [[*key, *amounts] for key, amounts in totals.items()],
            "runs": [[*key, facts] for key, facts in runs.items()],
        }


def _bundle(file_day: int) -> str:
    return "" if file_day == NO_DAY else day_named(file_day)
