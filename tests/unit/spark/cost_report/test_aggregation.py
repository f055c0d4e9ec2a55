"""From lines to sums, step by step; no Spark in here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from twinbus.spark.cost_report import aggregation
from twinbus.spark.cost_report.aggregation import (
    found_in_short,
    spans_of,
    summed_by_hour,
    summed_by_minute,
    without_copies,
)
from twinbus.spark.cost_report.line_parser import LINES

MINUTE = 29_745_240 + 3_600  # The first of some hour.
DAY = MINUTE // 1440
READ = LINES.append(pa.field("file_day", pa.int32()))


def row(number: int, **fields: Any) -> dict[str, Any]:
    amounts = {"calls": 1, "messages": 3, "units": 3, "bytes_in": 300, "bytes_out": 0}
    usual = {
        "file_day": DAY, "minute": MINUTE, "namespace": "home", "source": "broker", "run": "r",
        "number": number, "entity": "orders", "operation": "send", "to_ms": 10, **amounts,
    }  # fmt: skip
    return usual | fields


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=READ)


ROWS = [
    row(1),
    row(2, units=5, to_ms=20, unwritten_units_max=7),
    row(3, minute=MINUTE + 1),
    row(1),  # A copy.
    row(2, run="another"),
    row(2, namespace="away"),
    row(2, source="client"),
    row(4, file_day=DAY + 1, entity="late"),
    row(5, file_day=DAY + 1, entity="copied"),
    row(5, entity="copied"),  # Also where it belongs, so it is not late.
    row(6, file_day=-1, entity="undated"),
    row(9, minute=MINUTE + 60, operation="closed", entity=""),
]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_came_twice_is_counted_once_and_then_by_the_minute(is_reversed: bool) -> None:
    """C3: duplicates are dropped by run and number; late lines count on their own day."""
    once = without_copies(table(ROWS[::-1] if is_reversed else ROWS))
    sums = summed_by_minute(once).to_pylist()

    found = {(each["namespace"], each["source"], each["run"], each["number"], each["duplicates"])
             for each in once.to_pylist()}  # fmt: skip
    assert len(once) == len(found) == 10
    assert {key[:4] for key in found if key[4]} == {
        ("home", "broker", "r", 1), ("home", "broker", "r", 5),
    }  # fmt: skip
    [first] = [
        s for s in sums
        if (s["run"], s["namespace"], s["source"], s["minute"], s["entity"])
        == ("r", "home", "broker", MINUTE, "orders")
    ]  # fmt: skip
    assert (first["units"], first["calls"], first["messages"], first["to_ms"]) == (8, 2, 6, 20)
    assert (first["records"], first["duplicates"], first["late"]) == (2, 1, 0)
    assert (first["unwritten_units_max"], first["day"]) == (7, DAY)
    late = {s["entity"]: (s["late"], s["duplicates"], s["day"]) for s in sums if s["late"]}
    assert late == {"late": (1, 0, DAY)}
    assert sum(s["units"] for s in sums) == 10 * 3 + 2


def test_hours_and_notes_have_what_the_minutes_have() -> None:
    """C3: nothing is lost between the sums of a report and those that it is made from."""
    sums = summed_by_minute(without_copies(table(ROWS)))

    hours = summed_by_hour(sums).to_pylist()
    found = found_in_short(sums).to_pylist()

    assert {hour["minute"] for hour in hours} == {MINUTE, MINUTE + 60}
    orders = [
        hour["units"]
        for hour in hours
        if (hour["entity"], hour["namespace"], hour["source"]) == ("orders", "home", "broker")
    ]
    assert orders == [3 + 5 + 3 + 3]  # Both runs, both minutes.
    for name in ("calls", "messages", "units", "records", "duplicates", "late"):
        assert sum(hour[name] for hour in hours) == sum(sums[name].to_pylist())
    assert sum(each["units"] for each in found) == sum(sums["units"].to_pylist())
    [closed] = [each for each in found if each["operation"] == "closed"]
    assert (closed["run"], closed["minute"], closed["to_ms"]) == ("r", MINUTE + 60, 10)
    [sent] = [
        each
        for each in found
        if (each["run"], each["namespace"], each["source"], each["operation"])
        == ("r", "home", "broker", "send")
    ]
    assert (sent["minute"], sent["last_minute"], sent["to_ms"]) == (MINUTE, MINUTE + 1, 20)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_the_bounds_of_a_run_the_last_one_counts(is_reversed: bool) -> None:
    """C3: it follows the load of the run, up and down."""
    rows = [
        row(number, operation="flushed", minute=MINUTE + number // 3, unwritten_units_max=bound)
        for number, bound in enumerate([1_000, 9_000, 4_000, 70_000, 2_000], 1)
    ]
    sums = summed_by_minute(without_copies(table(rows[::-1] if is_reversed else rows)))
    [found] = found_in_short(sums).to_pylist()
    assert found["unwritten_units_max"] == 2_000


def test_spans_tell_which_numbers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: copies elsewhere are found by spans, so that lines need not be compared."""
    numbers = [3, 1, 2, 2, 7, 8, 20]
    rows = [*(row(number) for number in numbers), row(4, run="another")]

    def told() -> list[tuple[str, int, int]]:
        spans = spans_of(without_copies(table(rows))).to_pylist()
        return sorted((span["run"], span["first"], span["last"]) for span in spans)

    assert told() == [("another", 4, 4), ("r", 1, 3), ("r", 7, 8), ("r", 20, 20)]
    monkeypatch.setattr(aggregation, "SPANS_MAX", 3)
    assert told() == [("another", 4, 4), ("r", 1, 20)]
