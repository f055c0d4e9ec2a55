"""The real core in a simulated world: schedules by the thousand, and every promise checked.

TWINBUS_SCHEDULES   how many schedules in all (20,000 if not set)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verification.simulation.run import Simulation, run_seeds

SCHEDULES = int(os.environ.get("TWINBUS_SCHEDULES", "20000"))
BATCH_MAX = 5_000
BATCH = min(BATCH_MAX, SCHEDULES)
BATCHES = max(1, SCHEDULES // BATCH_MAX)

SEEDS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_schedule_breaks_a_promise_and_everything_was_visited(batch: int) -> None:
    """P6, P8, P9, P10, P11 and Y1: in 20,000 bad days."""
    first = batch * BATCH
    outcome = run_seeds(range(first, first + BATCH))
    assert [str(broken) for broken in outcome.broken] == []
    assert outcome.schedules == BATCH
    # Every state has met every signal, and what must happen sometimes did. A short run is too
    # short for that.
    assert BATCH < BATCH_MAX or outcome.visits.missing == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_once_broke_a_promise_keeps_it_now(seed: int) -> None:
    Simulation(seed).run()


def test_a_seed_replays_exactly() -> None:
    for seed in range(200):
        first, again = Simulation(seed).run(), Simulation(seed, keeps_trace=True).run()
        assert (first.digest, first.events) == (again.digest, again.events)
