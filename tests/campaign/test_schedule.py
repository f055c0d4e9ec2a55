"""Every run sees every kind of fault, and a seed deals the same ones again."""

from __future__ import annotations

from collections import Counter

import pytest

from campaign.checker import LATE_S_MAX
from campaign.plan import Plan
from campaign.schedule import schedule


@pytest.mark.parametrize("seed", range(20))
def test_every_run_kills_every_role_and_troubles_many_lines(seed: int) -> None:
    plan = Plan(seed=seed)
    faults = schedule(plan)
    kinds = Counter(fault.name for fault in faults)
    for role in ("primary", "secondary", "sender", "receiver", "mover", "syphon"):
        assert kinds[f"kill {role}"] >= 1
    assert sum(fault.is_kill for fault in faults) >= 5
    assert sum(bool(fault.broker) for fault in faults) >= 10
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0 <= fault.at_s < plan.fault_s for fault in faults)
    assert all(fault.lasts_s < LATE_S_MAX for fault in faults), "the checker allows for no more"


def test_a_seed_deals_the_same_again_and_another_one_does_not() -> None:
    assert schedule(Plan(seed=7)) == schedule(Plan(seed=7))
    assert schedule(Plan(seed=7)) != schedule(Plan(seed=8))


def test_a_longer_run_has_more_faults_at_the_same_pace() -> None:
    assert len(schedule(Plan(fault_s=120))) == 4 * len(schedule(Plan(fault_s=30)))


def test_a_plan_travels_as_text() -> None:
    plan = Plan(seed=3, messages=5, fault_s=1.5)
    assert Plan.from_json(plan.to_json()) == plan
