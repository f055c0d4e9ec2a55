"""Times of a clock that jumps are found again on the one that does not."""

from __future__ import annotations

import time

import pytest

from verification.fault_campaign.clocks import WallClock, clock_of, wall_clocks
from verification.fault_campaign.history import Event

AHEAD_S = 1_800_000_000.0
# Two hours ahead from 100 s to 110 s, one hour behind from 200 s to 205 s.
CLOCK = WallClock(AHEAD_S, [(100.0, 7_200.0), (110.0, 0.0), (200.0, -3_600.0), (205.0, 0.0)])


def shown_at(at_s: float) -> float:
    off_s = 7_200.0 if 100 <= at_s < 110 else -3_600.0 if 200 <= at_s < 205 else 0.0
    return AHEAD_S + at_s + off_s


@pytest.mark.parametrize(
    "at_s", [1.0, 99.9, 100.1, 105.0, 109.9, 110.1, 199.0, 203.0, 206.0, 500.0]
)
def test_a_time_tells_when_it_was_read(at_s: float) -> None:
    assert CLOCK.monotonic(shown_at(at_s)) == pytest.approx(at_s, abs=1e-3)


@pytest.mark.parametrize("at_s", [20_001.0, 20_105.0, 20_112.0, 20_500.0])
def test_a_machine_may_be_up_for_longer_than_a_jump_back(at_s: float) -> None:
    """Else the wrong time would have been right before the run had begun."""
    # Given a machine that is up for 20,000 s, and a clock that is an hour behind for 10 s
    events = [
        Event(what="start", type="ok", process="primary", at_s=20_000.0),
        Event(what="clock", type="ok", process="syphon-1", at_s=20_100.0, detail="-3600.0"),
        Event(what="clock", type="ok", process="syphon-1", at_s=20_110.0, detail="0.0"),
    ]
    clock = clock_of(wall_clocks(events), "syphon-1.2")

    # Then what it shows tells the time of the run
    off_s = -3_600.0 if 20_100 <= at_s < 20_110 else 0.0
    shown_s = time.time() - time.monotonic() + at_s + off_s
    assert clock.monotonic(shown_s) == pytest.approx(at_s, abs=0.1)
