"""The cost report as a program of its own: ``python -m bench.cost_job DIRECTORY STATE MEMORY``.

It prints one line of JSON: what was found, and the seconds from the first file to the last sum.
Spark's start is not in them; a small log is computed before, so that the JVM has seen the way.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.cost_lines import write_logs
from twinbus.prices import load_prices
from twinbus.spark.cost.report import Asked, cost_report
from twinbus.spark.session import local_session

CORES: Final = 2
WARM_UP_LINES: Final = 20_000


def main() -> None:
    directory, state, memory = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    spark = local_session(
        "twinbus cost report",
        cores=CORES,
        fast_start=True,  # As the command has it.
        more={"spark.driver.memory": memory},
    )
    asked = Asked(prices=load_prices("standard"))
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as warm:
        write_logs(Path(warm), WARM_UP_LINES, seed=1)
        cost_report(spark, [Path(warm)], asked)
    began_s = time.monotonic()
    report = cost_report(spark, [directory], asked, state=state).report
    seconds = time.monotonic() - began_s
    spark.stop()
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
    print(json.dumps({**found, "seconds": seconds}))


if __name__ == "__main__":
    main()
