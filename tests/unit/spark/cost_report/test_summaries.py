"""What is kept beside the sums of a day, from literal notes; no JVM in here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.spark.cost_report.log_files import NO_DAY, day_number

if TYPE_CHECKING:
    from pyspark.sql import Row

DAY = "2026-11-16"
MINUTE = day_number(DAY) * 1440 + 600


def note(**fields: Any) -> Row:
    """Three messages that a run has sent in one minute."""
    from pyspark.sql import Row

    usual = {
        "block": 0, "file_day": day_number(DAY), "minute": MINUTE, "last_minute": MINUTE,
        "namespace": "home", "source": "broker", "run": "r", "operation": "send", "reason": None,
        "messages": 3, "units": 3, "bytes_out": 0, "records": None,
        "to_ms": MINUTE * 60_000 + 9_000, "unwritten_units_max": None,
    }  # fmt: skip
    return Row(**(usual | fields))


def test_a_file_contributes_to_a_day_although_another_copy_was_counted() -> None:
    """C3: of a line in three files any two may be removed, and the third is read again."""
    from twinbus.spark.cost_report.summaries import BlockNotes

    days = [DAY, "2026-11-17", "2026-11-18"]
    of_blocks = [note(block=at, file_day=day_number(day)) for at, day in enumerate(days)]
    of_blocks.append(note(block=3, file_day=NO_DAY))

    found = BlockNotes(of_blocks, [note(block=None, file_day=None)])

    assert [found.days_of(day) for day in (*days, "")] == [{DAY}] * 4
    assert found.days_of("2026-11-19") == set()
    assert found.summary_of(DAY)["totals"] == [["home", "broker", "send", 3, 3, 0]]


def test_damaged_lines_are_counted_by_their_file_and_reason() -> None:
    """C3: damaged records are counted, also those of blocks that share lines with another one."""
    from twinbus.spark.cost_report.summaries import BlockNotes

    torn = {"operation": None, "reason": "torn"}
    of_blocks = [note(), note(records=2, **torn), note(block=1, records=1, **torn)]
    of_blocks.append(note(records=5, file_day=NO_DAY, **torn))

    found = BlockNotes(of_blocks, [])

    assert found.damaged_of(DAY) == {"torn": 3}
    assert found.damaged_of("") == {"torn": 5}


def test_a_day_ends_behind_its_last_line() -> None:
    """C3: a line that begins and ends with the minute is in the report; so is one that goes on."""
    from twinbus.spark.cost_report.summaries import BlockNotes

    at_once = BlockNotes(counted=[note(to_ms=MINUTE * 60_000)]).summary_of(DAY)
    goes_on = BlockNotes(counted=[note(to_ms=(MINUTE + 3) * 60_000)]).summary_of(DAY)

    assert (at_once["first_minute"], at_once["end_minute"]) == (MINUTE, MINUTE + 1)
    assert goes_on["end_minute"] == MINUTE + 3


def test_a_run_is_closed_by_one_line_and_bounded_by_another() -> None:
    """C3: how much of an open run may be missing is what it has said last."""
    from twinbus.spark.cost_report.summaries import BlockNotes

    counted = [
        note(operation="opened", unwritten_units_max=500), note(to_ms=7), note(run="s"),
        note(run="s", operation="closed"),
        note(run="t", operation="flushed", unwritten_units_max=300, to_ms=MINUTE * 60_000 + 8_000),
        note(run="t", operation="flushed", unwritten_units_max=900, to_ms=MINUTE * 60_000 + 7_000),
        note(run="t", operation="opened", unwritten_units_max=500, to_ms=MINUTE * 60_000),
    ]  # fmt: skip

    runs = {run: facts for _, _, run, facts in BlockNotes(counted=counted).summary_of(DAY)["runs"]}

    assert (runs["r"]["is_closed"], runs["r"]["unwritten_units_max"]) == (False, 500)
    assert runs["r"]["to_ms"] == MINUTE * 60_000 + 9_000
    assert runs["s"]["is_closed"]
    assert runs["t"]["unwritten_units_max"] == 300
