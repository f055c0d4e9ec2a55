"""The checker's own proof: planted histories, each with one thing wrong, and each is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from verification.fault_campaign.checker import Rules, Verdict, check
from verification.fault_campaign.explanations import BATCH_S_MAX, CHUNK_S_MAX, LATE_S_MAX
from verification.fault_campaign.history import BY_ITSELF, Event

RULES = Rules(
    places={
        "orders": ["orders"],
        "once": ["once"],
        "news": ["news/subscriptions/a", "news/subscriptions/b"],
        "brief": ["brief"],
    },
    without_duplicates=frozenset({"once"}),
    ttl_s={"brief": 5.0},
    lock_s=60.0,
    expected_print=lambda value: f"print of {value}",
)


def event(what: Any, type: Any, at_s: float, value: str = "", **facts: Any) -> Event:
    facts.setdefault("process", "receiver-1" if what in ("receive", "complete") else "sender-1")
    if what == "receive":
        facts.setdefault("print", f"print of {value}")
    return Event(what=what, type=type, at_s=at_s, values=(value,) if value else (), **facts)


def sent(value: str, at_s: float = 1.0, entity: str = "orders") -> list[Event]:
    return [
        event("send", "invoke", at_s, value, place=entity),
        event("send", "ok", at_s + 0.5, value, place=entity),
    ]


def received(
    value: str,
    at_s: float = 2.0,
    place: str = "orders",
    copy: int = 1,
    process: str = "receiver-1",
    print: str = "",
) -> list[Event]:
    facts: dict[str, Any] = {"place": place, "copy": copy, "process": process}
    shown = {"print": print} if print else {}
    return [
        event("receive", "ok", at_s, value, enqueued_s=at_s - 0.1, **shown, **facts),
        event("complete", "ok", at_s + 0.1, value, **facts),
    ]


def verdict(*parts: list[Event]) -> Verdict:
    return check([each for part in parts for each in part], RULES)


GOOD = [*sent("s-1"), *received("s-1")]


def test_a_message_that_goes_in_and_comes_out_is_all_right() -> None:
    found = verdict(GOOD)
    assert found.is_kept
    assert (found.acknowledged, found.received, found.failed) == (1, 1, 0)


# -- one thing is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        pytest.param(sent("s-2"), "lost", id="one is lost"),
        pytest.param(
            [*sent("s-2", entity="news"), *received("s-2", place="news/subscriptions/a")],
            "lost",
            id="one of two subscriptions did not get it",
        ),
        pytest.param(received("x-9"), "unexpected", id="one comes from nowhere"),
        pytest.param(
            [*sent("s-2", entity="once"), *received("s-2"), *received("s-2", place="once")],
            "unexpected",
            id="one is where it does not belong",
        ),
        pytest.param([event("ping", "ok", 3.0, place="orders")], "pings seen", id="a ping is seen"),
        pytest.param(
            [*sent("s-2"), *received("s-2", print="another")], "changed", id="a field was changed"
        ),
        pytest.param(received("s-1", 9.0, copy=2), "unexplained duplicates", id="a second copy"),
        pytest.param(
            received("s-1", 9.0), "unexplained duplicates", id="completed, and comes again"
        ),
        pytest.param(
            [
                *sent("s-2"),
                event("receive", "ok", 2.0, "s-2", place="orders", copy=7),
                *received("s-2", 2.05, copy=7, process="receiver-2"),
                event("complete", "info", 2.2, "s-2", place="orders", copy=7, detail="lock lost"),
            ],
            "unexplained duplicates",
            id="in two hands at once",
        ),
        pytest.param(
            [*sent("s-2"), event("receive", "ok", 2.0, "s-2", place="orders", copy=7)],
            "lost",
            id="delivered, not completed, and never again",
        ),
        pytest.param(
            [
                event("send", "invoke", 1.0, "s-2", place="orders"),
                event("send", "fail", 1.5, "s-2", place="orders", detail="EntityNotFound"),
                *received("s-2"),
            ],
            "unexpected",
            id="refused, and it arrives all the same",
        ),
        pytest.param(
            [event("complete", "ok", 2.5, "s-1", place="orders", copy=1, process="receiver-2")],
            "unexplained duplicates",
            id="completed by two",
        ),
        pytest.param(
            [
                *sent("s-2", entity="once"),
                event("possible-duplicate", "info", 1.5, "s-2"),
                *received("s-2", 2.0, "once", 1),
                *received("s-2", 3.0, "once", 2),
            ],
            "duplicates where they are detected",
            id="twice where duplicates are detected, with a good reason",
        ),
        pytest.param(
            [*sent("s-2"), event("dead", "ok", 9.0, "s-2", place="orders")],
            "dead-lettered without a reason",
            id="dead for no reason",
        ),
        pytest.param(
            [event("dead", "ok", 9.0, "x-9", place="orders", detail="poison")],
            "unexpected",
            id="a dead one comes from nowhere",
        ),
        pytest.param(
            [event("left", "ok", 9.0, place="backlog/3", count=2)], "left behind", id="left behind"
        ),
    ],
)
def test_each_planted_fault_is_caught_and_nothing_else_is_said(
    planted: list[Event], complaint: str
) -> None:
    assert list(verdict(GOOD, planted).complaints) == [complaint]


# -- what explains a further copy -----------------------------------------------------------------

FURTHER = received("s-1", 9.0, copy=2)


@pytest.mark.parametrize(
    "cause",
    [
        event("possible-duplicate", "info", 1.4, "s-1"),
        event("move", "info", 5.0, "s-1", detail="ambiguous", process="mover-1"),
        event("move", "info", 5.0, "s-1", detail="lock-lost", process="mover-1"),
    ],
    ids=lambda each: f"{each.what} {each.detail}",
)
def test_a_recorded_ambiguity_explains_a_further_copy(cause: Event) -> None:
    found = verdict(GOOD, FURTHER, [cause])
    assert found.is_kept
    assert found.duplicates.total() == 1


@pytest.mark.parametrize(
    "stranger",
    [
        event("possible-duplicate", "info", 1.4, "s-7"),
        event("move", "info", 5.0, "s-7", detail="ambiguous", process="mover-1"),
        event("move", "ok", 5.0, "s-1", detail="moved", process="mover-1"),
        event("kill", "ok", 5.0, process="mover-1"),
        event("kill", "ok", 5.0, process="sender-1"),
        event("kill", "ok", 5.0, process="primary"),
    ],
    ids=lambda each: f"{each.what} {each.process} {each.at_s:g}",
)
def test_what_is_about_something_else_explains_nothing(stranger: Event) -> None:
    assert list(verdict(GOOD, FURTHER, [stranger]).complaints) == ["unexplained duplicates"]


@pytest.mark.parametrize(
    ("killed_s", "moved_s", "is_explained"),
    [
        (5.0, 8.0, True),
        (5.0, 3.0, False),
        (10.0 + CHUNK_S_MAX, 99.0, False),
        (-LATE_S_MAX, 8.0, False),
    ],
    ids=["moved again", "moved before", "too late to matter", "too early to matter"],
)
def test_a_killed_mover_explains_copies_of_its_time_that_a_mover_had_again(
    killed_s: float, moved_s: float, is_explained: bool
) -> None:
    found = verdict(
        GOOD,
        FURTHER,
        [
            event("kill", "ok", killed_s, process="mover-1.0"),
            event("move", "ok", moved_s, "s-1", detail="moved", process="mover-1.1"),
        ],
    )
    assert found.is_kept is is_explained


STORED = event("stored", "ok", 1.3, "s-1", place="backlog/1", process="secondary")


@pytest.mark.parametrize(
    ("history", "is_explained"),
    [
        pytest.param([STORED, ("mover-1.0", 2.5), ("mover-1.1", 9.5)], True, id="two of them"),
        pytest.param([("mover-1.0", 2.5), ("mover-1.1", 9.5)], False, id="it was never there"),
        pytest.param(
            [STORED, ("syphon-1.0", 2.5), ("syphon-1.0", 4.0, BY_ITSELF)], False, id="one, in parts"
        ),
        pytest.param(
            [STORED, ("syphon-1.0", 2.5, "worker"), ("syphon-1.0", 4.0, "jvm")],
            True,
            id="one that lost a worker before",
        ),
        pytest.param(
            [
                STORED,
                event("move", "ok", 2.2, "s-1", detail="moved", process="mover-1.0"),
                ("mover-1.0", 2.5),
                ("mover-1.1", 9.5),
            ],
            False,
            id="a receipt says who had it, and nobody had it again",
        ),
    ],
)
def test_two_movers_killed_with_the_same_message_in_hand_leave_no_receipt(
    history: list[Any], is_explained: bool
) -> None:
    events = [
        each
        if isinstance(each, Event)
        else event("kill", "ok", each[1], process=each[0], detail="".join(each[2:]))
        for each in history
    ]
    assert verdict(GOOD, FURTHER, events).is_kept is is_explained


@pytest.mark.parametrize(
    ("handed_out_s", "receipts_s", "killed_s", "is_explained"),
    [
        pytest.param([1.4, 2.4], [], 9.0, True, id="twice, and no receipt"),
        pytest.param([1.4, 2.4], [2.6], 9.0, True, id="twice, and one receipt"),
        pytest.param([1.4], [], 9.0, False, id="once"),
        pytest.param([1.4, 2.4], [1.6, 2.6], 9.0, False, id="a receipt for each"),
        pytest.param([1.4, 2.4], [], 1.0, False, id="killed before"),
        pytest.param([1.4, 2.4], [], 3.0 + BATCH_S_MAX, False, id="in an earlier batch"),
    ],
)
def test_a_killed_mover_takes_the_receipts_of_its_batch_with_it(
    handed_out_s: list[float], receipts_s: list[float], killed_s: float, is_explained: bool
) -> None:
    """The secondary was stopped, the locks ran out, and the mover was killed before its batch
    was over."""
    events = [
        STORED,
        *(event("delivered", "ok", at_s, "s-1", process="secondary") for at_s in handed_out_s),
        *(
            event("move", "ok", at_s, "s-1", detail="moved", process="syphon-1.0")
            for at_s in receipts_s
        ),
        event("kill", "ok", killed_s, process="syphon-1.0"),
    ]
    assert verdict(GOOD, FURTHER, events).is_kept is is_explained


@pytest.mark.parametrize(
    ("fault", "undone_s", "is_explained"),
    [
        ("kill syphon's source", 4.0, True),
        ("kill syphon's source", 1.9, False),
        ("kill syphon", 4.0, False),
    ],
)
def test_a_syphon_that_dies_in_parts_goes_on_until_it_has_noticed(
    fault: str, undone_s: float, is_explained: bool
) -> None:
    """Its source was killed, its tasks had the message again, and no receipt was written."""
    events = [
        STORED,
        event("fault", "invoke", 1.5, process="syphon-1", detail=fault),
        event("kill", "ok", 1.5, process="syphon-1.0", detail="source"),
        *(event("delivered", "ok", at_s, "s-1", process="secondary") for at_s in (1.4, 2.6)),
        event("fault", "ok", undone_s, process="syphon-1", detail=fault),
    ]
    assert verdict(GOOD, FURTHER, events).is_kept is is_explained


@pytest.mark.parametrize(
    ("handed_out_s", "is_explained"),
    [
        pytest.param((1.4, 12.6), True, id="handed out while the rest of it was still there"),
        pytest.param((1.4, 19.0), False, id="handed out when nothing of it was left"),
        pytest.param((1.4,), False, id="handed out once, in the time of both deaths"),
    ],
)
def test_a_syphon_that_lost_a_worker_dies_of_the_next_kill(
    handed_out_s: tuple[float, ...], is_explained: bool
) -> None:
    """The tasks of a killed JVM sent the message home, and nobody was left to write it down."""
    kills = [("worker", 0.2, 6.0), ("jvm", 12.5, 18.0)]
    events = [
        STORED,
        *(event("delivered", "ok", at_s, "s-1", process="secondary") for at_s in handed_out_s),
    ]
    for part, at_s, undone_s in kills:
        fault = f"kill syphon's {part}"
        events += [
            event("fault", "invoke", at_s, process="syphon-1", detail=fault),
            event("kill", "ok", at_s, process="syphon-1.0", detail=part),
            event("fault", "ok", undone_s, process="syphon-1", detail=fault),
        ]
    events.append(event("kill", "ok", 18.0, process="syphon-1.0", detail=BY_ITSELF))
    late = [replace(each, at_s=each.at_s + 11.0) for each in FURTHER]
    assert verdict(GOOD, late, events).is_kept is is_explained


def test_an_ambiguity_of_another_time_explains_nothing() -> None:
    """A receipt that leaves it open covers copies of its own time, and one of them."""
    receipt = event("move", "info", 5.0, "s-1", detail="ambiguous", process="mover-1")
    assert not verdict(GOOD, FURTHER, [replace(receipt, at_s=500.0)]).is_kept
    third = received("s-1", 9.5, copy=3)
    assert verdict(GOOD, FURTHER, third, [receipt]).duplicates.total() == 1
    assert len(verdict(GOOD, FURTHER, third, [receipt]).unexplained) == 1
    assert verdict(GOOD, FURTHER, third, [receipt, replace(receipt, at_s=6.0)]).is_kept


@pytest.mark.parametrize(
    ("stored_s", "is_explained"),
    [
        pytest.param([1.2, 1.4], True, id="both were stored while it was sent"),
        pytest.param([1.2], False, id="one was stored, and moved twice"),
        pytest.param([1.2, 99.0], False, id="the other one was stored later"),
    ],
)
def test_an_unclear_send_explains_copies_that_waited_in_the_backlog(
    stored_s: list[float], is_explained: bool
) -> None:
    found = verdict(
        sent("s-2"),
        [event("possible-duplicate", "info", 1.4, "s-2")],
        [event("stored", "ok", at_s, "s-2", process="secondary") for at_s in stored_s],
        received("s-2", 300.0),
        received("s-2", 400.0, copy=2),
    )
    assert found.is_kept is is_explained


def test_a_scheduled_copy_was_made_when_it_was_scheduled() -> None:
    """Not when it became due, which may be long after the ambiguity."""
    history = [
        *sent("s-2"),
        event("stored", "ok", 1.3, "s-2", process="secondary"),
        event("move", "info", 5.0, "s-2", detail="lock-lost", process="mover-1"),
        event("move", "ok", 40.0, "s-2", detail="moved", process="mover-1"),
        *received("s-2", 300.0),
        *received("s-2", 300.0, copy=2),
    ]
    assert not verdict(history).is_kept
    scheduled = [event("scheduled", "ok", at_s, "s-2", process="primary") for at_s in (4.0, 39.0)]
    assert verdict(history, scheduled).is_kept


@pytest.mark.parametrize(
    ("killed", "scheduled_s", "is_explained"),
    [
        pytest.param("primary", [5.0], True, id="killed before it was told"),
        pytest.param("sender-9.0", [5.0], False, id="somebody else was killed"),
        pytest.param("primary", [5.0, 40.0], False, id="a line for each copy"),
        pytest.param("primary", [], False, id="not scheduled"),
    ],
)
def test_the_line_of_a_scheduled_copy_may_be_lost_with_the_primary(
    killed: str, scheduled_s: list[float], is_explained: bool
) -> None:
    """An I/O error: nobody was told of the copy, which was on the disk all the same."""
    history = [
        *sent("s-2", 1.0),
        event("possible-duplicate", "info", 1.4, "s-2"),
        event("stored", "ok", 1.4, "s-2", process="secondary"),
        event("kill", "ok", 1.7, process=killed),
        *(event("scheduled", "ok", at_s, "s-2", process="primary") for at_s in scheduled_s),
        event("move", "ok", 5.1, "s-2", detail="moved", process="syphon-1.0"),
        *received("s-2", 300.0),
        *received("s-2", 300.0, copy=2),
    ]
    assert verdict(history).is_kept is is_explained


def test_moments_by_another_clock_may_be_off_by_a_little() -> None:
    history = [
        *sent("s-2", 1.0),
        event("possible-duplicate", "info", 1.4, "s-2"),
        *received("s-2", 1.09),
        *received("s-2", 1.5, copy=2),
    ]
    assert verdict(history).is_kept


def test_a_copy_that_came_straight_is_not_taken_for_one_that_was_brought() -> None:
    """The secondary was stopped, and stored its copy when it went on; a mover brought it later."""
    history = [
        *sent("s-2"),
        event("possible-duplicate", "info", 1.4, "s-2"),
        *received("s-2", 2.0),
        event("stored", "ok", 9.0, "s-2", process="secondary"),
        event("move", "ok", 60.0, "s-2", process="mover-1", detail="moved"),
        *received("s-2", 60.0, copy=2),
    ]
    assert verdict(history).is_kept


def test_an_unclear_send_does_not_answer_for_a_mover() -> None:
    """What was brought home is the copy of the backlog, and not one more."""
    history = [
        *sent("s-2"),
        event("possible-duplicate", "info", 1.4, "s-2"),
        *(event("stored", "ok", at_s, "s-2", process="secondary") for at_s in (1.2, 1.4)),
        event("move", "ok", 2.5, "s-2", process="mover-1", detail="deferred"),
        *(
            event("move", "ok", at_s, "s-2", process="mover-1", detail="moved")
            for at_s in (3.0, 4.0)
        ),
        *received("s-2", 3.0),
        *received("s-2", 4.0, copy=2),
    ]
    assert verdict(history).is_kept
    further = received("s-2", 4.5, copy=3)
    again = event("possible-duplicate", "info", 1.5, "s-2")
    assert verdict(history, [again], further).is_kept, "it may have come straight"
    assert not verdict(history, further).is_kept, "one doubt, one further copy"
    assert not verdict(history, received("s-2", 300.0, copy=3)).is_kept


@pytest.mark.parametrize(
    ("killed_s", "told", "is_lost"),
    [
        pytest.param(3.0, [("completed", "receiver-1", 2.5)], False, id="the broker has its word"),
        pytest.param(3.0, [], True, id="nobody has completed it"),
        pytest.param(400.0, [("completed", "receiver-1", 2.5)], True, id="it had time to tell"),
        pytest.param(3.0, [("kill", "primary", 2.6)], False, id="the broker's line may be lost"),
        pytest.param(3.0, [("kill", "primary", 300.0)], True, id="but not that long ago"),
    ],
)
def test_who_is_killed_with_a_message_in_hand_may_have_completed_it(
    killed_s: float, told: list[tuple[str, str, float]], is_lost: bool
) -> None:
    found = verdict(
        sent("s-2"),
        [event("receive", "ok", 2.0, "s-2", place="orders", copy=7)],
        [event("kill", "ok", killed_s, process="receiver-1")],
        [
            event(what, "ok", at_s, "s-2", process=process, place="orders", copy=7)
            for what, process, at_s in told
        ],
    )
    assert bool(found.lost) is is_lost


@pytest.mark.parametrize(
    ("detail", "told", "is_lost"),
    [
        pytest.param("lock lost", [], True, id="nobody has completed it"),
        pytest.param("lock lost", [("completed", "primary")], False, id="the broker has its word"),
        pytest.param("lock lost", [("kill", "primary")], False, id="the broker's line may be lost"),
        pytest.param("OperationTimeout", [], False, id="it may have been done"),
    ],
)
def test_a_completion_that_was_refused_ends_nothing(
    detail: str, told: list[tuple[str, str]], is_lost: bool
) -> None:
    found = verdict(
        sent("s-2"),
        [event("receive", "ok", 2.0, "s-2", place="orders", copy=7)],
        [event("complete", "info", 2.5, "s-2", place="orders", copy=7, detail=detail)],
        [
            event(what, "ok", 2.2, "s-2", process=process, place="orders", copy=7)
            for what, process in told
        ],
    )
    assert bool(found.lost) is is_lost


def test_a_mover_that_died_before_there_was_a_message_explains_nothing() -> None:
    history = [
        event("kill", "ok", 0.2, process="syphon-1.0"),
        STORED,
        event("move", "ok", 2.5, "s-1", detail="moved", process="syphon-1.1"),
    ]
    assert not verdict(GOOD, FURTHER, history).is_kept


def test_a_line_that_was_lost_with_the_secondary_may_have_told_of_a_copy() -> None:
    found = verdict(
        sent("s-2"),
        [event("possible-duplicate", "info", 1.4, "s-2")],
        [event("stored", "ok", 1.4, "s-2", process="secondary")],
        [event("kill", "ok", 1.2, process="secondary")],
        received("s-2", 300.0),
        received("s-2", 400.0, copy=2),
    )
    assert found.is_kept


def test_a_send_without_an_answer_may_have_been_done_twice() -> None:
    unanswered = [event("send", "invoke", 1.0, "s-2", place="orders")]
    found = verdict(unanswered, received("s-2", 2.0), received("s-2", 3.0, copy=2))
    assert found.is_kept
    assert (found.failed, found.recovered) == (1, 1)


def test_a_send_that_ended_with_an_error_may_have_been_done_or_not() -> None:
    timeout = event("send", "info", 1.9, "s-2", place="orders", detail="OperationTimeout")
    tried = [event("send", "invoke", 1.0, "s-2", place="orders"), timeout]
    assert verdict(tried).is_kept, "it never arrived, and nobody was promised that it would"
    assert verdict(tried, received("s-2", 2.0), received("s-2", 3.0, copy=2)).is_kept


# -- what explains a further delivery -------------------------------------------------------------


@pytest.mark.parametrize(
    "cause",
    [
        event("complete", "info", 2.3, "s-2", place="orders", copy=7, detail="MessageLockLost"),
        event("kill", "ok", 2.5, process="primary"),
        event("kill", "ok", 2.5, process="receiver-1"),
    ],
    ids=lambda each: f"{each.what} {each.process}",
)
def test_a_copy_that_could_not_be_completed_may_come_again(cause: Event) -> None:
    again = [
        *sent("s-2"),
        event("receive", "ok", 2.0, "s-2", place="orders", copy=7),
        *received("s-2", 3.0, copy=7, process="receiver-2"),
    ]
    assert not verdict(again).is_kept
    assert verdict(again, [cause]).is_kept


def test_a_lock_that_ran_out_explains_a_further_delivery() -> None:
    again = [
        *sent("s-2"),
        event("receive", "ok", 2.0, "s-2", place="orders", copy=7),
        *received("s-2", 62.0, copy=7, process="receiver-2"),
    ]
    assert verdict(again).is_kept


# -- where else a message may be ------------------------------------------------------------------


def test_a_message_that_is_dead_for_a_reason_is_not_lost() -> None:
    dead = [event("dead", "ok", 9.0, "s-2", place="backlog/1", detail="destination-not-found")]
    found = verdict(sent("s-2", entity="news"), dead)
    assert found.is_kept
    assert found.dead_lettered == 1


def test_a_message_is_dead_only_for_a_reason_that_the_run_gives() -> None:
    dead = [event("dead", "ok", 9.0, "s-2", place="backlog/1", detail="destination-not-found")]
    strict = replace(RULES, reasons=frozenset({"hops"}))
    assert list(check([*sent("s-2"), *dead], strict).complaints) == ["dead-lettered without need"]
    assert check([*sent("s-2"), replace(dead[0], detail="hops")], strict).is_kept


@pytest.mark.parametrize(
    ("told", "is_lost"),
    [
        pytest.param(event("expired", "ok", 7.0, "s-2", place="brief"), False, id="it says so"),
        pytest.param(event("expired", "ok", 7.0, "s-3", place="brief"), True, id="of another"),
        pytest.param(event("expired", "ok", 1.5, "s-2", place="brief"), True, id="too early"),
        pytest.param(event("kill", "ok", 7.0, process="primary"), False, id="its line is lost"),
        pytest.param(event("left", "ok", 99.0, place="brief"), True, id="time alone is nothing"),
        pytest.param(event("kill", "ok", 500.0, process="primary"), True, id="a kill much later"),
        pytest.param(
            event("kill", "ok", 7.0, process="primary", detail="asked to end"),
            True,
            id="who is asked to end writes its lines",
        ),
    ],
)
def test_a_message_whose_time_was_up_is_expired_and_not_lost(told: Event, is_lost: bool) -> None:
    found = verdict(sent("s-2", entity="brief"), [told])
    assert (bool(found.lost), found.expired) == (is_lost, int(not is_lost))
    assert verdict(sent("s-2"), [replace(told, place="orders")]).lost, "it lives longer than a run"


def test_by_a_clock_that_jumps_a_message_may_expire_early() -> None:
    jump = [
        event("fault", type, at_s, process="primary", detail="clock: primary jumps")
        for type, at_s in (("invoke", 1.2), ("ok", 3.0))
    ]
    early = event("expired", "ok", 1.5, "s-2", place="brief")
    assert verdict(sent("s-2", entity="brief"), [early], jump).expired == 1


def in_turn(*numbers: int) -> list[Event]:
    """Messages that were sent one after the other, with the numbers that they have in the queue."""
    history: list[Event] = []
    for turn, number in enumerate(numbers):
        value = f"s-{turn}"
        history += sent(value, 10.0 * turn + 1)
        history += received(value, 10.0 * turn + 5, copy=number)
    return history


def test_what_took_no_detour_is_in_the_order_of_its_acknowledgements() -> None:
    """I5."""
    assert verdict(in_turn(1, 2, 3)).is_kept
    found = verdict(in_turn(1, 3, 2))
    assert found.complaints == {"out of order": ["s-2 in orders is ahead of s-1"]}


@pytest.mark.parametrize(
    "detour",
    [
        event("stored", "ok", 1.3, "s-1", place="backlog/1", process="secondary"),
        event("move", "ok", 1.4, "s-1", detail="moved", process="mover-1"),
        event("scheduled", "ok", 1.2, "s-1", process="primary"),
        event("possible-duplicate", "info", 11.4, "s-1"),
    ],
    ids=["in the backlog", "brought home", "scheduled", "in doubt"],
)
def test_a_detour_may_change_the_order(detour: Event) -> None:
    """P15."""
    assert verdict(in_turn(1, 3, 2), [detour]).is_kept


def test_sends_at_the_same_time_have_no_order() -> None:
    both = [*sent("s-1", 1.0), *sent("s-2", 1.0)]
    assert verdict(both, received("s-1", 5.0, copy=2), received("s-2", 5.0, copy=1)).is_kept


def test_the_order_of_the_lines_does_not_matter() -> None:
    assert check(reversed(GOOD), RULES).is_kept


# -- queues that were deleted ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "place", "is_lost"),
    [
        pytest.param("orders", "orders", False, id="it was in the queue"),
        pytest.param("orders", "primary/x-servicebus-transfer/1", False, id="or in the backlog"),
        pytest.param("news", "primary/x-servicebus-transfer/1", False, id="for a topic, too"),
        pytest.param("news", "news/subscriptions/a", True, id="one subscription of two"),
    ],
)
def test_what_was_in_a_queue_when_it_was_deleted_is_accounted_for(
    entity: str, place: str, is_lost: bool
) -> None:
    found = verdict(
        GOOD, sent("s-2", entity=entity), [event("removed", "ok", 5.0, "s-2", place=place)]
    )
    assert bool(found.lost) == is_lost
    assert found.removed > 0


def test_another_message_is_lost_all_the_same() -> None:
    gone = event("removed", "ok", 5.0, "s-3", place="orders")
    assert verdict(GOOD, sent("s-2"), [gone]).lost == ["s-2 in orders"]


# -- deliveries that are read late ----------------------------------------------------------------


def late(
    type: Any, ended_s: float, read_s: float = 16.0, fault: str = "stop receiver"
) -> list[Event]:
    """Stopped with a delivery on its way; another one completes it; then the first one goes on."""
    stop = {"process": "receiver-2", "detail": fault}
    facts = {"place": "orders", "copy": 1, "process": "receiver-2.0"}
    return [
        event("fault", "invoke", 0.5, **stop),
        event("fault", "ok", ended_s, **stop),
        event("receive", "ok", read_s, "s-1", **facts),
        event("complete", type, read_s + 0.2, "s-1", **facts, detail="lock lost"),
    ]


@pytest.mark.parametrize(
    ("type", "ended_s", "is_explained"),
    [
        pytest.param("info", 15.0, True, id="its lock is lost"),
        pytest.param("ok", 15.0, False, id="it can complete it, so it was sent again"),
        pytest.param("info", 7.0, False, id="nothing held it up until then"),
    ],
)
def test_a_delivery_that_was_read_late_is_no_second_one(
    type: Any, ended_s: float, is_explained: bool
) -> None:
    assert verdict(GOOD, late(type, ended_s)).is_kept is is_explained


def test_nobody_reads_later_than_he_was_held_up_or_because_of_a_clock() -> None:
    assert not verdict(GOOD, late("info", 499.0, read_s=500.0)).is_kept
    assert not verdict(GOOD, late("info", 15.0, fault="clock: receiver jumps")).is_kept


def test_it_may_be_read_while_the_other_one_has_the_message() -> None:
    assert verdict(GOOD, late("info", 1.0, read_s=2.05)).is_kept
    assert not verdict(GOOD, late("ok", 1.0, read_s=2.05)).is_kept


@pytest.mark.parametrize(("unclear", "is_kept"), [(None, False), (1, False), (2, True), (3, True)])
def test_a_failed_send_explains_as_many_copies_as_it_had_unclear_attempts(
    unclear: int | None, is_kept: bool
) -> None:
    """P10: the error says how many of them may have stored the message; one copy is expected."""
    history = [
        event("send", "invoke", 1.0, "s-2", place="orders"),
        event("send", "info", 2.0, "s-2", place="orders", detail="Exhausted", count=unclear),
        *received("s-2", 3.0),
        *received("s-2", 4.0, copy=2),
        *received("s-2", 5.0, copy=3),
    ]
    assert verdict(history).is_kept is is_kept


def test_what_a_mover_brought_is_the_last_copy_before_its_receipt() -> None:
    """P10: the copy of an unclear attempt, made at home shortly before, is another one."""
    history = [
        *sent("s-2"),
        event("possible-duplicate", "info", 1.5, "s-2"),
        event("stored", "ok", 1.4, "s-2", process="secondary"),
        event("move", "ok", 28.0, "s-2", process="mover-1", detail="moved", place="orders"),
        *received("s-2", 1.2),
        *received("s-2", 27.5, copy=2),
    ]
    assert verdict(history).is_kept
    assert not verdict(history, received("s-2", 27.6, copy=3)).is_kept
