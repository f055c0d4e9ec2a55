"""Imagined power cuts of a recorded run, each with a real recovery
(``verification/crash_consistency/``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from verification.crash_consistency.recorded import Checker, record
from verification.crash_consistency.scratch import scratch_directory
from verification.crash_consistency.states import crash_states

STATES_PER_RUN = 400
# A store is created within so many operations, a short time of a run that gets its share.
EARLY_ENTRIES = 60


@dataclass(frozen=True, slots=True)
class CrashStates:
    """Crash states of one run, then of the next."""

    name: str = "crash states"
    unit: str = "crash states"
    rounds_max: int = 4 * STATES_PER_RUN
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for seed in range(1, 1 + self.rounds_max // STATES_PER_RUN):
            run, random = record(seed), Random(f"crash {seed}")
            with scratch_directory() as scratch:
                checker = Checker(run, scratch, random)
                early = crash_states(run.entries[:EARLY_ENTRIES], STATES_PER_RUN // 4, random)
                anywhere = crash_states(run.entries, STATES_PER_RUN * 3 // 4, random)
                states = [*early, *anywhere]
                random.shuffle(states)
                for state in states:
                    complaint = checker.complaint(state)
                    yield [] if complaint is None else [str(complaint)]
