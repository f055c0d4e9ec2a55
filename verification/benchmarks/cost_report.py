"""The cost report on Spark beside the same sums in pandas, from the same lines.

    cost_report_1m, ..._10m            lines a second; the peer is pandas with Arrow's reader, the
                                       fastest way that we know
    cost_report_1m_again, ...          the same, our second report in a session
    cost_report_1m_as_written          the first, beside pandas as most people would write it
    cost_report_1m_memory, ...         the peak of all processes in MB

Each is a program of its own, on the same files. What it finds must be what was written (records,
duplicates, damaged lines, operations), and all must have the same sums by entity and day, or there
is no figure. The start of Spark and the imports of pandas are not in the time.

``python -m verification.benchmarks.cost_report 1000000`` measures once, without RabbitMQ beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from verification.benchmarks.cost_lines import Written, write_logs
from verification.benchmarks.process_tree import tree
from verification.benchmarks.processes import BenchError, resident_mb
from verification.benchmarks.report import Figure
from verification.benchmarks.run import Bench, progress

ROOT: Final = Path(__file__).resolve().parents[2]
PANDAS_PYTHON: Final = ROOT / ".venv-connect" / "bin" / "python"
OURS: Final = "twinbus"
AS_WRITTEN: Final = "as-written"
FASTEST: Final = "fastest"
EVERYBODY: Final = (OURS, FASTEST, AS_WRITTEN)


class Size(NamedTuple):
    """How much, how often at most, and who takes part."""

    lines: int
    turns_max: int
    who: tuple[str, ...]


# Pandas as people write it would take minutes for ten million lines.
SIZES: Final = {
    "1m": Size(1_000_000, 3, EVERYBODY),
    "10m": Size(10_000_000, 2, (OURS, FASTEST)),
}
# Of the heap. A JVM needs some more beside it, and so do the two Pythons in which Arrow works.
DRIVER_MEMORY: Final = "2g"
MEMORY_MB_MAX: Final = 3 * 1024
SAMPLE_S: Final = 0.25
RUN_S_MAX: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    peak_mb: float
    found: dict[str, Any]


def scenario(bench: Bench, name: str) -> list[Figure]:
    """All of them in turn, at both sizes."""
    if bench.ours is None:
        return []
    figures = []
    for label, size in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
            logs = Path(directory) / "logs"
            written = write_logs(logs, size.lines)
            progress(f"{name} {label}: {written}")
            rounds: dict[str, list[Ran]] = {}
            for _ in range(min(bench.rounds, size.turns_max)):
                for who in size.who:
                    busy = bench.note_busy(name)
                    ran = measured(who, logs, written)
                    rounds.setdefault(who, []).append(ran)
                    progress(f"  {who}: {written.lines / ran.seconds:,.0f} lines/s, "
                             f"{ran.peak_mb:,.0f} MB{busy}")  # fmt: skip
        check_same_sums(ran for each in rounds.values() for ran in each)
        bench.raw.setdefault(name, {})[label] = {
            who: [(ran.found, ran.peak_mb) for ran in each] for who, each in rounds.items()
        }
        figures += _figures(f"{name}_{label}", written.lines, rounds)
    return figures


def measured(who: str, logs: Path, written: Written) -> Ran:
    """Run one of them, and see that it has found what was written."""
    if who == OURS:
        with tempfile.TemporaryDirectory(prefix="bench-cost-state-") as state:
            arguments = [str(logs), state, DRIVER_MEMORY]
            ran = _run([sys.executable, "-m", "verification.benchmarks.cost_job", *arguments])
    else:
        if not PANDAS_PYTHON.exists():
            raise BenchError(
                f"pandas is not there: make {PANDAS_PYTHON.parents[1].name}/.installed"
            )
        program = str(Path(__file__).with_name("cost_pandas.py"))
        ran = _run([str(PANDAS_PYTHON), program, who, str(logs)])
    wanted = {
        "records": written.records, "duplicates": written.duplicates,
        "damaged": written.damaged, "units": written.units,
    }  # fmt: skip
    if wrong := {key: ran.found[key] for key in wanted if ran.found[key] != wanted[key]}:
        raise BenchError(f"{who} has found {wrong}, and {wanted} was written")
    return ran


def check_same_sums(runs: Iterable[Ran]) -> None:
    """Amounts by entity and day are the same to the last byte."""
    sums = {(ran.found["slices"], ran.found["sums"]) for ran in runs}
    if len(sums) != 1:
        raise BenchError(f"not all have the same sums by entity and day: {sorted(sums)}")


def _run(command: list[str]) -> Ran:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        peak_mb, deadline_s = 0.0, time.monotonic() + RUN_S_MAX
        while process.poll() is None:
            peak_mb = max(peak_mb, _resident_mb(process.pid))
            if time.monotonic() > deadline_s:
                process.kill()
            time.sleep(SAMPLE_S)
        out.seek(0)
        err.seek(0)
        lines = out.read().decode().splitlines()
        if process.returncode or not lines:
            reason = err.read().decode(errors="replace").splitlines()[-1:]
            raise BenchError(f"{command[1:4]} ended with {process.returncode}: {reason}")
    found = json.loads(lines[-1])
    return Ran(found["seconds"], peak_mb, found)


def _resident_mb(pid: int) -> float:
    total = 0.0
    for member in tree(pid):
        try:
            total += resident_mb(member.pid)
        except (OSError, BenchError):  # It has ended meanwhile.
            continue
    return total


def _figures(name: str, lines: int, rounds: dict[str, list[Ran]]) -> list[Figure]:
    def rate(who: str) -> float:
        return lines / statistics.median(ran.seconds for ran in rounds[who])

    def rate_again() -> float:
        return lines / statistics.median(ran.found["seconds_again"] for ran in rounds[OURS])

    def peak_mb(who: str) -> float:
        return max(ran.peak_mb for ran in rounds[who])

    is_promised = name.endswith("10m")
    figures = [
        Figure(
            name=name, value=rate(OURS), unit="lines/s", peer="pandas with pyarrow",
            peer_value=rate(FASTEST), wanted="ahead at 10 M",
            promise_kept=rate(OURS) > rate(FASTEST) if is_promised else None,
        ),
        Figure(
            name=f"{name}_again", value=rate_again(), unit="lines/s", peer="pandas with pyarrow",
            peer_value=rate(FASTEST), wanted="no promise",
        ),
        Figure(
            name=f"{name}_memory", value=peak_mb(OURS), unit="MB", peer="pandas with pyarrow",
            peer_value=peak_mb(FASTEST), wanted=f"at most {MEMORY_MB_MAX:,} MB",
            promise_kept=peak_mb(OURS) <= MEMORY_MB_MAX,
        ),
    ]  # fmt: skip
    if AS_WRITTEN in rounds:
        figures.append(
            Figure(
                name=f"{name}_as_written", value=rate(OURS), unit="lines/s", peer="pandas",
                peer_value=rate(AS_WRITTEN), wanted="no promise",
            )
        )  # fmt: skip
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure once, without the other benchmarks.")
    parser.add_argument("lines", type=int)
    parser.add_argument("--only", choices=EVERYBODY, action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as directory:
        written = write_logs(Path(directory), options.lines)
        runs = []
        for who in options.only or EVERYBODY:
            ran = measured(who, Path(directory), written)
            runs.append(ran)
            rate = written.lines / ran.seconds
            print(f"{who}: {rate:,.0f} lines/s, {ran.peak_mb:,.0f} MB", flush=True)
        check_same_sums(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
