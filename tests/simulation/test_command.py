"""What ``python -m simulation`` shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulation.__main__ import main

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_seed_is_replayed_with_all_that_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "6"]) == 0
    shown = capsys.readouterr().out
    assert "Diverted(path='orders'" in shown or "Diverted(path='invoices'" in shown
    assert shown.endswith("every promise was kept\n")


def test_a_short_run_says_what_it_has_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    # Too few schedules to visit everything: that is a failure, and it says what is missing.
    assert main(["--seeds", "40", "--workers", "1"]) == 1
    shown = capsys.readouterr().out
    assert "schedules    40" in shown
    assert "violations   0" in shown
    assert "never seen   " in shown


def test_workers_are_processes_of_their_own() -> None:
    # Started as a user starts it: a spawned worker finds nothing that stands in __main__.
    command = [sys.executable, "-m", "simulation", "--seeds", "600", "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "schedules    600" in done.stdout, done.stderr[-2000:]
    assert "violations   0" in done.stdout
