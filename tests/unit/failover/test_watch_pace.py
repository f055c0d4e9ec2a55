"""How often the backlog is looked at."""

from __future__ import annotations

from itertools import accumulate
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.failover.backlog_alerts import (
    WATCH_INTERVAL_S,
    WATCH_INTERVAL_S_MAX,
    PollingPace,
    polls_within,
)


def test_pauses_double_up_to_a_ceiling_and_begin_anew() -> None:
    """P16: soon at first, seldom later."""
    pace = PollingPace()
    assert [pace.pause_s(inf) for _ in range(7)] == [15, 30, 60, 120, 240, 300, 300]
    pace.restart()
    assert [pace.pause_s(inf) for _ in range(2)] == [15, 30]


def test_a_pause_ends_when_an_event_is_expected() -> None:
    """P16: in time for it, and never sooner than after the shortest pause."""
    pace = PollingPace()
    assert [pace.pause_s(each) for each in (inf, 20, inf, 3, -5, inf)] == [15, 21, 60, 15, 15, 300]


@pytest.mark.parametrize(
    ("span_s", "looks"),
    [(0, 0), (1, 1), (15, 1), (15.001, 2), (45, 2), (465, 5), (466, 6), (765, 6), (2_640, 13)],
)
def test_looks_of_a_time(span_s: float, looks: int) -> None:
    """C3: at 0, 15, 45, 105, 225 and 465 s, and every five minutes then."""
    assert polls_within(span_s) == looks


def test_an_hour_of_age_is_looked_at_when_it_has_come() -> None:
    """C3: after the look at 3,465 s the next one is early, a second after the hour."""
    assert polls_within(3_601.5) == polls_within(3_601.5, [3_600]) - 1
    assert polls_within(3_601, [3_600]) == polls_within(3_601)


@given(st.lists(st.none() | st.floats(-10, 10_000), max_size=50))
def test_no_pause_is_shorter_or_longer_than_said(expected: list[float | None]) -> None:
    """P16: whatever is expected."""
    pace = PollingPace()
    for each in expected:
        pause_s = pace.pause_s(inf if each is None else each)
        assert WATCH_INTERVAL_S <= pause_s <= WATCH_INTERVAL_S_MAX


@given(st.floats(0, 100_000), st.floats(0, 10_000), st.lists(st.floats(0, 100_000), max_size=4))
def test_a_longer_time_and_more_events_never_have_fewer_looks(
    span_s: float, more_s: float, events_s: list[float]
) -> None:
    """C3: an estimate grows with the outage."""
    assert polls_within(span_s) <= polls_within(span_s, events_s)
    assert polls_within(span_s, events_s) <= polls_within(span_s + more_s, events_s)


def test_the_pauses_are_what_the_looks_are_counted_with() -> None:
    """C3: one look before each pause."""
    pace = PollingPace()
    begins = [0.0, *accumulate(pace.pause_s(inf) for _ in range(40))]
    for count, begin_s in enumerate(begins):
        assert polls_within(begin_s) == count
