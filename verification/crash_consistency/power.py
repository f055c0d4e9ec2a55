"""Power cuts: the crash states of many recorded runs, each opened by a real recovery.

One seed is one run of random work and the states of it, so a complaint is replayed by its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random

from verification.crash_consistency.recorded import Checker, Run, commit_then_acknowledge, record
from verification.crash_consistency.scratch import scratch_directory
from verification.crash_consistency.states import crash_states
from verification.crash_consistency.tally import Complaint, Tally

PART = "crash states"

# Each run is a different story; this many states of one say most of what it can say.
STATES_PER_RUN = 500


def each_complaint(
    run: Run, seed: int, count: int, tally: Tally
) -> Generator[Complaint, None, None]:
    """What is wrong after ``count`` crashes of a run, one after the other."""
    random = Random(f"crash {seed}")
    with scratch_directory() as directory:
        checker = Checker(run, directory, random)
        for state in crash_states(run.entries, count, random):
            complaint = checker.complaint(state)
            tally.points += 1
            tally.distinct = checker.distinct
            if complaint is not None:
                text = f"seed {seed}, entry {state.position}, {state.style}: {complaint.text}"
                replay = "python -m verification.crash_consistency --only states"
                replay += f" --seed {seed} --states {count}"
                yield replace(complaint, text=text, replay=replay)


def cut_power(
    seed: int,
    count: int = STATES_PER_RUN,
    commit: Callable[..., None] = commit_then_acknowledge,
) -> Tally:
    """Record the run of this seed and look at ``count`` states of it."""
    tally = Tally(PART, {f"seed {seed}"})
    tally.complaints += each_complaint(record(seed, commit), seed, count, tally)
    return tally
