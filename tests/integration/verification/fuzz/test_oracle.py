"""The oracle of the fuzzer, with a process of its own."""

from __future__ import annotations

import pytest

from tests.unit.verification.fuzz.test_oracle import Planted, spin
from verification.fuzz import run, speed
from verification.fuzz.findings import Finding
from verification.fuzz.oracle import Verdict


@pytest.mark.parametrize(("slow_ms", "is_confirmed"), [(0, False), (9, True)])
def test_a_finding_is_confirmed_in_a_process_of_its_own(
    slow_ms: int, is_confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: when the run is over, and on several occasions."""

    class Slow(Planted):
        def take(self, data: bytes) -> None:
            spin(slow_ms)

    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 1.0)
    monkeypatch.setattr(run, "OCCASION_PAUSE_S", 0.01)
    monkeypatch.setattr(run, "make_target", lambda _name: Slow())
    verdict = Verdict("cpu", "take: nowhere", 9, 5)
    assert run.confirm(Finding("planted", verdict, b"x", 1)) is is_confirmed
    error = Verdict("exception", "KeyError", 0, 0)
    assert run.confirm(Finding("planted", error, b"x", 1)), "an error is no matter of speed"
