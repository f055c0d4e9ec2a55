"""Every run sees every kind of fault, and a seed deals the same ones again."""

from __future__ import annotations

from collections import Counter

import pytest

from verification.fault_campaign.cards import ONE_LEFT, SPARK_PARTS
from verification.fault_campaign.explanations import LATE_S_MAX
from verification.fault_campaign.plan import LOCK_S, Plan
from verification.fault_campaign.schedule import AT_ONCE_MAX, CALM_SHARE, schedule


@pytest.mark.parametrize("seed", range(20))
def test_every_run_kills_every_role_and_troubles_many_lines(seed: int) -> None:
    plan = Plan(seed=seed)
    faults = schedule(plan)
    kinds = Counter(fault.name for fault in faults)
    for role in ("primary", "secondary", "sender", "receiver", "mover", "syphon"):
        assert kinds[f"kill {role}"] >= 1
    assert sum(fault.verb == "kill" for fault in faults) >= 5
    assert sum(fault.verb == "line" for fault in faults) >= 10
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0 <= fault.at_s < plan.fault_s for fault in faults)
    assert all(fault.lasts_s < LATE_S_MAX for fault in faults), "the checker allows for no more"


def test_a_seed_deals_the_same_again_and_another_one_does_not() -> None:
    assert schedule(Plan(seed=7)) == schedule(Plan(seed=7))
    assert schedule(Plan(seed=7)) != schedule(Plan(seed=8))


def test_a_longer_run_has_more_faults_at_the_same_pace() -> None:
    assert len(schedule(Plan(fault_s=160))) == 4 * len(schedule(Plan(fault_s=40)))


@pytest.mark.parametrize("seed", range(5))
def test_a_full_run_has_everything(seed: int) -> None:
    """Every role is killed, stopped beyond its locks and asked to end; disks, clocks, queues, keys
    and every part of the syphon have their turn."""
    plan = Plan(seed=seed, has_spark=True, fault_s=280)
    faults = schedule(plan)
    kinds = Counter(fault.name for fault in faults)
    for verb in ("kill", "stop", "end"):
        for role in ("primary", "secondary", "sender", "receiver", "syphon"):
            assert kinds[f"{verb} {role}"] == 1
    for part in SPARK_PARTS:
        assert kinds[f"kill syphon's {part}"] == 1
    for broker_fault in ("disk: full", "sync: slow", "sync: I/O error"):
        assert kinds[broker_fault] == 2
    for name in ("backlog: deleted", "backlog: disabled", "backlog: full", "destination: deleted"):
        assert kinds[name] == 1
    for name in ("key: rotated", ONE_LEFT, "syphon: a second one", "syphon: checkpoint wiped"):
        assert kinds[name] == 1
    assert sum(fault.verb == "clock" for fault in faults) == 5
    assert all(fault.lasts_s > LOCK_S for fault in faults if fault.verb == "stop")
    assert not any(fault.process.startswith("prober") for fault in faults)
    # The queue that is left is hit by nothing else
    hit = {fault.place for fault in faults if fault.verb == "backlog" and fault.name != ONE_LEFT}
    assert plan.backlog[0] not in hit
    assert [fault.place for fault in faults if fault.name == ONE_LEFT] == [plan.backlog[0]]


@pytest.mark.parametrize("seed", range(5))
def test_one_to_four_things_go_wrong_at_once_and_a_quarter_of_the_time_is_calm(seed: int) -> None:
    faults = schedule(Plan(seed=seed, has_spark=True, fault_s=280))
    there = [
        sum(fault.at_s <= moment_s <= fault.at_s + fault.lasts_s for fault in faults)
        for moment_s in range(280)
    ]
    assert there.count(0) >= len(there) * CALM_SHARE
    assert 2 <= max(there) <= AT_ONCE_MAX + 1, "a long stop may reach into the next period"


def test_a_plan_travels_as_text() -> None:
    plan = Plan(seed=3, messages=5, fault_s=1.5)
    assert Plan.from_json(plan.to_json()) == plan
