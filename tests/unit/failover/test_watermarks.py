"""When the state of the backlog is worth an event."""

from __future__ import annotations

import pytest

from twinbus.errors import ConfigurationError
from twinbus.failover.backlog_alerts import BacklogAlerts, BacklogThresholds, QueueSnapshot
from twinbus.failover.events import BacklogDrained, BacklogThresholdCrossed, BacklogUnattended


def reading(**facts: float) -> QueueSnapshot:
    return QueueSnapshot(queue="q", **facts)  # type: ignore[arg-type]


def observe(marks: BacklogAlerts, now_s: float, *, is_diverted: bool = False, **facts: float):  # type: ignore[no-untyped-def]
    return marks.observe([reading(**facts)], now_s, is_diverted=is_diverted)


def test_a_level_is_told_once_on_the_way_up_and_once_on_the_way_down() -> None:
    """P16: hysteresis: nine tenths of a threshold is down, a bit less than it is not."""
    marks = BacklogAlerts(BacklogThresholds(percent_full=(50,)))
    told = [observe(marks, at, percent_full=value) for at, value in enumerate([49, 50, 51, 46, 60])]
    assert told == [[], [BacklogThresholdCrossed("q", 1, "percent-full", 50, 50, True)], [], [], []]
    assert observe(marks, 9, percent_full=44) == [
        BacklogThresholdCrossed("q", 9, "percent-full", 44, 50, False)
    ]
    assert len(observe(marks, 10, percent_full=50)) == 1


def test_every_threshold_that_is_passed_is_told() -> None:
    """P16: messages, age and percent, each for itself."""
    marks = BacklogAlerts(BacklogThresholds(percent_full=(50, 80), messages=(10,), age_s=(60,)))
    told = observe(marks, 1, percent_full=90, messages=10, oldest_age_s=61)
    assert [(each.what, each.threshold) for each in told] == [
        ("percent-full", 50),
        ("percent-full", 80),
        ("messages", 10),
        ("age", 60),
    ]


def test_what_nobody_may_know_is_no_event() -> None:
    """P5: an application without Manage and Listen hears nothing, and no nonsense."""
    marks = BacklogAlerts()
    assert marks.observe([QueueSnapshot(queue="q", is_known=False)], 1, is_diverted=True) == []
    assert marks.holds_messages is False


def test_an_empty_backlog_that_held_messages_is_drained() -> None:
    """P16: once."""
    marks = BacklogAlerts()
    assert observe(marks, 1, messages=5, oldest=1) == []
    assert marks.holds_messages
    assert observe(marks, 2, messages=0) == [BacklogDrained(2)]
    assert observe(marks, 3, messages=0) == []


def test_a_backlog_that_cannot_be_seen_any_more_is_not_drained() -> None:
    """P16: not knowing is not empty."""
    marks = BacklogAlerts()
    observe(marks, 1, messages=5, oldest=1)
    assert marks.observe([QueueSnapshot(queue="q", is_known=False)], 2, is_diverted=False) == []


def test_a_backlog_that_nobody_empties_is_told_once() -> None:
    """Y7: the oldest message stays the same one while nothing is diverted."""
    marks = BacklogAlerts(BacklogThresholds(unattended_s=600, age_s=()))
    assert observe(marks, 0, messages=5, oldest=1, oldest_age_s=10) == []
    assert observe(marks, 599, messages=6, oldest=1, oldest_age_s=609) == []
    assert observe(marks, 600, messages=6, oldest=1, oldest_age_s=610) == [
        BacklogUnattended(600, 6, 610)
    ]
    assert observe(marks, 900, messages=6, oldest=1, oldest_age_s=910) == []


def test_a_backlog_that_moves_is_attended() -> None:
    """Y7: another oldest message starts the time again."""
    marks = BacklogAlerts(BacklogThresholds(unattended_s=600, age_s=()))
    for at, oldest in enumerate(range(1, 10)):
        assert observe(marks, at * 500, messages=5, oldest=oldest, oldest_age_s=1) == []


def test_the_time_of_an_outage_does_not_count_as_unattended() -> None:
    """Y7: nobody could have brought the messages home."""
    marks = BacklogAlerts(BacklogThresholds(unattended_s=600, age_s=()))
    for now_s in (0, 1_000, 2_000):
        assert observe(marks, now_s, is_diverted=True, messages=5, oldest=1) == []
    assert observe(marks, 2_500, messages=5, oldest=1) == []
    assert len(observe(marks, 2_600, messages=5, oldest=1)) == 1


@pytest.mark.parametrize(
    "nonsense", [{"percent_full": (0,)}, {"age_s": (-1,)}, {"unattended_s": float("nan")}]
)
def test_a_threshold_that_makes_no_sense_is_refused(nonsense: dict[str, object]) -> None:
    """P2: when it is built."""
    with pytest.raises(ConfigurationError):
        BacklogThresholds(**nonsense)  # type: ignore[arg-type]


def test_messages_that_cannot_be_seen_for_a_moment_are_not_forgotten() -> None:
    """P16, Y7: a look that failed ends neither the watch nor the way to the end of it."""
    marks = BacklogAlerts()
    observe(marks, 1, messages=5, oldest=1)
    marks.observe([QueueSnapshot(queue="q", is_known=False)], 2, is_diverted=False)
    assert marks.holds_messages
    assert observe(marks, 3, messages=0) == [BacklogDrained(3)]


def test_the_age_of_a_message_tells_when_it_will_be_worth_an_event() -> None:
    """P16: ages grow as time does."""
    marks = BacklogAlerts(BacklogThresholds(age_s=(60, 3_600), unattended_s=600))
    observe(marks, 100, messages=1, oldest=7, oldest_age_s=20, is_diverted=True)
    assert marks.expected_s == 140
    observe(marks, 200, messages=1, oldest=7, oldest_age_s=120, is_diverted=True)
    assert marks.expected_s == 200 + 3_480
    observe(marks, 210, messages=0)
    assert marks.expected_s == float("inf")


def test_counts_that_go_on_as_they_did_tell_when_a_level_is_reached() -> None:
    """P16: one per cent a second: half full in 40 s; and then 80 per cent in 25 s."""
    marks = BacklogAlerts(BacklogThresholds(percent_full=(50, 80), age_s=()))
    observe(marks, 0, messages=0, percent_full=0)
    assert marks.expected_s == float("inf")
    observe(marks, 10, messages=10, percent_full=10)
    assert marks.expected_s == 50
    observe(marks, 55, messages=55, percent_full=55)
    assert marks.expected_s == 80
    # It falls by 5 per cent a second, and becomes an event again below 45.
    observe(marks, 56, messages=50, percent_full=50)
    assert marks.expected_s == 57


def test_a_backlog_that_is_emptied_tells_when_it_will_be_empty() -> None:
    """P16: all queues together."""
    marks = BacklogAlerts(BacklogThresholds(age_s=()))
    for now_s, left in ((0, 100), (10, 80)):
        marks.observe(
            [
                QueueSnapshot(queue=name, messages=left * size)
                for name, size in (("0", 1), ("1", 9))
            ],
            now_s,
            is_diverted=False,
        )
    assert marks.expected_s == 50


def test_the_end_of_patience_is_expected_unless_something_is_diverted() -> None:
    """Y7: the event comes when it is due, however seldom somebody looks."""
    marks = BacklogAlerts(BacklogThresholds(unattended_s=600, age_s=()))
    observe(marks, 100, messages=1, oldest=7)
    observe(marks, 300, messages=1, oldest=7)
    assert marks.expected_s == 700
    observe(marks, 700, messages=1, oldest=7)
    assert marks.expected_s == float("inf")
