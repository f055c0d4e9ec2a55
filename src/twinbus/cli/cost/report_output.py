"""Runs ``twinbus cost report`` on Spark, and prints it as tables, JSON, JSON lines, CSV or HTML.

Rule 1: in JSON and CSV, amounts of money are exact and are text, because JSON numbers would round
        them; tables show them rounded.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import typer

from twinbus.cli.cost.commands import ReportOptions
from twinbus.cli.shared.output import plural, show_json, show_spinner, show_table
from twinbus.cost.price_sheets import load_prices
from twinbus.cost.prices import money
from twinbus.cost.report import CostReport, Quality, Slice
from twinbus.errors import ConfigurationError
from twinbus.spark.runtime.session import local_session, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.spark.cost_report.report import ComputedReport

__all__ = ["as_json", "run_report", "show_report"]

SHOWN_MAX: Final = 50
"""Lines in the table; the other formats have all lines."""
_COUNTS: Final = ("calls", "messages", "units", "bytes_in", "bytes_out")


def show_report(computed: ComputedReport, output: str) -> None:
    """Print a report."""
    _WRITERS[output](computed)


# -- tables -------------------------------------------------------------------------------


def _show_tables(computed: ComputedReport) -> None:
    report = computed.report
    shown = report.slices[:SHOWN_MAX]
    left = len(report.slices) - len(shown)
    currency = report.prices.currency
    show_table(
        [*report.by, "calls", "messages", "operations", "MB in", "MB out", currency],
        [_row([each.keys[word] for word in report.by], each) for each in shown],
        title=f"Costs from {_format_time(report.begins)} to {_format_time(report.ends)} (UTC)",
        numbers_from=len(report.by),
        totals=[_row(["total", *[""] * (len(report.by) - 1)], report.total)],
    )
    if left:
        typer.echo(f"{plural(left, 'more line')} in --output csv")
    if report.pairs:
        show_table(
            ["pair", "diverted", "diversion", "pings", "idle polls", "other", currency],
            [
                (
                    pair.pair,
                    f"{pair.detoured_messages:,}",
                    f"{pair.detour_units:,}",
                    f"{pair.ping_units:,}",
                    f"{pair.polling_units:,}",
                    f"{pair.other_units:,}",
                    money(pair.cost),
                )
                for pair in report.pairs
            ],
            title="Additional operations of pairs, and their cost",
            numbers_from=1,
        )
    for line in _notes(report):
        typer.echo(line)


def _row(names: list[str], each: Slice) -> tuple[str, ...]:
    counts = (f"{number:,}" for number in (each.calls, each.messages, each.units))
    sizes = (f"{size / 1_000_000:,.1f}" for size in (each.bytes_in, each.bytes_out))
    return (*names, *counts, *sizes, money(each.cost))


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _notes(report: CostReport) -> Iterator[str]:
    prices, quality = report.prices, report.quality
    yield (
        f"Idle polling: {report.idle_share:.1%} of all operations, "
        f"{money(report.idle_cost)} {prices.currency}. "
        f"Base charge for this time: {money(report.base_cost)} {prices.currency}, not in the table."
    )
    yield f"Prices: {prices.name}, {prices.dated}, {prices.source}"
    yield f"From {plural(quality.records, 'line')} of operations logs{_format_problems(quality)}."
    if quality.open_runs:
        yield (
            f"{plural(len(quality.open_runs), 'run')} without an end (running or killed): "
            f"at most {quality.units_missing_max:,} operations are missing."
        )


def _format_problems(quality: Quality) -> str:
    problems = []
    if quality.duplicates:
        problems.append(f"{plural(quality.duplicates, 'duplicate')} ignored")
    if quality.late:
        problems.append(f"{quality.late:,} in the file of another day")
    for reason, count in sorted(quality.damaged.items()):
        problems.append(f"{count:,} damaged ({reason})")
    return "".join(f"; {each}" for each in problems)


# -- JSON and CSV -------------------------------------------------------------------------


def as_json(computed: ComputedReport) -> dict[str, Any]:
    """The whole report, and the days that were computed for it."""
    report, prices, quality = computed.report, computed.report.prices, computed.report.quality
    return {
        "from": _iso(report.begins),
        "to": _iso(report.ends),
        "by": list(report.by),
        "prices": {
            "name": prices.name,
            "currency": prices.currency,
            "source": prices.source,
            "dated": prices.dated,
        },
        "total": _slice(report.total),
        "base_cost": _exact(report.base_cost),
        "idle_share": report.idle_share,
        "idle_cost": _exact(report.idle_cost),
        "slices": [_slice(each) for each in report.slices],
        "entities": [_slice(each) for each in report.entities],
        "step_s": report.step_s,
        "kinds": [
            {
                "at": _iso(kind.at),
                "operation": kind.operation,
                "units": kind.units,
                "cost": _exact(kind.cost),
            }
            for kind in report.kinds
        ],
        "detours": [
            {
                "at": _iso(detour.at),
                "pair": detour.pair,
                "sent": detour.sent,
                "received": detour.received,
                "cost": _exact(detour.cost),
            }
            for detour in report.detours
        ],
        "pairs": [
            {
                "pair": pair.pair,
                "detoured_messages": pair.detoured_messages,
                "detour_units": pair.detour_units,
                "ping_units": pair.ping_units,
                "polling_units": pair.polling_units,
                "other_units": pair.other_units,
                "cost": _exact(pair.cost),
            }
            for pair in report.pairs
        ],
        "quality": {
            "records": quality.records,
            "duplicates": quality.duplicates,
            "late": quality.late,
            "damaged": dict(quality.damaged),
            "damaged_lines_in": [str(path) for path in computed.damaged],
            "open_runs": [
                {
                    "namespace": run.namespace,
                    "run": run.run,
                    "source": run.source,
                    "last_at": _iso(run.last_at),
                    "units_missing_max": run.units_missing_max,
                }
                for run in quality.open_runs
            ],
            "units_missing_max": quality.units_missing_max,
        },
        "computed_days": [
            {"day": each.day, "files": list(each.files)} for each in computed.computed
        ],
    }


def _slice(each: Slice) -> dict[str, Any]:
    counts = {name: getattr(each, name) for name in _COUNTS}
    return {**each.keys, **counts, "cost": _exact(each.cost)}


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _exact(amount: Decimal) -> str:
    """``0.80``, never ``8E-1``; without trailing zeros."""
    return f"{amount.normalize():f}" if amount else "0"


def _show_json(computed: ComputedReport) -> None:
    show_json(as_json(computed), "json")


def _show_lines(computed: ComputedReport) -> None:
    for each in computed.report.slices:
        show_json(_slice(each), "jsonl")


def _show_csv(computed: ComputedReport) -> None:
    report = computed.report
    writer = csv.DictWriter(sys.stdout, [*report.by, *_COUNTS, "cost"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_slice(each) for each in report.slices)


def _show_page(computed: ComputedReport) -> None:
    from twinbus.cost.html.page import render

    typer.echo(render(computed.report), nl=False)


_WRITERS: Final[Mapping[str, Callable[[ComputedReport], None]]] = {
    "table": _show_tables,
    "json": _show_json,
    "jsonl": _show_lines,
    "csv": _show_csv,
    "html": _show_page,
}


DRIVER_MEMORY: Final = "2g"


def run_report(options: ReportOptions) -> None:
    """Compute and print a report; wrong options are refused before Spark starts."""
    if options.begins is not None and options.ends is not None and options.begins >= options.ends:
        raise ConfigurationError(
            "--from is not earlier than --to", hint="Set --from earlier than --to"
        )
    prices = load_prices(options.prices)
    require_pyspark()
    from twinbus.spark.cost_report.log_files import find_logs

    find_logs(options.logs)
    with show_spinner("Starting Spark and reading the logs"), _session() as spark:
        from twinbus.spark.cost_report.report import ReportRequest, cost_report

        request = ReportRequest(
            prices=prices,
            begins=options.begins,
            ends=options.ends,
            by=options.by,
            source=options.source,
            month_already=options.used,
        )
        computed = cost_report(spark, options.logs, request, state=options.state)
    if options.file is None:
        show_report(computed, options.output)
        return
    try:
        with options.file.open("w", encoding="utf-8") as file, redirect_stdout(file):
            show_report(computed, options.output)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write {str(options.file)!r}: {error.strerror}",
            hint="Use another file for --file",
        ) from error


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = local_session(
        "twinbus cost report",
        fast_start=True,  # Arrow does the computation, also for large logs.
        finds_sources=False,
        more={"spark.driver.memory": DRIVER_MEMORY},
    )
    try:
        yield spark
    finally:
        spark.stop()
