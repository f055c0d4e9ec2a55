"""Processes that are killed at any operation of a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


SEED = 1


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: those that are to be killed are forks of it, and have no threads."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_a_kill_at_any_operation_loses_nothing() -> None:
    """M8: the process is killed at some hundred of the points where `make crash` kills it."""
    ran = run_python(
        "-m", "verification.crash_consistency", "--only", "kills", "--every", "60", "--workers", "1"
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "control: synchronous=NORMAL caught in" in ran.stdout
    assert (
        f"SEED={SEED} REPLAY: python -m verification.crash_consistency --seed {SEED}" in ran.stdout
    )


# Every step is committed one step later than it is acknowledged.
ONE_STEP_LATE = """
from verification.crash_consistency import kills, stories
waiting = []
def late(store, step):
    waiting.append(step)
    if len(waiting) > 1:
        stories.take(store, waiting.pop(0))
kills.take = late
points = kills.points_of("single sends")[150:400:9]
found = kills.kill("single sends", points, 1).complaints
print(sorted({complaint.kind.value for complaint in found}))
"""


def test_a_store_that_acknowledges_before_it_has_written_is_seen() -> None:
    ran = run_python("-c", ONE_STEP_LATE)

    assert ran.stdout == "['lost']\n", ran.stderr
