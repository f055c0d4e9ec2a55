"""Updates a state from the logs: only days to which changed files contribute are computed.

    changed bundles --> their days --> all bundles that contribute to these days --> read

Rule 1: a day is always computed from all files that contribute to it, so that copies are found and
        late lines are counted on their own day.
Rule 2: days that no changed file contributes to are not read, neither as logs nor as sums.
Rule 3: the days that a changed file contributes to are known after it was read. If other files
        contribute to an unexpected day among them, everything is read once more, with these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from twinbus.spark.cost_report.block_jobs import (
    DAMAGED,
    HOURS,
    MINUTES,
    counted_by_block,
    counted_by_stretch,
    lines_of,
)
from twinbus.spark.cost_report.log_files import (
    NO_DAY,
    LogFile,
    blocks_of,
    bundled,
    day_number,
    frame_of,
    sharing,
    size_of,
)
from twinbus.spark.cost_report.state import Bundle, CostState, Manifest, Part
from twinbus.spark.cost_report.summaries import BlockNotes
from twinbus.spark.runtime.tuning import small_input_settings

__all__ = ["Computed", "update"]

# The tasks may read much, but return little.
NOTES_BYTES: Final = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """A day that was computed now, and the files that were read for it."""

    day: str
    files: tuple[str, ...]


def update(spark: SparkSession, state: CostState, logs: Iterable[LogFile]) -> tuple[Computed, ...]:
    """Compute what is new; afterwards the state is up to date with these logs."""
    bundles = bundled(logs)
    known = state.manifest.bundles
    changed = {
        name
        for name in bundles.keys() | known.keys()
        if name not in bundles or name not in known or _files(bundles[name]) != known[name].files
    }
    if not changed:
        return ()
    # Most lines of a file are of the day in its name.
    days = {name for name in changed if name}
    days |= {day for name in changed & known.keys() for day in known[name].days}
    while True:
        read = changed | {name for name, bundle in known.items() if days & set(bundle.days)}
        with state.aside() as aside:
            found = _compute(spark, {n: bundles[n] for n in sorted(read & bundles.keys())}, aside)
            days |= {day for name in changed for day in found.days_of(name)}
            if all(name in read or not days & set(bundle.days) for name, bundle in known.items()):
                _keep(state, aside, found, bundles, changed, days)
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
) -> BlockNotes:
    """Sums of these files, and damaged lines, as files in ``aside``."""
    blocks = blocks_of(file for members in bundles.values() for file in members)
    if not blocks:
        return BlockNotes()
    with small_input_settings(spark, NOTES_BYTES):
        notes = frame_of(spark, blocks).transform(counted_by_block, aside).collect()
    shared = sharing(note.asDict() for note in notes if note.first is not None)
    if not shared:
        return BlockNotes(notes, notes)
    for number in shared:
        for kind in (MINUTES, HOURS):
            for path in aside.glob(f"{kind}/*/{number}.parquet"):
                path.unlink()
    again = [block for block in blocks if block.block in shared]
    with small_input_settings(spark, size_of(again)):
        together = (
            frame_of(spark, again)
            .transform(lines_of)
            .transform(counted_by_stretch, aside)
            .collect()
        )
    apart = [note for note in notes if note.block not in shared]
    return BlockNotes(notes, [*apart, *together])


def _keep(
    state: CostState,
    aside: Path,
    found: BlockNotes,
    bundles: Mapping[str, tuple[LogFile, ...]],
    changed: set[str],
    days: set[str],
) -> None:
    """Adopt the new files of these days and bundles; everything else stays as it is."""
    old = state.manifest
    new_days = {day: part for day, part in old.days.items() if day not in days}
    for day in days:
        new = {name: _find_new(aside, name, day) for name in (MINUTES, HOURS)}
        if new[MINUTES]:
            new_days[day] = state.adopt_day(new, day, found.summary_of(day))
    new_bundles = {
        name: Bundle(
            files={file.path: file.fingerprint for file in members},
            days=tuple(sorted(found.days_of(name))),
            damaged=found.damaged_of(name),
            damaged_in=_damaged(state, aside, name),
        )
        if name in changed
        else old.bundles[name]
        for name, members in bundles.items()
    }
    state.replace(Manifest(new_bundles, new_days))


def _damaged(state: CostState, aside: Path, bundle: str) -> Part | None:
    new = _find_new(aside, DAMAGED, bundle)
    return state.adopt_damaged({DAMAGED: new}, bundle) if new else None


def _find_new(aside: Path, kind: str, day: str) -> list[Path]:
    """New files of a kind and a day."""
    number = day_number(day) if day else NO_DAY
    return sorted(aside.glob(f"{kind}/{number}/*.parquet"))
