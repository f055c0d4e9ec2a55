"""``python -m campaign --seed 1``: one run; exit code 1 when the promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from campaign.controller import Campaign
from campaign.plan import Plan
from campaign.report import replay, report


def options_of(arguments: list[str]) -> argparse.Namespace:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    parser.add_argument("--messages", type=int, default=usual.messages)
    parser.add_argument("--fault-seconds", type=float, default=usual.fault_s)
    parser.add_argument("--keep", type=Path, default=None, help="directory for all journals")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    plan = Plan(seed=seed, messages=options.messages, fault_s=options.fault_seconds)
    print(replay(plan), flush=True)
    with tempfile.TemporaryDirectory(prefix="campaign-") as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        verdict = asyncio.run(Campaign(plan, directory).run())
    print(report(plan, verdict))
    return 0 if verdict.is_kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
