"""The clock that stands while those who are measured wait for a processor."""

from __future__ import annotations

import os
import time
from itertools import count

import pytest

from verification import fair_clock
from verification.fair_clock import FairClock, run_times


def test_the_longest_wait_since_the_last_look_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = {"7": 0, "8": 0}
    monkeypatch.setattr(
        fair_clock, "run_times", lambda pid: {t: (0, ns) for t, ns in waited.items()}
    )
    seconds = count(100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    clock = FairClock(lambda: [1])
    assert clock() == 100.0
    waited.update({"7": 200_000_000, "8": 500_000_000})
    assert clock() == pytest.approx(100.5)
    assert clock() == pytest.approx(101.5)
    waited["9"] = 900_000_000  # A new thread: how long it has waited since then is not known.
    assert clock() == pytest.approx(102.5)


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    clock = FairClock(lambda: [2**22 + 1])
    began_s = clock()
    time.sleep(0.05)
    assert clock() > began_s


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count")
def test_the_kernel_counts_this_process() -> None:
    ran_ns, _waited_ns = run_times(os.getpid())[str(os.getpid())]
    assert ran_ns > 0
