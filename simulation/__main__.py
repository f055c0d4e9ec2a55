"""``python -m simulation``: many schedules, one schedule again, or the planted bugs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool

from simulation.run import Outcome, Simulation, run_seeds
from simulation.teeth import PLANTED, bite
from simulation.world import Broken

BATCH = 500
YEAR_S = 365.25 * 86_400


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and show what happened")
    parser.add_argument("--teeth", action="store_true", help="show that planted bugs are caught")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def _batch(first_and_count: tuple[int, int]) -> Outcome:
    first, count = first_and_count
    return run_seeds(range(first, first + count), stops=lambda _outcome: False)


def _batches(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, BATCH):
        yield first + start, min(BATCH, count - start)


@contextmanager
def _pool(workers: int) -> Iterator[Pool | None]:
    """Processes of their own, or none for one worker. They are spawned: a fork of a process with
    threads may never end."""
    if workers == 1:
        yield None
        return
    with get_context("spawn").Pool(workers) as pool:
        yield pool


def run_many(first: int, count: int, workers: int) -> Outcome:
    """Run them on all cores, and say now and then how far that is."""
    outcome, began_s = Outcome(), time.monotonic()
    told = 0
    with _pool(workers) as pool:
        parts = map if pool is None else pool.imap_unordered
        for part in parts(_batch, _batches(first, count)):
            outcome.add(part)
            for broken in part.broken:
                print(broken, flush=True)
            if outcome.schedules >= told + count / 20:
                told = outcome.schedules
                rate = told / (time.monotonic() - began_s)
                print(f"{told:>12,} schedules  {rate:,.0f} a second", flush=True)
    return outcome


def report(outcome: Outcome) -> int:
    print(f"\n{outcome.visits.matrix()}\n\n{outcome.visits.sometimes()}\n")
    print(f"schedules    {outcome.schedules:,}")
    print(f"events       {outcome.events:,}")
    print(f"simulated    {outcome.simulated_s / YEAR_S:.2f} years")
    print(f"violations   {len(outcome.broken)}")
    for what in outcome.visits.missing:
        print(f"never seen   {what}")
    return 1 if outcome.broken or outcome.visits.missing else 0


def replay(seed: int) -> int:
    simulation = Simulation(seed, keeps_trace=True)
    broken: Broken | None = None
    try:
        simulation.run()
    except Broken as error:
        broken = error
    print("\n".join(simulation.world.trace or ()))
    print(f"seed {seed}: {simulation.world.events} events, digest {simulation.world.digest:x}")
    print(broken or "every promise was kept")
    return 1 if broken else 0


def show_teeth() -> int:
    print(f"{'planted bug':<42}{'caught by':<26}schedules")
    escaped = 0
    for planted in PLANTED:
        outcome = bite(planted)
        caught = [each for each in outcome.broken if each.check.startswith(planted.check)]
        escaped += not caught
        check = caught[0].check if caught else "NOT CAUGHT"
        print(f"{planted.name:<42}{check:<26}{outcome.schedules:>9,}", flush=True)
    print(f"{len(PLANTED) - escaped} of {len(PLANTED)} caught")
    return 1 if escaped else 0


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    if options.teeth:
        return show_teeth()
    if options.seed is not None:
        return replay(options.seed)
    return report(run_many(options.first, options.seeds, options.workers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
