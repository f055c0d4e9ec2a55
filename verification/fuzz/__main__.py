"""``python -m verification.fuzz``: hostile inputs for some minutes, or one input again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from verification.fuzz import corpus, speed
from verification.fuzz.oracle import cpu_ns_max, execute, judge, listen_to_the_log, weigh
from verification.fuzz.run import run
from verification.fuzz.targets import NAMES, make_target


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument("--target", choices=NAMES, help="one target alone")
    parser.add_argument("--seed", type=int, help="chooses the inputs; another one each time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="one input again")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    return parser.parse_args(arguments)


def replay(target_name: str, path: Path) -> int:
    """Execute one input and say what it costs."""
    listen_to_the_log()
    target, data = make_target(target_name), corpus.read(path)
    execute(target, data)  # Whatever is loaded at first use is no cost of the input.
    execution = execute(target, data)
    meter, weight = execution.meter, weigh(target, data)
    print(f"{target_name}: {len(data):,} bytes, {execution.outcome or 'no error'}")
    print(f"cpu     {meter.slowest_ns / 1e6:.3f} ms in {meter.slowest or 'nothing'}, ", end="")
    print(f"{cpu_ns_max(target, data) / 1e6:.0f} allowed; {meter.total_ns / 1e6:.3f} ms in all")
    print(f"memory  {weight.peak_bytes:,} bytes in {weight.peak or 'nothing'}")
    print(f"machine {speed.slowness():.2f} times the reference")
    verdict = judge(target, data)
    print("every promise was kept" if verdict is None else f"BROKEN: {verdict}\n{verdict.cause}")
    return 0 if verdict is None else 1


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    if options.replay is not None:
        name = options.target or options.replay.name.partition("-")[0]
        if name not in NAMES:
            name = options.replay.resolve().parent.name
        return replay(name, options.replay)
    names = NAMES if options.target is None else (options.target,)
    seed = int(time.time()) if options.seed is None else options.seed
    return run(names, options.minutes * 60, seed, options.workers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
