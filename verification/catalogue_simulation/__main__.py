"""``python -m verification.catalogue_simulation``: many sequences, or one again."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from verification.catalogue_simulation.checks import Broken
from verification.catalogue_simulation.many import ON_DISK_EVERY, Outcome, quiet, run_many
from verification.catalogue_simulation.sequence import Sequence


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m verification.catalogue_simulation", description=__doc__
    )
    parser.add_argument("--sequences", type=int, default=1_000_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and show what happened")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def report(outcome: Outcome, seconds: float) -> int:
    for what, count in sorted(outcome.seen.items()):
        print(f"{count:>12,}  {what}")
    print(f"\nsequences    {outcome.sequences:,} in {seconds:.0f} s")
    print(f"violations   {len(outcome.broken)}")
    for broken in outcome.broken[:10]:
        print(f"             {broken}")
    for what in outcome.missing:
        print(f"never seen   {what}")
    return 1 if outcome.broken or outcome.missing else 0


def replay(seed: int) -> int:
    broken: Broken | None = None
    with tempfile.TemporaryDirectory() as directory, quiet():
        path = Path(directory) / "store.db" if seed % ON_DISK_EVERY == 0 else None
        sequence = Sequence(seed, path)
        try:
            sequence.run()
        except Broken as error:
            broken = error
    print("\n".join(sequence.trace))
    print(broken or f"seed {seed}: memory and disk were equal after every call")
    return 1 if broken else 0


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    if options.seed is not None:
        return replay(options.seed)
    begun_s = time.monotonic()

    def progress(so_far: Outcome) -> None:
        rate = so_far.sequences / (time.monotonic() - begun_s)
        left_s = (options.sequences - so_far.sequences) / rate
        print(
            f"\r{so_far.sequences:,} of {options.sequences:,} sequences, {rate:,.0f} a second, "
            f"{len(so_far.broken)} violations, {left_s / 60:.0f} min left   ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    outcome = run_many(options.first, options.sequences, options.workers, progress)
    print(file=sys.stderr)
    return report(outcome, time.monotonic() - begun_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
