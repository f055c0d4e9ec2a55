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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.support.cost_logs import BACKLOG, RUN, flushed, line, write
from twinbus.cost.price_sheets import load_prices
from twinbus.cost.prices import Tier
from twinbus.cost.units import Operation
from twinbus.errors import ConfigurationError
from twinbus.spark.cost_report.state import CostState, Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.cost_report.report import ComputedReport
    from twinbus.spark.cost_report.update import Computed

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
            flushed(101, 9_000), flushed(102, 2_000),
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
    write(
        logs / "home" / "operations-2026-11-17.jsonl",
        [
            line(6, "2026-11-17T08:00:00"),
            line(7, "2026-11-17T08:00:00", operation="receive", units=0, bytes_out=2_000_000),
            flushed(103, 700, "2026-11-17T08:00:00"),
        ],
    )


def report(
    spark: SparkSession, logs: Path, state: Path | None = None, **asked: Any
) -> ComputedReport:
    from twinbus.spark.cost_report.report import ReportRequest, cost_report

    return cost_report(spark, [logs], ReportRequest(**({"prices": PRICES} | asked)), state=state)


def computed(spark: SparkSession, logs: Path, state: Path) -> tuple[Computed, ...]:
    """What a report would compute; nothing is asked."""
    from twinbus.spark.cost_report.log_files import find_logs
    from twinbus.spark.cost_report.state import CostState
    from twinbus.spark.cost_report.update import update

    with CostState(state).held() as held:
        return update(spark, held, find_logs([logs]))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days that nobody changes; what a report keeps is below them."""
    directory = tmp_path_factory.mktemp("logs") / "a [b] *{c}?"
    write_two_days(directory)
    return directory


@pytest.fixture(scope="module")
def first(spark: SparkSession, logs: Path) -> ComputedReport:
    """The first report about them."""
    return report(spark, logs, month_already=13_000_000)


def test_a_report_tells_what_was_done_and_what_it_cost(
    spark: SparkSession, logs: Path, first: ComputedReport
) -> None:
    """C2, C3: detours, pings and polling by pair; slices that add up; what may be missing."""
    told = first.report
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
    assert (quality.records, quality.duplicates, quality.late) == (10, 1, 0)
    assert quality.damaged == {"not a line of JSON with a version": 1}
    [run] = quality.open_runs
    assert (run.namespace, run.run, run.source, run.units_missing_max) == (
        "home", RUN, "broker", 700,
    )  # fmt: skip
    assert run.last_at == datetime(2026, 11, 17, 8, 0, 9, tzinfo=UTC)
    assert [each.day for each in first.computed] == ["2026-11-16", "2026-11-17"]
    [directory] = first.damaged
    [kept] = pyarrow.parquet.read_table(directory).to_pylist()
    assert (kept["text"], kept["reason"]) == ('{"version":1,"ru', *quality.damaged)
    assert Path(kept["file"]) == logs / "home/operations-2026-11-16.jsonl"
    [state] = (logs / ".twinbus-cost").iterdir()
    assert all(path.stat().st_mode & 0o077 == 0 for path in state.rglob("*") if path.is_dir())

    # The sums are there: other questions are answered without reading logs, here by the minute.
    clients = report(
        spark, logs, source="client", by=("source", "hour"),
        ends=datetime(2026, 11, 16, 10, 1, tzinfo=UTC),
    )  # fmt: skip
    assert clients.computed == ()
    assert clients.report.step_s == 60
    assert [dict(each.keys) for each in clients.report.slices] == [
        {"source": "client", "hour": "2026-11-16 10:00"}
    ]
    assert clients.report.total.units == 99
    assert [run.run for run in clients.report.quality.open_runs] == ["cc"]


def test_a_price_sheet_that_charges_settlements_and_transfer_is_followed(
    spark: SparkSession, logs: Path, first: ComputedReport
) -> None:
    """C3: what is charged is the sheet's word."""
    sheet = replace(
        PRICES, charged=frozenset({Operation.SETTLE}), operations=(Tier(None, Decimal(2)),),
        transfer_out=(Tier(None, Decimal(5)),),
    )  # fmt: skip

    made = report(spark, logs, prices=sheet, by=("operation",))

    cost = {e.keys["operation"]: e.cost.normalize() for e in made.report.slices if e.cost}
    assert cost == {"settle": Decimal("0.000006"), "receive": Decimal("0.01")}
    assert first.computed
    assert made.computed == ()


