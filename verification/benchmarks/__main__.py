"""``python -m verification.benchmarks [name]`` or ``ONLY=name python -m verification.benchmarks``:
measure, show, keep.

The peer is installed when it is missing. Both brokers keep their data in one new directory under
TMPDIR, which is removed at the end; it must be on a disk, or "durable" would mean nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from verification.benchmarks import (
    coming_home,
    cost_report,
    drain,
    drain_cold,
    drain_cost,
    drain_poison,
    pairing,
    rabbitmq,
    report,
    scenarios,
    standing,
    topic_rules,
)
from verification.benchmarks.processes import BenchError, filesystem_of
from verification.benchmarks.run import Bench, progress
from verification.benchmarks.systems import Rabbit, System, Twinbus

Scenario = Callable[[Bench, str], list[report.Figure]]


def _durable(load: scenarios.Load, ratio_min: float) -> Scenario:
    return partial(scenarios.durable, load=load, ratio_min=ratio_min)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "durable_batch_100": _durable(scenarios.BATCHES, 2.0),
    "durable_batch_100_250b": _durable(scenarios.BATCHES_SMALL, 2.0),
    "durable_single_pipelined": _durable(scenarios.SINGLE, 1.2),
    "durable_single_pipelined_250b": _durable(scenarios.SINGLE_SMALL, 1.2),
    "durable_single_two_publishers": _durable(scenarios.TWO_PUBLISHERS, 1.2),
    "ack_p99_at_half_load": scenarios.ack_p99_at_half_load,
    "drain": scenarios.drain,
    "resident_memory_10k_vs_1m": standing.resident_memory,
    "restart_1m": standing.restart_1m,
    "topic_rules": topic_rules.scenario,
    "paired_aio_send": pairing.aio_send,
    "paired_sync_send": pairing.sync_send,
    "failover_first_ack": pairing.failover_first_ack,
    "failover_many_sends": pairing.failover_many_sends,
    "coming_home": coming_home.scenario,
    "syphon_drain": drain.scenario,
    "syphon_cold": drain_cold.scenario,
    "syphon_cost": drain_cost.scenario,
    "syphon_poison": drain_poison.scenario,
    "cost_report": cost_report.scenario,
}


def parse(arguments: list[str], environment: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.benchmarks", description=__doc__)
    only = environment.get("ONLY") or None
    parser.add_argument("only", nargs="?", default=only, choices=list(SCENARIOS), metavar="name")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per system")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one round")
    parser.add_argument("--peer-only", action="store_true", help="measure RabbitMQ alone")
    return parser.parse_args(arguments)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on a real disk for the data of both brokers."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        if filesystem_of(directory) in ("tmpfs", "ramfs"):
            raise BenchError(f"{directory} is in memory; set TMPDIR to a directory on a disk")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def started(system: System) -> Iterator[None]:
    progress(f"starting {system.name}")
    try:
        system.start()
        yield
    finally:
        system.stop()


def measure(options: argparse.Namespace, directory: Path) -> list[report.Figure]:
    peer = Rabbit(directory / "rabbitmq")
    ours = None if options.peer_only else Twinbus(directory / "twinbus")
    bench = Bench(
        ours=ours, fresh_ours=lambda name: Twinbus(directory / name), peer=peer,
        rounds=options.rounds, duration_s=options.seconds,
    )  # fmt: skip
    bench.raw["machine"] = report.machine()
    names = [options.only] if options.only else list(SCENARIOS)
    try:
        with started(peer):
            if ours is None:
                return _run(bench, names)
            with started(ours):
                return _run(bench, names)
    finally:
        progress(f"raw figures are in {report.write_raw(bench.raw)}")


def _run(bench: Bench, names: list[str]) -> list[report.Figure]:
    figures = []
    for name in names:
        progress(name)
        figures += SCENARIOS[name](bench, name)
    return figures


def main() -> int:
    options = parse(sys.argv[1:], os.environ)
    try:
        rabbitmq.install()
        with scratch_directory() as directory:
            figures = measure(options, directory)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    report.print_table(figures)
    if not options.peer_only:
        report.write_latest(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
