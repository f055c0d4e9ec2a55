"""Reports over real files: told once, kept by day, and the same whatever was kept."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.spark.cost.logs import BACKLOG, RUN, line, write
from twinbus.errors import ConfigurationError
from twinbus.prices import load_prices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.cost.report import Made

AWAY = {"namespace": "away", "run": "00000000000000bb"}
PRICES = load_prices("standard")


def write_two_days(logs: Path) -> None:
    """An outage late on the 16th, and a quiet 17th."""
    write(
        logs / "home" / "operations-2026-11-16.jsonl",
        [
            line(1, operation="opened", entity="", units=0, messages=0, calls=0, bytes_in=0,
                 unwritten_units_max=500),
            line(2), line(3, entity="bills", units=7), line(3, entity="bills", units=7),
            line(4, operation="ping", units=4, messages=4), line(5, operation="settle", units=0),
            '{"version":1,"ru',
        ],
    )  # fmt: skip
    write(
        logs / "away" / "operations-2026-11-16.jsonl",
        [
            line(1, entity=BACKLOG, units=10, messages=9, **AWAY),
            line(2, entity=BACKLOG, operation="receive", units=10, messages=9, bytes_in=0, **AWAY),
            line(3, entity=BACKLOG, operation="empty-receive", messages=0, units=40, **AWAY),
            line(4, entity=BACKLOG, operation="management", messages=0, units=2, **AWAY),
            line(5, entity="", operation="closed", units=0, **AWAY),
            # What a client counted of the same: the broker's own lines are there.
            line(1, source="client", run="cc", units=99, namespace="away"),
        ],
    )
    write(logs / "home" / "operations-2026-11-17.jsonl", [line(6, "2026-11-17T08:00:00")])


def report(spark: SparkSession, logs: Path, state: Path | None = None, **asked: Any) -> Made:
    from twinbus.spark.cost.report import Asked, cost_report

    return cost_report(spark, [logs], Asked(prices=PRICES, **asked), state=state)


def test_a_report_tells_what_was_done_and_what_it_cost(spark: SparkSession, tmp_path: Path) -> None:
    """C2, C3: detours, pings and polling by pair; slices that add up; what may be missing."""
    write_two_days(tmp_path)

    made = report(spark, tmp_path, month_already=13_000_000)

    told = made.report
    assert (told.begins, told.ends) == (
        datetime(2026, 11, 16, 10, 0, tzinfo=UTC), datetime(2026, 11, 17, 8, 1, tzinfo=UTC),
    )  # fmt: skip
    units = {tuple(each.keys.values()): each.units for each in told.slices}
    assert units == {
        (BACKLOG, "2026-11-16"): 62, ("orders", "2026-11-16"): 7, ("bills", "2026-11-16"): 7,
        ("orders", "2026-11-17"): 3,
    }  # fmt: skip
    assert told.total.units == 79
    assert told.total.cost == sum(each.cost for each in told.slices)
    # Everything is in the tier of 0.80 a million.
    assert abs(told.total.cost - 79 * Decimal("0.0000008")) < Decimal("1e-15")
    assert told.base_cost == PRICES.base_charge(23, 2)
    assert told.step_s == 3600
    assert told.idle_share == 40 / 79
    assert abs(told.idle_cost - 40 * Decimal("0.0000008")) < Decimal("1e-15")
    [pair] = told.pairs
    assert (pair.pair, pair.detoured_messages, pair.detour_units) == ("home", 9, 20)
    assert (pair.ping_units, pair.polling_units, pair.other_units) == (4, 40, 2)
    [detour] = told.detours
    assert (detour.pair, detour.sent, detour.received) == ("home", 9, 9)
    assert sum(kind.units for kind in told.kinds) == 79
    assert [each.keys["entity"] for each in told.entities] == [BACKLOG, "orders", "bills"]
    quality = told.quality
    assert (quality.records, quality.duplicates, quality.late) == (9, 1, 0)
    assert quality.damaged == {"not a line of JSON with a version": 1}
    [run] = quality.open_runs
    assert (run.namespace, run.run, run.source, run.units_missing_max) == (
        "home", RUN, "broker", 500,
    )  # fmt: skip
    assert run.last_at == datetime(2026, 11, 17, 8, 0, 9, tzinfo=UTC)
    assert [each.day for each in made.computed] == ["2026-11-16", "2026-11-17"]
    [kept] = spark.read.parquet(*map(str, made.damaged)).collect()
    assert (kept.text, kept.records) == ('{"version":1,"ru', 1)
    [state] = (tmp_path / ".twinbus-cost").iterdir()
    assert state.stat().st_mode & 0o077 == 0

    # The sums are there: other questions are answered without reading logs.
    clients = report(spark, tmp_path, source="client", by=("source", "hour"))
    assert clients.computed == ()
    assert [dict(each.keys) for each in clients.report.slices] == [
        {"source": "client", "hour": "2026-11-16 10:00"}
    ]
    assert clients.report.total.units == 99
    assert [run.run for run in clients.report.quality.open_runs] == ["cc"]
    with pytest.raises(ConfigurationError, match="nothing was counted between 2026-11-17 00:00"):
        report(
            spark, tmp_path, begins=datetime(2026, 11, 17, tzinfo=UTC),
            ends=datetime(2026, 11, 17, 5, tzinfo=UTC),
        )  # fmt: skip


def test_only_days_of_changed_files_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    """C3: a new day does not recompute the old ones; late lines count on their own day."""
    logs, state = tmp_path / "logs", tmp_path / "state"
    write_two_days(logs)
    first = report(spark, logs, state)

    again = report(spark, logs, state)
    assert again.computed == ()
    assert again.report == first.report

    # A new day: the others are not read.
    new = write(logs / "home" / "operations-2026-11-18.jsonl", [line(7, "2026-11-18T08:00:00")])
    grown = report(spark, logs, state)
    assert [(each.day, each.files) for each in grown.computed] == [("2026-11-18", (str(new),))]
    assert grown.report.total.units == first.report.total.units + 3

    # It brings a line of the 17th, one that was there before, and a damaged one: both days anew.
    write(new, [line(8, "2026-11-17T09:00:00"), line(6, "2026-11-17T08:00:00"), "{"])
    late = report(spark, logs, state)
    assert [each.day for each in late.computed] == ["2026-11-17", "2026-11-18"]
    assert late.computed[0].files == (str(logs / "home/operations-2026-11-17.jsonl"), str(new))
    assert late.report.total.units == grown.report.total.units + 3
    quality = late.report.quality
    assert (quality.late, quality.duplicates) == (1, 2)
    assert quality.damaged == {"not a line of JSON with a version": 2}

    # And nobody can tell whether it was computed bit by bit.
    assert report(spark, logs, tmp_path / "other").report == late.report

    # A file that is gone takes its lines along.
    new.unlink()
    less = report(spark, logs, state)
    assert [each.day for each in less.computed] == ["2026-11-17", "2026-11-18"]
    assert less.report == first.report


def test_a_killed_or_damaged_state_costs_time_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: a crash leaves the old state valid, and a state that lies is made again."""
    from twinbus.spark.cost.state import CostState

    logs, state = tmp_path / "logs", tmp_path / "state"
    write_two_days(logs)
    right = report(spark, logs, state).report

    # Killed when all but the manifest was written.
    new = write(logs / "home" / "operations-2026-11-18.jsonl", [line(7, "2026-11-18T08:00:00")])
    monkeypatch.setattr(CostState, "replace", _killed)
    with pytest.raises(KeyboardInterrupt):
        report(spark, logs, state)
    monkeypatch.undo()
    new.unlink()
    assert len(list((state / "days").iterdir())) == 3
    spared = report(spark, logs, state)
    assert (spared.computed, spared.report) == ((), right)
    assert len(list((state / "days").iterdir())) == 2

    # As long as it was, and nonsense.
    for path in (state / "days").glob("*/*.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
    mended = report(spark, logs, state)
    assert (len(mended.computed), mended.report) == (2, right)

    # Half a directory.
    shutil.rmtree(next((state / "days").iterdir()))
    assert (len(report(spark, logs, state).computed)) == 2


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}', "null"])
def test_a_manifest_that_nobody_can_read_is_forgotten(tmp_path: Path, text: str) -> None:
    from twinbus.spark.cost.state import CostState, Manifest

    (tmp_path / "manifest.json").write_text(text)
    with CostState(tmp_path).held() as state:
        assert state.manifest == Manifest()
        with (
            pytest.raises(ConfigurationError, match="another report uses"),
            CostState(tmp_path).held(),
        ):
            pass


