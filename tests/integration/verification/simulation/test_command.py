"""``python -m verification.simulation`` with workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_workers_are_processes_of_their_own() -> None:
    # Started as a user starts it: a spawned worker finds nothing that stands in __main__.
    command = [sys.executable, "-m", "verification.simulation", "--seeds", "600", "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "schedules    600" in done.stdout, done.stderr[-2000:]
    assert "violations   0" in done.stdout
