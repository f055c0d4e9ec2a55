"""M15: what a killed process leaves is healthy or can be repaired."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from verification.crash_consistency import stories

ROOT = Path(__file__).resolve().parents[3]


SEED = int(os.environ.get("TWINBUS_CRASH_SEED", "1"))


# In a process of its own: those that are to be killed are forks of it, and have no threads.
AFTER_KILLS = """
from random import Random
from verification.crash_consistency import kills, recovery, stories
for name in stories.NAMES:
    points = Random(f"{seed} {name}").sample(kills.points_of(name), 6)
    tally = recovery.look_after_kills(name, points, seed)
    print(name, tally.points, *tally.complaints, sep="; ")
"""


def test_a_store_after_a_kill_is_healthy_and_its_repair_is_a_copy() -> None:
    """M15: kill -9 at any operation of any story, and again during the recovery."""
    ran = subprocess.run(
        [sys.executable, "-c", f"seed = {SEED}\n{AFTER_KILLS}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line.split("; ") for line in ran.stdout.splitlines()]
    assert [line[0] for line in lines] == list(stories.NAMES)
    assert [line for line in lines if len(line) > 2] == []
    assert sum(int(line[1]) for line in lines) > 6 * len(stories.NAMES)
