"""``python -m verification.benchmarks.commits BASE``: costs of a message at two commits.

Both commits run in one run on one machine, rounds alternate, and the cost is CPU time, which a busy
machine changes far less than a rate.

    git worktree of BASE --> broker A \\
                                       same client, same rounds: A, B, A, B, ... --> ratio B / A
    this work tree ------> broker B /

    durable_*, drain     CPU time of the broker for a message
    paired_send          of a client that sends through a pair, for a message
    local_syphon         of ``twinbus syphon --local --once``, for a message of the backlog
    import, start_up     of ``import twinbus.aio``, and of a broker until it is ready

Rule 1: the first round of each commit is not counted.
Rule 2: the figure is the median of the ratios of neighbouring rounds. The spread is shown, because
        a difference below it means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from verification.benchmarks import drain_movers, drain_site, report, scenarios
from verification.benchmarks.__main__ import scratch_directory, started
from verification.benchmarks.processes import BenchError, cpu_seconds
from verification.benchmarks.run import progress
from verification.benchmarks.systems import System, Twinbus
from verification.benchmarks.twinbus_node import TwinbusNode
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

PROGRAMS: Final = ("paired_send", "local_syphon", "import", "start_up")
PAIRED_SENDS: Final = 16_000
BACKLOG_MESSAGES: Final = 20_000
IMPORTS: Final = 5


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
    return alternate(
        name,
        {
            system.name: lambda system=system: measure(system, seconds).broker_cpu_us_per_message
            for system in systems
        },
        rounds,
    )


def compare_programs(
    name: str, sources: dict[str, Path], rounds: int, directory: Path
) -> dict[str, object]:
    """The same for processes that import the ``src`` directory of either commit."""
    if name == "import":
        return alternate(name, _each(sources, _import_us), rounds)
    if name == "start_up":
        return alternate(name, _each(sources, lambda src: _start_up_us(src, directory)), rounds)
    with drain_site.site() as site:
        measure = _paired_send_us if name == "paired_send" else _local_syphon_us
        return alternate(name, _each(sources, lambda src: measure(src, site)), rounds)


def alternate(
    name: str, measures: dict[str, Callable[[], float]], rounds: int
) -> dict[str, object]:
    """The costs by commit, round by round, and the median of the ratios of both."""
    costs: dict[str, list[float]] = {each: [] for each in measures}
    for number in range(rounds + 1):
        # The commit that is first in a pair of rounds is second in the next one.
        for each in measures if number % 2 else reversed(measures):
            cost_us = measures[each]()
            if number:
                costs[each].append(round(cost_us, 2))
        progress(f"{name}, round {number} of {rounds}: {costs}")
    base, ours = costs.values()
    ratios = [after / before for before, after in zip(base, ours, strict=True)]
    return {
        "cpu_us": costs,
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(each, 3) for each in ratios],
    }


def _each(
    sources: dict[str, Path], measure: Callable[[Path], float]
) -> dict[str, Callable[[], float]]:
    return {name: lambda source=source: measure(source) for name, source in sources.items()}


def _run_program(source: Path, *command: str, env: dict[str, str] | None = None) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        env={**(os.environ if env is None else env), "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ended.returncode:
        raise BenchError(f"{command} failed: {ended.stderr[-500:].strip()}")
    return ended.stdout


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _import_us(source: Path) -> float:
    began_s = _children_cpu_s()
    for _ in range(IMPORTS):
        _run_program(source, "-c", "import twinbus.aio")
    return (_children_cpu_s() - began_s) / IMPORTS * 1_000_000


def _start_up_us(source: Path, directory: Path) -> float:
    node = TwinbusNode(directory / source.parent.name / "start_up", source=source)
    node.start()
    try:
        return cpu_seconds(node.pid) * 1_000_000
    finally:
        node.stop()


def _paired_send_us(source: Path, site: drain_site.Site) -> float:
    program = str(Path(__file__).with_name("paired_sends.py"))
    queue = drain_site.DESTINATIONS[0]
    environment = drain_movers.environment(site)
    printed = _run_program(source, program, queue, str(PAIRED_SENDS), env=environment)
    site.clear()
    return float(printed)


def _local_syphon_us(source: Path, site: drain_site.Site) -> float:
    site.fill(BACKLOG_MESSAGES, 1_024)
    began_s = _children_cpu_s()
    syphon = ("-m", "twinbus", "syphon", "--local", "--once", "--driver", "amqp")
    _run_program(source, *syphon, env=drain_movers.environment(site))
    used_s = _children_cpu_s() - began_s
    site.check(BACKLOG_MESSAGES)
    site.clear()
    return used_s / BACKLOG_MESSAGES * 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.benchmarks.commits", description=__doc__
    )
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", choices=[*LOADS, *PROGRAMS])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each broker")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a publishing round")
    options = parser.parse_args()
    # Without bytecode, the commit that was checked out just now would compile in every round.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, object] = {"machine": report.machine(), "base": options.base}
    try:
        with scratch_directory() as directory, checked_out(options.base, directory) as source:
            base: System = Twinbus(directory / "a", "base", source)
            ours: System = Twinbus(directory / "b", "this work tree", ROOT / "src")
            chosen = [options.only] if options.only else [*LOADS, *PROGRAMS]
            with started(base), started(ours):
                for name in [each for each in chosen if each in LOADS]:
                    found[name] = compare(name, [base, ours], options.rounds, options.seconds)
            sources = {"base": source, "this work tree": ROOT / "src"}
            for name in [each for each in chosen if each in PROGRAMS]:
                found[name] = compare_programs(name, sources, options.rounds, directory)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    slow = [name for name in chosen if found[name]["ratio"] > RATIO_MAX]  # type: ignore[index]
    if slow:
        print(f"bench: more than 3 % above {options.base}: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
