"""The end of the demo, on Spark: what the outage cost, and whether the books of the logs close.

    python -m twinbus.demo.final_report DIR   starts Spark, waits for a line, reads the logs in DIR

It leaves ``cost.html``, ``cost.json`` and ``books.json`` in DIR, and says what they come to.

Rule 1: it is a process of its own with one Spark session for both questions, which starts while the
        outage lasts: nobody waits for Spark.
Rule 2: prices are those beyond what a month includes: within it every outage would be free.
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

__all__ = ["Closing", "FinalReport", "cost_of", "reconcile_demo"]

PRICES: Final = "standard"
ANSWER_S_MAX: Final = 180.0
_GO: Final = b"go\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalReport:
    """What the logs come to."""

    operations: int
    """Billable ones, of both namespaces."""
    cost: float
    """Of the outage: what the same messages would not have cost without it."""
    currency: str
    does_close: bool
    verdict: str
    """A sentence about the books."""


class Closing:
    """The process, for the story."""

    def __init__(self, files: Files) -> None:
        self._directory = files.directory
        self._child = DemoProcess("the last act", files / "closing.log")

    async def start(self) -> None:
        """Start Spark, and wait to be asked."""
        await self._child.start([__name__, str(self._directory)], {})

    async def answer(self) -> FinalReport:
        """Ask now: the logs are complete."""
        said = await self._child.answer(_GO, within_s=ANSWER_S_MAX)
        return FinalReport(**json.loads(said))

    async def close(self) -> None:
        await self._child.close()


def main(directory: Path) -> None:
    """Start Spark, wait for a line, and answer."""
    files = Files(directory)
    with translate_spark_errors():
        spark = local_session("twinbus demo", fast_start=True, finds_sources=False)
        try:
            _prepare()
            if sys.stdin.buffer.readline() != _GO:
                return
            # At once: what one plans the other can compute meanwhile.
            with ThreadPoolExecutor(2) as both:
                asked = (
                    both.submit(cost_of, spark, files),
                    both.submit(reconcile_demo, spark, files),
                )
                report, books = asked[0].result(), asked[1].result()
        finally:
            spark.stop()
    closed = FinalReport(
        operations=report.total.units,
        cost=float(sum(pair.cost for pair in report.pairs)),
        currency=report.prices.currency,
        does_close=books.closes is True,
        verdict=books.verdict,
    )
    sys.stdout.write(json.dumps(asdict(closed)) + "\n")


def _prepare() -> None:
    """Load what the answers need, while nobody waits."""
    import twinbus.cost.html.page
    import twinbus.spark.cost_report.report  # noqa: F401


def cost_of(spark: SparkSession, files: Files) -> CostReport:
    """What it cost, by the logs of the brokers; it is written down, too."""
    from twinbus.cost.html.page import render
    from twinbus.spark.cost_report.report import ReportRequest, cost_report

    prices = load_prices(PRICES)
    asked = ReportRequest(
        prices=prices, by=("namespace", "operation"), month_already=prices.included
    )
    report = cost_report(spark, [files.logs], asked, state=files / "cost").report
    files.note("cost.json", asdict(report))
    (files / "cost.html").write_text(render(report), encoding="utf-8")
    return report


def reconcile_demo(spark: SparkSession, files: Files) -> Reconciliation:
    """Where every message is, by the logs of everybody; it is written down, too."""
    from twinbus.spark.reconciliation.reconcile import Sources, reconcile

    sources = Sources(
        primary_logs=files.logs / PRIMARY,
        secondary_logs=files.logs / SECONDARY,
        client_logs=files.client,
        receipts=files.receipts,
        journal=files.journal,
    )
    answer = reconcile(spark, sources, pair=PRIMARY)
    files.note("books.json", answer.to_json())
    return answer


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except TwinbusError as error:
        sys.exit(f"twinbus: {error}")
