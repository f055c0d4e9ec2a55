"""Many verdicts as one."""

from __future__ import annotations

from collections import Counter

from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.report import total


def test_all_together_are_the_sum_and_of_the_prober_the_worst() -> None:
    verdicts = [
        Verdict(acknowledged=1, faults=Counter(kill=1), probe_s={"calm": 0.1, "all": 0.9}),
        Verdict(acknowledged=2, faults=Counter(kill=2), probe_s={"calm": 0.2}, undone=["that"]),
        Verdict(acknowledged=3),
    ]
    whole = total(verdicts)
    assert whole.acknowledged == 6
    assert whole.faults == {"kill": 3}
    assert whole.undone == ["that"]
    assert whole.probe_s == {"calm": 0.2, "all": 0.9}
