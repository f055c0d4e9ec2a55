"""The cost report as a program of its own:
``python -m verification.benchmarks.cost_job DIRECTORY STATE MEMORY``.

It prints one line of JSON: what was found, and the seconds from the first file to the last sum.
Spark's start is not in them, and nothing else was computed before: the JVM has not seen the way.
``seconds_again`` is a second report in the same session, with nothing kept from the first.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from twinbus.cost.price_sheets import load_prices
from twinbus.cost.report import CostReport
from twinbus.spark.cost_report.report import ReportRequest, cost_report
from twinbus.spark.runtime.session import local_session

CORES: Final = 2


def timed_report(spark: SparkSession, directory: Path, state: Path) -> tuple[float, CostReport]:
    began_s = time.monotonic()
    asked = ReportRequest(prices=load_prices("standard"))
    report = cost_report(spark, [directory], asked, state=state).report
    return time.monotonic() - began_s, report


def main() -> None:
    directory, scratch, memory = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    spark = local_session(
        "twinbus cost report",
        cores=CORES,
        fast_start=True,  # As the command has it.
        more={"spark.driver.memory": memory},
    )
    seconds, report = timed_report(spark, directory, scratch / "first")
    again_s, same = timed_report(spark, directory, scratch / "second")
    spark.stop()
    if same != report:
        sys.exit("two reports about the same logs differ")
    quality = report.quality
    sums = sorted(
        f"{each.keys['entity']} {each.keys['day']} "
        f"{each.calls} {each.messages} {each.units} {each.bytes_in} {each.bytes_out}"
        for each in report.slices
    )
    found = {
        "records": quality.records, "duplicates": quality.duplicates,
        "damaged": sum(quality.damaged.values()), "units": report.total.units,
        "slices": len(sums), "sums": hashlib.sha256("\n".join(sums).encode()).hexdigest(),
    }  # fmt: skip
    print(json.dumps({**found, "seconds": seconds, "seconds_again": again_s}))


if __name__ == "__main__":
    main()
