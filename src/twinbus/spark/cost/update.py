"""Bring a state up to date with the logs: only days to which changed files contribute are computed.

    changed bundles --> their days --> all bundles that contribute to these days --> read

Rule 1: a day is always computed from all files that contribute to it, so that copies are found and
        late lines are counted where they belong.
Rule 2: days that no changed file contributes to are not read, neither as logs nor as sums.
Rule 3: which days a changed file contributes to is known when it has been read. If others
        contribute to a day that nobody expected, everything is read once more, with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from twinbus.spark.cost.days import day_number
from twinbus.spark.cost.findings import Findings, findings
from twinbus.spark.cost.lines import NO_DAY, judged, literal_path, read_lines, with_fields
from twinbus.spark.cost.log_files import LogFile, bundled
from twinbus.spark.cost.state import Bundle, CostState, Manifest, Part
from twinbus.spark.cost.steps import summed_by_minute, with_day, without_copies

__all__ = ["Computed", "sums_of", "update"]

# What one task takes in of the logs: its hash map of lines stays well below the memory of a
# small driver.
TASK_BYTES: Final = 48 << 20
_DAMAGED_DAY: Final = "day=__HIVE_DEFAULT_PARTITION__"
"""As Spark calls the partition of rows that have none."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A day that was computed now, and the files that were read for it."""

    day: str
    files: tuple[str, ...]


def sums_of(spark: SparkSession, files: Iterable[LogFile], days: int = 1) -> DataFrame:
    """The whole way from logs to sums by the minute, about so many days of them."""
    files = tuple(files)
    tasks = 1 + sum(file.fingerprint.size for file in files) // TASK_BYTES
    return (
        read_lines(spark, [file.path for file in files])
        .transform(with_fields)
        .transform(judged)
        .transform(without_copies, tasks, -(-tasks // days))
        .transform(summed_by_minute)
        .transform(with_day)
    )


def update(spark: SparkSession, state: CostState, logs: Iterable[LogFile]) -> tuple[Computed, ...]:
    """Compute what is new; afterwards the state is that of these logs."""
    bundles = bundled(logs)
    known = state.manifest.bundles
    changed = {
        name
        for name in bundles.keys() | known.keys()
        if name not in bundles or name not in known or _files(bundles[name]) != known[name].files
    }
    if not changed:
        return ()
    # A file's name tells what is most likely in it.
    days = {name for name in changed if name}
    days |= {day for name in changed & known.keys() for day in known[name].days}
    while True:
        read = changed | {name for name, bundle in known.items() if days & set(bundle.days)}
        with state.aside() as aside:
            found = _compute(spark, {n: bundles[n] for n in sorted(read & bundles.keys())}, aside)
            days |= {day for name in changed for day in found.days_of(name)}
            if all(name in read or not days & set(bundle.days) for name, bundle in known.items()):
                _keep(spark, state, aside, found, bundles, changed, days)
                break
    return tuple(
        Computed(day, tuple(sorted(_files_of_day(state.manifest, day)))) for day in sorted(days)
    )


def _files(members: Iterable[LogFile]) -> dict[str, object]:
    return {file.path: file.fingerprint for file in members}


def _files_of_day(manifest: Manifest, day: str) -> set[str]:
    return {p for bundle in manifest.bundles.values() if day in bundle.days for p in bundle.files}


def _compute(
    spark: SparkSession, bundles: Mapping[str, tuple[LogFile, ...]], aside: Path
) -> Findings:
    """Sums of these files, by day, as directories in ``aside``."""
    files = [file for members in bundles.values() for file in members]
    if not files:
        return Findings(())
    sums = sums_of(spark, files, days=len(bundles))
    sums.write.partitionBy("day").parquet(str(aside / "sums"))
    return findings(spark.read.schema(sums.schema).parquet(literal_path(aside / "sums")))


def _keep(
    spark: SparkSession,
    state: CostState,
    aside: Path,
    found: Findings,
    bundles: Mapping[str, tuple[LogFile, ...]],
    changed: set[str],
    days: set[str],
) -> None:
    """Adopt what was made aside for these days and bundles; everything else stays as it is."""
    old = state.manifest
    new_days = {day: part for day, part in old.days.items() if day not in days}
    for day in days:
        made = aside / "sums" / f"day={day_number(day)}"
        if made.is_dir():
            new_days[day] = state.adopt_day(made, day, found.summary_of(day))
    damaged_in = _damaged(spark, state, aside, changed)
    new_bundles = {
        name: Bundle(
            files={file.path: file.fingerprint for file in members},
            days=tuple(sorted(found.days_of(name))),
            damaged=found.damaged_of(name),
            damaged_in=damaged_in.get(name),
        )
        if name in changed
        else old.bundles[name]
        for name, members in bundles.items()
    }
    state.replace(Manifest(new_bundles, new_days))


def _damaged(
    spark: SparkSession, state: CostState, aside: Path, changed: set[str]
) -> dict[str, Part]:
    """The damaged lines of changed bundles, each in a directory of its own."""
    made = aside / "sums" / _DAMAGED_DAY
    if not made.is_dir():
        return {}
    (
        spark.read.schema("file string, file_day int, reason string, text string, records long")
        .parquet(literal_path(made))
        .where(F.col("file_day").isin([_number(name) for name in changed]))
        .coalesce(1)
        .write.partitionBy("file_day")
        .parquet(str(aside / "damaged"))
    )
    found = {name: aside / "damaged" / f"file_day={_number(name)}" for name in changed}
    return {
        name: state.adopt_damaged(directory, name)
        for name, directory in found.items()
        if directory.is_dir()
    }


def _number(bundle: str) -> int:
    return day_number(bundle) if bundle else NO_DAY
