"""What ``twinbus doctor`` makes of the stores that crashes, failing disks and flipped bits leave.

A state after a crash, a kill or an error of the disk is a whole store: nothing is wrong with it,
and a repair is a copy of it that has everything acknowledged. Of a
store with a flipped bit the doctor finds what the broker would find, and a repair holds everything
but the row that the bit is in (or, for a body that several chunks share, those chunks); what is
lost is said, and nothing is there that was not there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from twinbus.broker.storage.repair.findings import FindingKind
from twinbus.broker.storage.repair.store_repair import Doctor, StoreReport
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency import rot
from verification.crash_consistency.disk_errors import Failings, Fault
from verification.crash_consistency.kills import Killings
from verification.crash_consistency.recorded import Checker, record
from verification.crash_consistency.scratch import (
    STORE_NAME,
    files_of,
    lay_out,
    let_go,
    scratch_directory,
)
from verification.crash_consistency.states import crash_states
from verification.crash_consistency.stories import story
from verification.crash_consistency.tally import Complaint, Tally, Wrong
from verification.crash_consistency.workload import content

PART = "doctor"

# Of so many kills and errors, one has a recovery that is killed or fails, too.
RECOVERIES_EVERY = 4
# A recovery of a story has about so many operations.
RECOVERY_OPERATIONS = 12

# A row of these says something about a message that is there without it.
DETAILS = {"tombstone", "state", "expiry", "session_chunk"}


class Examination:
    """One store after the other in the same three directories."""

    def __init__(self, directory: Path) -> None:
        self.original = directory / "original"
        self.new = directory / "new"
        self.scratch = directory / "scratch"
        for each in (self.original, self.new, self.scratch):
            each.mkdir()

    def examine(self, files: dict[str, bytes]) -> StoreReport:
        """Lay the files out, examine and repair them."""
        lay_out(self.original, files)
        lay_out(self.new, {})
        return Doctor(self.scratch).examine(self.original / STORE_NAME, self.new / STORE_NAME)

    def is_untouched(self, files: dict[str, bytes]) -> bool:
        found = {file.name: file.read_bytes() for file in self.original.iterdir()}
        return found == files and not list(self.scratch.iterdir())

    def recovered(self) -> dict[str, Any]:
        return _content_of(self.new)


def _content_of(directory: Path) -> dict[str, Any]:
    store = SqliteStore(directory / STORE_NAME)
    try:
        return content(store, store.open())
    finally:
        let_go(store)


# -- crashes ----------------------------------------------------------------------------------


def look_after_crashes(seed: int, count: int) -> Tally:
    """Examine ``count`` crash states of the run of this seed."""
    run, random = record(seed), Random(f"doctor {seed}")
    tally = Tally(PART, {f"seed {seed}"})
    with scratch_directory() as directory, scratch_directory() as laid_out:
        examination = Examination(directory)
        checker = Checker(run, laid_out, random)
        for state in crash_states(run.entries, count, random):
            checker._lay_out(state)
            first, last = max(state.acknowledged, 0), max(state.begun, 0)
            contents = [run.history.get(number) for number in range(first, last + 1)]
            where = f"seed {seed}, entry {state.position}, {state.style}"
            _look(tally, seed, examination, files_of(laid_out), contents, where)
            tally.distinct = checker.distinct
    return tally


def _look(
    tally: Tally,
    seed: int,
    examination: Examination,
    files: dict[str, bytes],
    contents: Sequence[dict[str, Any] | None],
    where: str,
) -> None:
    """Examine a store that must be whole and hold one of these contents."""
    try:
        text = _wrong_after_crash(examination, files, contents)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    tally.points += 1
    tally.distinct += 1
    tally.outcomes["healthy" if text is None else "wrong"] += 1
    if text is not None:
        replay = f"python -m verification.crash_consistency --only doctor --seed {seed}"
        tally.complaints.append(Complaint(Wrong.CONTENT, f"{where}: {text}", replay))


def _wrong_after_crash(
    examination: Examination,
    files: dict[str, bytes],
    contents: Sequence[dict[str, Any] | None],
) -> str | None:
    report = examination.examine(files)
    if not examination.is_untouched(files):
        return "the store that was examined has changed"
    if not report.is_healthy:
        return f"the doctor finds {report.findings[0].sentence}"
    if not report.is_repaired:
        # The crash came before there was a store.
        return None if STORE_NAME not in files else "nothing was repaired"
    if (report.totals.lost, report.totals.repeated) != (0, 0):
        return f"the doctor counts {report.totals}"
    if examination.recovered() in contents:
        return None
    return "the repaired store holds something else"


# -- kills and failing disks ------------------------------------------------------------------


def look_after_kills(name: str, points: list[tuple[int, bool]], seed: int) -> Tally:
    """Kill the story of this name at these points, some again while they recover; examine each."""
    told, random = story(name), Random(f"doctor {seed} {name}")
    tally = Tally(PART, {name})
    with scratch_directory() as directory, scratch_directory() as left_in:
        examination, killings = Examination(directory), Killings(name, left_in, seed)
        for operation, tears in points:
            progress = killings.die_at(operation, tears=tears)
            contents = told.contents[max(progress.steps, 0) :][:2]
            where, left = f"{name}, killed at {operation}", files_of(left_in)
            _look(tally, seed, examination, left, contents, where)
            if random.randrange(RECOVERIES_EVERY) == 0:
                again = random.randint(1, RECOVERY_OPERATIONS)
                killings.recovery_dies(left, again, tears=tears)
                where += f", its recovery at {again}"
                _look(tally, seed, examination, files_of(left_in), contents, where)
    return tally


def look_after_errors(name: str, faults: list[Fault], seed: int) -> Tally:
    """Tell the story of this name once with each of these faults, and examine what is left."""
    told, random = story(name), Random(f"doctor {seed} {name}")
    tally = Tally(PART, {name})
    with scratch_directory() as directory, scratch_directory() as left_in:
        examination, failings = Examination(directory), Failings(name, left_in)
        for fault in faults:
            teller = failings.tell(fault.plan())
            contents = told.contents[teller.steps :][:2]
            where = f"{name}, {fault}"
            _look(tally, seed, examination, files_of(left_in), contents, where)
            if random.randrange(RECOVERIES_EVERY) == 0:
                again = replace(fault, operation=random.randint(1, RECOVERY_OPERATIONS))
                failings.recovers(again.plan())
                where += f", then {again}"
                _look(tally, seed, examination, files_of(left_in), contents, where)
    return tally


# -- flipped bits -----------------------------------------------------------------------------


def look_after_flips(places: list[tuple[str, int]], seed: int) -> Tally:
    """Flip one bit at each of these places, one at a time, and examine the store."""
    image = rot.image(seed)
    tally = Tally(PART, {"a killed store"})
    with scratch_directory() as directory, scratch_directory() as copy:
        examination = Examination(directory)
        for name, at in places:
            bit = Random(f"{seed} {name} {at}").randrange(8)
            flipped = bytearray(image.files[name])
            flipped[at] ^= 1 << bit
            files = {**image.files, name: bytes(flipped)}
            try:
                outcome, text = _wrong_after_flip(examination, copy, files, image.answers)
            except Exception as error:
                outcome, text = "failed", f"{type(error).__name__}: {error}"
            tally.points += 1
            tally.outcomes[outcome] += 1
            if text is not None:
                replay = f"python -m verification.crash_consistency --only doctor --seed {seed}"
                where = f"bit {bit} of byte {at} of {name}: {text}"
                tally.complaints.append(Complaint(Wrong.CONTENT, where, replay))
    tally.distinct = tally.points
    return tally


def _wrong_after_flip(
    examination: Examination, copy: Path, files: dict[str, bytes], answers: dict[str, Any]
) -> tuple[str, str | None]:
    lay_out(copy, files)
    is_refused = _is_refused(copy, answers)
    report = examination.examine(files)
    outcome = "healthy" if report.is_healthy else "damaged"
    if not examination.is_untouched(files):
        return outcome, "the store that was examined has changed"
    if is_refused and report.is_healthy:
        return outcome, "the broker refuses it, and the doctor finds nothing"
    if not report.is_repaired:
        return outcome, "nothing was repaired"
    return outcome, _difference(report, examination.recovered(), answers)


def _is_refused(directory: Path, answers: dict[str, Any]) -> bool:
    store = SqliteStore(directory / STORE_NAME)
    try:
        return rot.all_answers(store, store.open()) != answers
    except rot.CLEAR:
        return True
    finally:
        let_go(store)


def _difference(report: StoreReport, found: dict[str, Any], before: dict[str, Any]) -> str | None:
    """What the repaired store lacks, or has too much, without a word about it."""
    missing_rows = repeated = 0
    for rows_of in (_chunks_of, _scheduled_of):
        old, new = rows_of(before), rows_of(found)
        for place, row in old.items():
            if place not in new:
                missing_rows += 1
                if not _is_said(report, *place):
                    return f"sequence number {place[1]} of queue {place[0]} is lost unsaid"
            elif new[place] != row:
                repeated += new[place][0] - row[0]
                # A message that was settled is there again.
                if new[place][0] > row[0] and "tombstone" in _damaged_tables(report):
                    continue
                return f"sequence number {place[1]} of queue {place[0]} has changed"
        foreign = new.keys() - old.keys()
        # Without the list of deleted queues their messages come back: repeated rather than lost.
        if foreign and "garbage" not in _damaged_tables(report):
            return f"{foreign} was not there before"
        repeated += sum(new[place][0] for place in foreign)
    # With older counters, messages that came later are taken for settled ones.
    has_counters = "counters" not in _damaged_tables(report)
    if repeated > report.totals.repeated or (has_counters and repeated < report.totals.repeated):
        return f"{repeated} messages are repeated, the doctor says {report.totals.repeated}"
    if missing_rows > 1 and not _has(report, FindingKind.SHARED_BODY_MISSING):
        return f"{missing_rows} rows are lost by one bit"
    if bool(missing_rows) != bool(report.totals.lost):
        return f"{missing_rows} rows are lost, and the doctor says {report.totals.lost} messages"
    if missing_rows == 0 and not _damaged_tables(report) & DETAILS:
        return _difference_in_details(report, found, before)
    return None


def _difference_in_details(
    report: StoreReport, found: dict[str, Any], before: dict[str, Any]
) -> str | None:
    """With every row there, everything else is as it was, but for the tables that are damaged."""
    damaged = _damaged_tables(report)
    if "entity" in damaged:
        # The row of a deleted entity may be back. (Its messages are not: that was checked above.)
        found = found | {
            part: {queue_id: found[part].get(queue_id) for queue_id in before[part]}
            for part in ("queues", "seen")
        }
    if found["queues"] != before["queues"] and not damaged & {"session_state", "garbage"}:
        return "a detail of a message has changed"
    if "garbage" in _damaged_tables(report):
        return None
    for part, table in (("seen", "seen"), ("meta", "meta"), ("entities", "entity")):
        if found[part] != before[part] and table not in _damaged_tables(report):
            return f"the {part} have changed"
    for queue_id, counters in before["counters"].items():
        if found["counters"][queue_id].next_seq < counters.next_seq:
            return "a sequence number would be given out twice"
    return None


def _chunks_of(answers: dict[str, Any]) -> dict[tuple[int, int], tuple[int, bytes]]:
    return {
        (queue_id, chunk.row.first_seq): (
            chunk.row.count - sum(last - first + 1 for first, last in chunk.gone),
            chunk.row.blob,
        )
        for queue_id, parts in answers["queues"].items()
        for chunk in parts[0]
    }


def _scheduled_of(answers: dict[str, Any]) -> dict[tuple[int, int], tuple[int, bytes]]:
    return {
        (queue_id, row.seq): (1, row.blob)
        for queue_id, parts in answers["queues"].items()
        for row in parts[1]
    }


def _is_said(report: StoreReport, queue_id: int, seq: int) -> bool:
    return any(
        lost.queue_id == queue_id and lost.first_seq <= seq <= lost.last_seq for lost in report.lost
    )


def _has(report: StoreReport, kind: FindingKind) -> bool:
    return any(finding.kind is kind for finding in report.findings)


def _damaged_tables(report: StoreReport) -> set[str | None]:
    return {finding.table for finding in report.findings}
