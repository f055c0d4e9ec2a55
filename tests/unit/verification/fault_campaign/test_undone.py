"""A run that did less than was planned has proven nothing, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from verification.fault_campaign.cards import Fault
from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.history import Event
from verification.fault_campaign.plan import Plan
from verification.fault_campaign.report import table
from verification.fault_campaign.undone import SPARK_S_MAX, undone

PLAN = Plan(messages=100)
KILL = Fault(name="kill primary", process="primary")


def event(what: Any, type: Any, at_s: float, process: str, detail: str) -> Event:
    return Event(what=what, type=type, at_s=at_s, process=process, detail=detail)


def fault(name: str = "kill primary", process: str = "primary", at_s: float = 10.0) -> list[Event]:
    return [
        event("fault", "invoke", at_s, process, name),
        event("fault", "ok", at_s + 2, process, name),
    ]


def died(process: str, at_s: float = 13.0) -> Event:
    return event("died", "info", at_s, process, "exit code 1")


def verdict(acknowledged: int = 100, moved: int = 5) -> Verdict:
    return Verdict(acknowledged=acknowledged, moved=moved)


def test_a_run_that_did_everything_has_nothing_undone() -> None:
    assert undone(fault(), PLAN, [KILL], verdict()) == []


def test_too_few_messages_are_a_complaint() -> None:
    found = undone(fault(), PLAN, [KILL], verdict(acknowledged=99))
    assert found == ["99 of 100 messages were acknowledged in time"]


def test_a_run_in_which_nothing_came_home_has_shown_no_way_home() -> None:
    told = ["nothing came home from the backlog"]
    assert undone(fault(), PLAN, [KILL], verdict(moved=0)) == told
    assert undone([], PLAN, [], verdict(moved=0)) == [], "without faults nothing need go there"
    alone = Plan(messages=100, movers=0, syphons=0)
    assert undone(fault(), alone, [KILL], verdict(moved=0)) == []


def test_another_primary_that_left_no_message_proves_nothing() -> None:
    plan = Plan(messages=100, has_twin=True)
    assert undone(fault(), plan, [KILL], verdict()) == ["no message of the other primary was left"]
    left = Event(
        what="receive", type="ok", process="controller", at_s=30.0, values=("t",), place="twin"
    )
    assert undone([*fault(), left], plan, [KILL], verdict()) == []


def test_faults_that_did_not_happen_or_never_ended_are_missed() -> None:
    begun = fault()[:1]
    assert undone(begun, PLAN, [KILL], verdict()) == ["0 of 1 faults happened and ended"]
    missed = event("fault", "info", 20.0, "syphon-1", "kill syphon's worker")
    assert undone([*fault(), missed], PLAN, [KILL, KILL], verdict()) == [
        "1 of 2 faults happened and ended; nobody was there for: kill syphon's worker"
    ]


# -- those who end by themselves ------------------------------------------------------------------


@pytest.mark.parametrize("process", ["primary", "sender-1.0", "syphon-1.0"])
def test_whoever_ends_by_himself_fails_the_run(process: str) -> None:
    found = undone([*fault(process=process), died(process)], PLAN, [KILL], verdict())
    assert found == [f"{process} ended by itself with exit code 1"]


@pytest.mark.parametrize(
    ("struck", "after_s", "is_forgiven"),
    [
        ("syphon-1", 1.0, True),
        ("syphon-1", SPARK_S_MAX - 1, True),
        ("syphon", 1.0, True),  # The key of its kind.
        ("syphon-1", SPARK_S_MAX + 1, False),
        ("syphon-1", -3.0, False),
        ("primary", 1.0, False),
    ],
)
def test_a_syphon_on_spark_may_end_soon_after_something_was_done_to_it(
    struck: str, after_s: float, is_forgiven: bool
) -> None:
    plan = Plan.on_spark(messages=100)
    events = [*fault("kill syphon's jvm", struck), died("syphon-1.3", 12.0 + after_s)]
    found = undone(events, plan, [KILL], verdict())
    assert found == ([] if is_forgiven else ["syphon-1.3 ended by itself with exit code 1"])


def test_the_second_syphon_is_not_on_spark() -> None:
    plan = Plan.on_spark(messages=100)
    events = [*fault("syphon: a second one", "syphon-2"), died("syphon-2.0")]
    assert undone(events, plan, [KILL], verdict())


def test_what_is_undone_breaks_the_promise_and_is_in_the_table() -> None:
    broken = Verdict(undone=["nothing came home from the backlog"])
    assert broken.complaints == {"not done": ["nothing came home from the backlog"]}
    assert not broken.is_kept
    assert table(broken).splitlines()[-1].split() == ["NOT", "DONE", "1"]
