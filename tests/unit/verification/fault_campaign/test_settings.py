"""The settings in which the whole campaign is played."""

from __future__ import annotations

from verification.fault_campaign.plan import SETTINGS, Plan


def test_consecutive_seeds_play_every_setting() -> None:
    plans = [Plan.on_spark(seed=seed) for seed in range(7, 7 + len(SETTINGS))]
    assert {plan.crowd for plan in plans} == {0, 50}
    assert max(plan.late_secondary_s for plan in plans) > 0
    assert {plan.has_small_queue for plan in plans} == {False, True}
    assert max(plan.unknown_queues for plan in plans) > 0
    assert Plan.from_json(plans[0].to_json()) == plans[0]
    assert Plan.on_spark(seed=0, crowd=3).crowd == 3


def test_only_the_senders_of_the_sdk_are_a_crowd() -> None:
    plan = Plan(crowd=50, in_flight=4)
    assert [plan.in_flight_of(f"sender-{number}.0") for number in (1, 2, 3)] == [50, 50, 4]
    assert Plan(in_flight=4).in_flight_of("sender-1") == 4


def test_one_sender_has_queues_that_nobody_was_told_of() -> None:
    plan = Plan(backlog_queues=4, unknown_queues=2)
    assert len(plan.backlog) == 6 and plan.known_backlog == plan.backlog[:4]
    assert [plan.backlog_queues_of(f"sender-{number}") for number in (1, 2, 3)] == [4, 4, 6]
