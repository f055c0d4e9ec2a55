"""What ``twinbus cost report`` does: look at the logs, start Spark, ask, and show the answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Final

from twinbus.cli.cost_report import ReportOptions
from twinbus.cli.cost_report_shown import show_report
from twinbus.cli.showing import show_spinner
from twinbus.errors import ConfigurationError
from twinbus.prices import load_prices
from twinbus.spark.session import local_session, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_report"]

DRIVER_MEMORY: Final = "2g"


def run_report(options: ReportOptions) -> None:
    """Compute and show it; what can be refused without Spark is refused before it starts."""
    if options.begins is not None and options.ends is not None and options.begins >= options.ends:
        raise ConfigurationError("--from is not before --to", hint="Exchange them")
    prices = load_prices(options.prices)
    require_pyspark()
    from twinbus.spark.cost.log_files import find_logs

    find_logs(options.logs)
    with show_spinner("Spark starts, then the logs are read"), _session() as spark:
        from twinbus.spark.cost.report import ReportRequest, cost_report

        asked = ReportRequest(
            prices=prices,
            begins=options.begins,
            ends=options.ends,
            by=options.by,
            source=options.source,
            month_already=options.used,
        )
        made = cost_report(spark, options.logs, asked, state=options.state)
    if options.file is None:
        show_report(made, options.output)
        return
    try:
        with options.file.open("w", encoding="utf-8") as file, redirect_stdout(file):
            show_report(made, options.output)
    except OSError as error:
        raise ConfigurationError(
            f"{str(options.file)!r} cannot be written: {error.strerror}", hint="Choose another file"
        ) from error


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = local_session(
        "twinbus cost report",
        fast_start=True,  # Arrow does the work, also with large logs.
        finds_sources=False,
        more={"spark.driver.memory": DRIVER_MEMORY},
    )
    try:
        yield spark
    finally:
        spark.stop()
