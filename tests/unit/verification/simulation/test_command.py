"""What ``python -m verification.simulation`` shows."""

from __future__ import annotations

import pytest

from verification.simulation.__main__ import main


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
