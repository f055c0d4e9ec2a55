"""When a queue looks at the disk again."""

from __future__ import annotations

from twinbus.broker.engine.chunk import PendingReads
from twinbus.broker.engine.store_requests import EngineTimers, LoadDue, LoadExpired
from twinbus.common.clock import Instant


def test_the_earliest_time_is_the_next_one() -> None:
    calendar = EngineTimers(PendingReads())
    assert calendar.next_timer_s(Instant(50.0, 1_000)) is None

    for at_ms in (9_000, 4_000, 7_000, None):
        calendar.note_expiry(at_ms)
    calendar.note_due(5_000)

    assert calendar.next_timer_s(Instant(50.0, 1_000)) == 53.0


def test_a_look_is_asked_for_once_and_only_when_it_is_time() -> None:
    calendar = EngineTimers(PendingReads())
    calendar.note_expiry(4_000)
    calendar.note_due(5_000)

    assert calendar.due_requests(Instant(0.0, 3_999)) == []
    assert calendar.due_requests(Instant(0.0, 4_000)) == [LoadExpired(4_000)]
    assert calendar.due_requests(Instant(0.0, 6_000)) == [LoadDue(6_000)]
    assert calendar.due_requests(Instant(0.0, 9_000)) == []


def test_a_wall_clock_that_went_back_only_delays_the_look() -> None:
    calendar = EngineTimers(PendingReads())
    calendar.note_due(5_000)

    assert calendar.next_timer_s(Instant(10.0, 1_000)) == 14.0
    assert calendar.next_timer_s(Instant(14.0, 2_000)) == 17.0


def test_what_left_the_schedule_is_remembered_until_no_read_can_speak_of_it() -> None:
    # Given a look at the schedule that began before a message left it
    grace = PendingReads()
    calendar = EngineTimers(grace)
    read = grace.begin_read()
    calendar.unschedule(7)

    # When its removal is on disk and the look is answered only then
    calendar.commit_finished([7])

    # Then the answer finds it gone; afterwards nothing is remembered
    assert not calendar.is_scheduled(7)
    grace.end_read(read)
    assert calendar._unscheduled == set()
