"""``python -m verification.benchmarks.commits BASE``: what a message costs the broker, now and at
another commit.

Both brokers run in one run on one machine, rounds alternate, and the cost is CPU time of the broker
for each message, which a busy machine changes far less than a rate.

    git worktree of BASE --> broker A \\
                                       same client, same rounds: A, B, A, B, ... --> ratio B / A
    this work tree ------> broker B /

Rule 1: the first round of each broker is not counted.
Rule 2: the figure is the median of the ratios of neighbouring rounds. The spread is shown, because
        a difference below it means nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from verification.benchmarks import report, scenarios
from verification.benchmarks.__main__ import scratch_directory, started
from verification.benchmarks.processes import BenchError
from verification.benchmarks.run import progress
from verification.benchmarks.systems import System, Twinbus
from verification.benchmarks.workers import Ran

ROOT: Final = Path(__file__).resolve().parents[2]
RATIO_MAX: Final = 1.03

Measure = Callable[[System, float], Ran]
LOADS: Final[dict[str, Measure]] = {
    "durable_single_pipelined": lambda system, seconds: scenarios.publish(
        system, scenarios.SINGLE, seconds
    ),
    "durable_batch_100": lambda system, seconds: scenarios.publish(
        system, scenarios.BATCHES, seconds
    ),
    "drain": lambda system, _seconds: scenarios.drain_once(system),
}


@contextmanager
def checked_out(commit: str, directory: Path) -> Iterator[Path]:
    """The ``src`` directory of a commit."""
    git = ["git", "-C", str(ROOT), "worktree"]
    where = directory / "base"
    subprocess.run([*git, "add", "--quiet", "--detach", str(where), commit], check=True)
    try:
        yield where / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(where)], check=True)


def compare(name: str, systems: list[System], rounds: int, seconds: float) -> dict[str, object]:
    """CPU time of each broker for a message, round by round, and the median of the
    ratios."""
    measure = LOADS[name]
    costs: dict[str, list[float]] = {system.name: [] for system in systems}
    for number in range(rounds + 1):
        # Whoever is first in a pair of rounds is second in the next one.
        for system in systems if number % 2 else reversed(systems):
            cost_us = measure(system, seconds).broker_cpu_us_per_message
            if number:
                costs[system.name].append(round(cost_us, 2))
        progress(f"{name}, round {number} of {rounds}: {costs}")
    base, ours = (costs[system.name] for system in systems)
    ratios = [after / before for before, after in zip(base, ours, strict=True)]
    return {
        "cpu_us_per_message": costs,
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(each, 3) for each in ratios],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.benchmarks.commits", description=__doc__
    )
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", choices=list(LOADS))
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each broker")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a publishing round")
    options = parser.parse_args()
    found: dict[str, object] = {"machine": report.machine(), "base": options.base}
    try:
        with scratch_directory() as directory, checked_out(options.base, directory) as source:
            base: System = Twinbus(directory / "a", "base", source)
            ours: System = Twinbus(directory / "b", "this work tree", ROOT / "src")
            with started(base), started(ours):
                for name in [options.only] if options.only else LOADS:
                    found[name] = compare(name, [base, ours], options.rounds, options.seconds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    slow = [name for name in LOADS if name in found and found[name]["ratio"] > RATIO_MAX]  # type: ignore[index]
    if slow:
        print(f"bench: more than 3 % above {options.base}: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
