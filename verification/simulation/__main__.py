"""``python -m verification.simulation``: many schedules, or one schedule again."""

from __future__ import annotations

import argparse
import os
import sys

from verification.simulation.many import run_many
from verification.simulation.run import Outcome, Simulation
from verification.simulation.world import Broken

YEAR_S = 365.25 * 86_400


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and show what happened")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


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


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    if options.seed is not None:
        return replay(options.seed)
    return report(run_many(options.first, options.seeds, options.workers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
