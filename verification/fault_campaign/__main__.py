"""``python -m verification.fault_campaign --seed 1``: one run, or many; exit code 1 when the
promise was broken.

--spark          the syphon on Spark, the prober, faults of disks and clocks
--full           such runs until there were 200,000 messages and 240 faults, within 40 minutes; one
                 such run with --seed
--hours N        such runs with new seeds for so long
--judge DIR      no run: the journals in the directory of an earlier one, judged again

A run has a directory build/campaign/SEED. It is removed when the promise was kept; when it was
broken, all journals and logs are there.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.controller import Campaign
from verification.fault_campaign.judging import judged_again
from verification.fault_campaign.machine import unmount_all
from verification.fault_campaign.plan import Plan
from verification.fault_campaign.report import replay, report, table, total
from verification.fault_campaign.timeline import as_svg, as_text, timeline_of

FULL_MESSAGES: Final = 200_000
FULL_FAULTS: Final = 240
# Three runs take half an hour or so. A run that has begun is finished:
# only a finished run can be checked.
FULL_S_MAX: Final = 40 * 60.0
# Three runs of two decks each.
RUN_MESSAGES: Final = 68_000
RUN_FAULT_S: Final = 540.0
BUILD: Final = Path("build/campaign")


def options_of(arguments: list[str]) -> argparse.Namespace:
    usual = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m verification.fault_campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--hours", type=float, default=None)
    parser.add_argument("--judge", type=Path, default=None, metavar="DIR")
    parser.add_argument("--messages", type=int, default=None, help=f"[{usual.messages:,}]")
    parser.add_argument("--fault-seconds", type=float, default=None, help=f"[{usual.fault_s:g}]")
    parser.add_argument(
        "--keep", type=Path, default=None, metavar="DIR", help="run in DIR/SEED, and leave it there"
    )
    parser.add_argument("--pictures", type=Path, default=BUILD)
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace, seed: int) -> Plan:
    is_full = options.full or options.hours is not None
    usual = Plan(messages=RUN_MESSAGES, fault_s=RUN_FAULT_S) if is_full else Plan()
    numbers: dict[str, Any] = {
        "seed": seed,
        "messages": options.messages or usual.messages,
        "fault_s": options.fault_seconds or usual.fault_s,
    }
    return Plan.on_spark(**numbers) if options.spark or is_full else Plan(**numbers)


def tell(line: str) -> None:
    print(line, flush=True)


def emptied(directory: Path) -> Path:
    """A directory for a run, without what an earlier one with this seed has left. Some of its
    processes work elsewhere: the path is absolute."""
    directory = directory.resolve()
    if directory.exists():
        unmount_all(directory)
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory


def one_run(plan: Plan, options: argparse.Namespace) -> Verdict:
    tell(replay(plan))
    directory = emptied((options.keep or BUILD) / str(plan.seed))
    is_kept = False
    try:
        campaign = Campaign(plan, directory, tell=tell)
        verdict = asyncio.run(campaign.run())
        is_kept = verdict.is_kept
    finally:  # A run that could not go on has journals, too.
        if is_kept and options.keep is None:
            shutil.rmtree(directory)
        else:
            tell(f"journals: {directory}")
    drawn = timeline_of(campaign.events)
    options.pictures.mkdir(parents=True, exist_ok=True)
    picture = options.pictures / f"{plan.seed}.svg"
    title = f"campaign {plan.seed}: {verdict.acknowledged:,} acknowledged, lost {len(verdict.lost)}"
    picture.write_text(as_svg(drawn, title), encoding="utf-8")
    tell(report(plan, verdict))
    tell(as_text(drawn))
    tell(f"picture: {picture}")
    return verdict


def many_runs(
    options: argparse.Namespace,
    is_enough: Callable[[list[Verdict]], bool],
    seconds_max: float = math.inf,
) -> int:
    """New seeds until it is enough; the first broken promise, or the end of its time, ends it."""
    first = SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    verdicts: list[Verdict] = []
    began_s = time.monotonic()
    is_late = False
    while not is_enough(verdicts) and not is_late:
        verdicts.append(one_run(plan_of(options, first + len(verdicts)), options))
        is_late = time.monotonic() - began_s >= seconds_max
        if not verdicts[-1].is_kept:
            break
    seeds = ", ".join(str(first + number) for number in range(len(verdicts)))
    tell(
        f"\n{len(verdicts)} runs in {(time.monotonic() - began_s) / 60:.0f} minutes, seeds {seeds}"
    )
    tell(table(total(verdicts)))
    if is_late:
        tell(f"That is more than the {seconds_max / 60:.0f} minutes that it may take.")
    return 0 if verdicts[-1].is_kept and not is_late else 1


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    if options.judge is not None:
        plan, _events, verdict = judged_again(options.judge)
        tell(report(plan, verdict))
        return 0 if verdict.is_kept else 1
    if options.hours is not None:
        ends_s = time.monotonic() + options.hours * 3_600
        return many_runs(options, lambda done: bool(done) and time.monotonic() > ends_s)
    if options.full and options.seed is None:
        return many_runs(options, _is_full, FULL_S_MAX)
    seed = SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    return 0 if one_run(plan_of(options, seed), options).is_kept else 1


def _is_full(done: list[Verdict]) -> bool:
    whole = total(done)
    return whole.acknowledged >= FULL_MESSAGES and whole.faults.total() >= FULL_FAULTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
