"""The final report of the demo, on Spark: the cost of the outage, and the reconciliation.

    python -m twinbus.demo.final_report DIR   starts Spark, waits for a line, reads the logs in DIR

It writes ``cost.html``, ``cost.json`` and ``books.json`` to DIR, and prints a FinalReport as JSON.

Rule 1: it runs in its own process with one Spark session for both reports, which starts during the
        outage: the demo does not wait for Spark.
Rule 2: operations that a month includes are not deducted: with them every outage would be free.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.cost.price_sheets import load_prices
from twinbus.demo.output_files import Files
from twinbus.demo.processes import DemoProcess
from twinbus.demo.scenario import PRIMARY, SECONDARY
from twinbus.errors import TwinbusError
from twinbus.spark.errors import translate_spark_errors
from twinbus.spark.runtime.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.cost.reconciliation import Reconciliation
    from twinbus.cost.report import CostReport

__all__ = ["FinalReport", "FinalReportProcess", "create_cost_report", "reconcile_demo"]

PRICES: Final = "standard"
ANSWER_S_MAX: Final = 180.0
_GO: Final = b"go\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """The results of both reports."""

    operations: int
    """Billable operations on both namespaces."""
    cost: float
    """Cost of the outage: the operations that it has added."""
    currency: str
    is_reconciled: bool
    verdict: str
    """The result of the reconciliation, as a sentence."""


class FinalReportProcess:
    """Starts and queries the process of the final report."""

    def __init__(self, files: Files) -> None:
        self._directory = files.directory
        self._child = DemoProcess("Final report", files / "closing.log")

    async def start(self) -> None:
        """Start the process, which starts Spark and waits."""
        await self._child.start([__name__, str(self._directory)], {})

    async def answer(self) -> FinalReport:
        """Request the reports: the logs are complete."""
        output = await self._child.answer(_GO, within_s=ANSWER_S_MAX)
        return FinalReport(**json.loads(output))

    async def close(self) -> None:
        await self._child.close()


def main(directory: Path) -> None:
    """Start Spark, wait for a line, and print the report."""
    files = Files(directory)
    with translate_spark_errors():
        spark = local_session("twinbus demo", fast_start=True, finds_sources=False)
        try:
            _prepare()
            if sys.stdin.buffer.readline() != _GO:
                return
            # In parallel: one is planned while the other is computed.
            with ThreadPoolExecutor(2) as both:
                futures = (
                    both.submit(create_cost_report, spark, files),
                    both.submit(reconcile_demo, spark, files),
                )
                report, reconciliation = futures[0].result(), futures[1].result()
        finally:
            spark.stop()
    final = FinalReport(
        operations=report.total.units,
        cost=float(sum(pair.cost for pair in report.pairs)),
        currency=report.prices.currency,
        is_reconciled=reconciliation.closes is True,
        verdict=reconciliation.verdict,
    )
    sys.stdout.write(json.dumps(asdict(final)) + "\n")


def _prepare() -> None:
    """Import what the reports need, while the outage lasts."""
    import twinbus.cost.html.page
    import twinbus.spark.cost_report.report  # noqa: F401


def create_cost_report(spark: SparkSession, files: Files) -> CostReport:
    """The cost by the logs of the brokers; also written to files."""
    from twinbus.cost.html.page import render
    from twinbus.spark.cost_report.report import ReportRequest, cost_report

    prices = load_prices(PRICES)
    request = ReportRequest(
        prices=prices, by=("namespace", "operation"), month_already=prices.included
    )
    report = cost_report(spark, [files.logs], request, state=files / "cost").report
    files.write_json("cost.json", asdict(report))
    (files / "cost.html").write_text(render(report), encoding="utf-8")
    return report


def reconcile_demo(spark: SparkSession, files: Files) -> Reconciliation:
    """The state of every message, by all logs; also written to a file."""
    from twinbus.spark.reconciliation.pipeline import Sources, reconcile

    sources = Sources(
        primary_logs=files.logs / PRIMARY,
        secondary_logs=files.logs / SECONDARY,
        client_logs=files.client,
        receipts=files.receipts,
        journal=files.journal,
    )
    reconciliation = reconcile(spark, sources, pair=PRIMARY)
    files.write_json("books.json", reconciliation.to_json())
    return reconciliation


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except TwinbusError as error:
        sys.exit(f"twinbus: {error}")
