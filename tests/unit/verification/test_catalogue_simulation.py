"""Sequences of administrative calls, each with trouble: memory equals disk, and a restart opens.

TWINBUS_SEQUENCES   how many sequences in all (20,000 if not set)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.simulated_loop import shortest_turns
from verification.catalogue_simulation.__main__ import main
from verification.catalogue_simulation.many import quiet, run_one, run_seeds

SEQUENCES = int(os.environ.get("TWINBUS_SEQUENCES", "20000"))
BATCH_MAX = 2_000
BATCH = min(BATCH_MAX, SEQUENCES)
BATCHES = max(1, SEQUENCES // BATCH_MAX)


# Four to seven seconds of a core; where many others use the machine, that is minutes.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_refused_administrative_call_changes_nothing(batch: int) -> None:
    """M15: 20,000 sequences; every call and every injection is among those of each batch."""
    outcome = run_seeds(batch * BATCH, BATCH)
    assert outcome.broken == []
    assert outcome.sequences == BATCH
    # A short run does not meet every call with every injection.
    assert BATCH < BATCH_MAX or outcome.missing == []


def test_memory_equals_disk_where_changes_take_the_smallest_steps(tmp_path: Path) -> None:
    """M13, M15: whatever happens between two steps of a transaction."""
    for seed in range(300):
        with quiet(), shortest_turns():
            run_one(seed, tmp_path)


@pytest.mark.parametrize("seed", [7, 300, 12_345])
def test_a_seed_is_one_sequence(seed: int, tmp_path: Path) -> None:
    with quiet():
        runs = [run_one(seed, tmp_path) for _ in range(2)]
    assert runs[0].trace == runs[1].trace
    assert runs[0].seen == runs[1].seen
    assert runs[0].model.known == runs[1].model.known


def test_a_seed_is_replayed_with_all_that_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5"]) == 0
    assert capsys.readouterr().out.endswith("memory and disk were equal after every call\n")


def test_a_short_run_says_what_it_has_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sequences", "20", "--workers", "1"]) == 1
    shown = capsys.readouterr().out
    assert "violations   0" in shown
    assert "never seen   " in shown
