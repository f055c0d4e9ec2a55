"""``python -m verification.crash_consistency``: power cuts, kills, failing disks and flipped bits,
and what is left then."""

from __future__ import annotations

import argparse
import os
import sys
import time

from verification.crash_consistency import control, stories
from verification.crash_consistency.many import (
    Part,
    cores,
    doctor_part,
    error_part,
    kill_part,
    power_part,
    rot_part,
    run_part,
)
from verification.crash_consistency.tally import HEADER, Tally, Wrong, row

PARTS = ("states", "kills", "errors", "rot", "doctor")


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m verification.crash_consistency", description=__doc__
    )
    parser.add_argument("--states", type=int, default=500_000, help="how many crash states")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--story", choices=stories.NAMES, help="kills and errors in this one")
    parser.add_argument("--every", type=int, default=1, help="one in so many kills, errors, flips")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def parts_of(options: argparse.Namespace) -> list[Part]:
    names = [options.story] if options.story else list(stories.NAMES)
    builders = {
        "states": lambda: power_part(options.states, options.seed),
        "kills": lambda: kill_part(names, options.every, options.seed),
        "errors": lambda: error_part(names, options.every, options.seed),
        "rot": lambda: rot_part(options.every, options.seed),
        "doctor": lambda: doctor_part(options.states, names, options.every, options.seed),
    }
    return [build() for name, build in builders.items() if options.only in (None, name)]


def report(tallies: list[Tally], planted: Tally) -> int:
    print(f"\n{HEADER}")
    for tally in tallies:
        print(row(tally))
    print(f"\n{control.verdict(planted)}")
    blind = not planted.count(Wrong.LOST)
    return 1 if blind or any(tally.complaints for tally in tallies) else 0


def replay_of(options: argparse.Namespace) -> str:
    command = f"make crash SEED={options.seed} STATES={options.states}"
    if options.every != 1 or options.only or options.story:
        command = f"python -m verification.crash_consistency --seed {options.seed}"
        command += f" --states {options.states}"
        command += f" --every {options.every}"
        command += f" --only {options.only}" if options.only else ""
        command += f" --story '{options.story}'" if options.story else ""
    return f"SEED={options.seed} REPLAY: {command}"


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    began_s = time.monotonic()
    print(replay_of(options), flush=True)
    with cores(options.workers) as pool:
        tallies = [run_part(part, pool) for part in parts_of(options)]
    # Last, so that a run whose checker went blind does not pass.
    planted = control.lose_commits(options.seed)
    code = report(tallies, planted)
    print(f"{time.monotonic() - began_s:.0f} s\n{replay_of(options)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