def test_the_command_answers_in_four_forms(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: `twinbus cost report` as a table, JSON, CSV and a page."""
    from twinbus.cli import app
    from twinbus.cli import cost_report_run as run

    @contextmanager
    def shared(_size_bytes: int) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(run, "_session", shared)
    monkeypatch.setenv("COLUMNS", "160")
    write_two_days(tmp_path)

    def told(*arguments: str) -> str:
        asked = ["cost", "report", str(tmp_path), "--used", "13M", *arguments]
        result = CliRunner().invoke(app, asked, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(told("--output", "json"))
    assert found["total"]["units"] == 79
    assert found["total"]["cost"] == "0.0000632"
    assert found["quality"]["units_missing_max"] == 500
    assert [each["day"] for each in found["computed_days"]] == ["2026-11-16", "2026-11-17"]

    rows = list(csv.DictReader(io.StringIO(told("--by", "day,entity", "--output", "csv"))))
    assert [(row["day"], row["entity"], row["units"]) for row in rows][-1] == (
        "2026-11-17", "orders", "3",
    )  # fmt: skip

    table = told("--by", "namespace", "--from", "2026-11-16", "--to", "2026-11-17")
    assert "From 8 lines of operations logs; 1 came twice and are left out; 1 damaged" in table
    assert "at most" not in table, "its last line is of another day"

    page = tmp_path / "report.html"
    assert told("--output", "html", "--file", str(page)) == ""
    assert page.read_text().startswith("<!doctype html>")
    assert BACKLOG in page.read_text()


def test_a_price_sheet_that_charges_settlements_and_transfer_is_followed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """C3: what is charged is the sheet's word."""
    from twinbus.core.costs import Operation
    from twinbus.core.prices import Tier
    from twinbus.spark.cost.report import Asked, cost_report

    write_two_days(tmp_path)
    write(tmp_path / "home/operations-2026-11-17.jsonl", [
        line(9, "2026-11-17T08:00:00", operation="receive", bytes_out=2_000_000)
    ])  # fmt: skip
    sheet = replace(
        PRICES, charged=frozenset({Operation.SETTLE}), operations=(Tier(None, Decimal(2)),),
        transfer_out=(Tier(None, Decimal(5)),),
    )  # fmt: skip

    told = cost_report(spark, [tmp_path], Asked(prices=sheet, by=("operation",))).report

    cost = {each.keys["operation"]: each.cost.normalize() for each in told.slices if each.cost}
    assert cost == {"settle": Decimal("0.000006"), "receive": Decimal("0.01")}