def test_only_days_of_changed_files_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    """C3: a new day does not recompute the old ones; late lines count on their own day; a crash
    leaves the old state valid, and a state that lies is made again."""
    logs, state = tmp_path / "logs", tmp_path / "state"
    write_two_days(logs)
    before = report(spark, logs, state).report
    assert computed(spark, logs, state) == ()

    # A new day: the others are not read.
    new = write(logs / "home" / "operations-2026-11-18.jsonl", [line(8, "2026-11-18T08:00:00")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CostState, "replace", _killed)  # When all but the manifest is written.
        with pytest.raises(KeyboardInterrupt):
            computed(spark, logs, state)
    assert len(list((state / "days").iterdir())) == 3
    [day] = computed(spark, logs, state)
    assert (day.day, day.files) == ("2026-11-18", (str(new),))
    assert len(list((state / "days").iterdir())) == 3, "what was left behind is gone"

    # It brings a line of the 17th, one that was there before, and a damaged one: both days anew.
    write(new, [line(9, "2026-11-17T09:00:00"), line(6, "2026-11-17T08:00:00"), "{"])
    late = report(spark, logs, state)
    assert [each.day for each in late.computed] == ["2026-11-17", "2026-11-18"]
    assert late.computed[0].files == (str(logs / "home/operations-2026-11-17.jsonl"), str(new))
    assert late.report.total.units == before.total.units + 6
    quality = late.report.quality
    assert (quality.late, quality.duplicates) == (1, 2)
    assert quality.damaged == {"not a line of JSON with a version": 2}

    # And nobody can tell whether it was computed bit by bit; nonsense as long as it was is noticed.
    for path in (state / "days").glob("*/*.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
    mended = report(spark, logs, state)
    assert (len(mended.computed), mended.report) == (3, late.report)

    # A file that is gone takes its lines along.
    new.unlink()
    less = report(spark, logs, state)
    assert [each.day for each in less.computed] == ["2026-11-17", "2026-11-18"]
    assert less.report == before

    # Half a directory.
    shutil.rmtree(next((state / "days").iterdir()))
    assert len(computed(spark, logs, state)) == 2


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_it_does_not_matter_how_the_logs_are_cut(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: copies and late lines are found across blocks and files, and nothing is counted twice."""
    from twinbus.spark.cost_report import update
    from verification.benchmarks import cost_lines

    for name, share in {"TORN_SHARE": 0.01, "AGAIN_SHARE": 0.1, "LATE_SHARE": 0.01}.items():
        monkeypatch.setattr(cost_lines, name, share)
    written = cost_lines.write_logs(tmp_path / "logs", 3_000)
    monkeypatch.setattr(update, "blocks_of", partial(update.blocks_of, size_max=12_000))
    # A shipper has sent a part of one file to another place once more.
    again = (tmp_path / "logs/contoso-03/operations-2026-11-02.jsonl").read_bytes().splitlines(True)
    whole = [each for each in again[10:60] if each.endswith(b"}\n")]
    (tmp_path / "logs/operations-2026-11-09.jsonl").write_bytes(b"".join(whole))

    ends = datetime(2026, 11, 10, tzinfo=UTC)  # Of damaged lines the day of their file counts.
    told = report(spark, tmp_path / "logs", tmp_path / "state", ends=ends).report

    quality = told.quality
    assert (quality.records, told.total.units) == (written.records, written.units)
    assert quality.duplicates == written.duplicates + len(whole)
    assert (sum(quality.damaged.values()), quality.late) == (written.damaged, written.late)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 99}', "null"])
def test_a_manifest_that_nobody_can_read_is_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with CostState(tmp_path).held() as state:
        assert state.manifest == Manifest()
        with (
            pytest.raises(ConfigurationError, match="Another report uses"),
            CostState(tmp_path).held(),
        ):
            pass


def test_the_command_answers_in_four_forms(
    spark: SparkSession,
    logs: Path,
    first: ComputedReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C3: `twinbus cost report` as a table, JSON, CSV and a page."""
    from twinbus.cli import app
    from twinbus.cli.cost import report_output as run
    from twinbus.spark.cost_report import report as reporting

    @contextmanager
    def shared() -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(run, "_session", shared)
    monkeypatch.setenv("COLUMNS", "160")

    def told(*arguments: str) -> str:
        asked = ["cost", "report", str(logs), "--used", "13M", *arguments]
        result = CliRunner().invoke(app, asked, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    table = told("--by", "namespace", "--from", "2026-11-16", "--to", "2026-11-17")
    assert "From 8 lines of operations logs; 1 duplicate ignored; 1 damaged" in table
    assert "at most" not in table, "its last line is of another day"

    # The other forms show what the first report has told.
    monkeypatch.setattr(reporting, "cost_report", lambda *_, **__: first)
    found = json.loads(told("--output", "json"))
    assert found["total"]["units"] == 79
    assert found["total"]["cost"] == "0.0000632"
    assert found["quality"]["units_missing_max"] == 700
    assert [each["day"] for each in found["computed_days"]] == ["2026-11-16", "2026-11-17"]

    rows = list(csv.DictReader(io.StringIO(told("--output", "csv"))))
    assert ("2026-11-17", "orders", "3") in [(r["day"], r["entity"], r["units"]) for r in rows]

    page = tmp_path / "report.html"
    assert told("--output", "html", "--file", str(page)) == ""
    assert page.read_text().startswith("<!doctype html>")
    assert BACKLOG in page.read_text()


def test_a_time_without_lines_is_told_in_a_sentence(
    spark: SparkSession, logs: Path, first: ComputedReport
) -> None:
    """C3: nothing was counted, and that is said before anything is computed in vain."""
    times = {"begins": datetime(2026, 11, 17, tzinfo=UTC),
             "ends": datetime(2026, 11, 17, 5, tzinfo=UTC)}  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"No operations .* 2026-11-17 00:00"):
        report(spark, logs, **times)
    assert first.computed
