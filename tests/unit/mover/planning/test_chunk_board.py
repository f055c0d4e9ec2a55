"""When a destination that failed is tried again."""

from __future__ import annotations

from random import Random

import pytest

from twinbus.errors import ConfigurationError
from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.circuit_breaker import (
    PROBE_S_MAX,
    TRANSITIONS,
    CircuitState,
    DestinationCircuits,
    SendPermission,
    SendSignal,
)
from twinbus.mover.planning.work_order import CircuitSnapshot

HOUR_S = 3_600.0


def make_board(**backoff: float) -> DestinationCircuits:
    return DestinationCircuits(Backoff(**backoff), Random(1))


def next_due_in_s(circuits: DestinationCircuits, now_s: float) -> float:
    return min(note.due_in_s for note in circuits.export_state(now_s))


def test_the_table_is_total() -> None:
    assert {(standing, sign) for standing, row in TRANSITIONS.items() for sign in row} == {
        (standing, sign) for standing in CircuitState for sign in SendSignal
    }


def test_a_destination_that_never_failed_is_open() -> None:
    circuits = make_board()
    circuits.receive("orders", SendSignal.ACCEPTED, 5)
    assert circuits.admit("orders", 10) is SendPermission.SEND
    assert circuits.open_circuits() == []


def test_a_destination_that_failed_is_left_alone_and_then_probed_by_one() -> None:
    # Given a destination that failed at 100 s
    circuits = make_board(first_s=10)
    circuits.receive("orders", SendSignal.FAILED, 100)
    due_s = 100 + next_due_in_s(circuits, 100)
    assert 108 <= due_s <= 112

    # Then nothing goes there before its pause is over, and one batch after it
    assert circuits.admit("orders", 107) is SendPermission.WAIT
    assert circuits.admit("orders", due_s) is SendPermission.PROBE
    assert circuits.admit("orders", due_s + 1) is SendPermission.WAIT
    assert circuits.admit("news", 107) is SendPermission.SEND


def test_a_probe_that_is_accepted_opens_it_for_all() -> None:
    circuits = make_board(first_s=10)
    circuits.receive("orders", SendSignal.FAILED, 100)
    circuits.admit("orders", 200)
    circuits.receive("orders", SendSignal.ACCEPTED, 201)
    assert circuits.admit("orders", 201) is SendPermission.SEND
    assert circuits.open_circuits() == []


def test_pauses_double_to_the_last_one_and_begin_anew_after_a_success() -> None:
    circuits = make_board(first_s=1, last_s=60)
    now_s, pauses = 0.0, []
    for _failure in range(9):
        circuits.receive("orders", SendSignal.FAILED, now_s)
        pauses.append(next_due_in_s(circuits, now_s))
        now_s += pauses[-1]
        assert circuits.admit("orders", now_s) is SendPermission.PROBE
    for pause_s, expected_s in zip(pauses, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=True):
        assert 0.8 * expected_s <= pause_s <= 1.2 * expected_s
    circuits.receive("orders", SendSignal.ACCEPTED, now_s)
    circuits.receive("orders", SendSignal.FAILED, now_s)
    assert circuits.admit("orders", now_s + 1.3) is SendPermission.PROBE


def test_many_failures_of_one_moment_count_once() -> None:
    circuits = make_board(first_s=10)
    for _batch in range(8):
        circuits.receive("orders", SendSignal.FAILED, 100)
    assert circuits.admit("orders", 113) is SendPermission.PROBE


def test_a_late_success_does_not_open_a_closed_destination() -> None:
    circuits = make_board(first_s=10)
    circuits.receive("orders", SendSignal.FAILED, 100)
    circuits.receive("orders", SendSignal.ACCEPTED, 101)
    assert circuits.admit("orders", 102) is SendPermission.WAIT


def test_a_throttled_destination_rests_at_least_as_long_as_it_asked() -> None:
    """F2: nothing is sent again for 10 s."""
    circuits = make_board(first_s=1)
    circuits.receive("orders", SendSignal.FAILED, 100, pause_s_min=10)
    assert circuits.admit("orders", 109.9) is SendPermission.WAIT
    assert circuits.admit("orders", 110) is SendPermission.PROBE


def test_a_probe_that_nobody_reports_on_is_given_up() -> None:
    circuits = make_board(first_s=1)
    circuits.receive("orders", SendSignal.FAILED, 100)
    assert circuits.admit("orders", 200) is SendPermission.PROBE
    assert circuits.admit("orders", 199 + PROBE_S_MAX) is SendPermission.WAIT
    assert circuits.admit("orders", 200 + PROBE_S_MAX) is SendPermission.PROBE


def test_a_missing_destination_is_lost_only_when_a_probe_misses_it_after_the_grace() -> None:
    """Y4: gone for longer than a grace period."""
    circuits = make_board(gone_grace_s=600, last_s=1_000)
    circuits.receive("orders", SendSignal.GONE, 0)
    assert circuits.admit("orders", 0.5) is SendPermission.WAIT
    # The grace is over, and nobody has looked since
    assert not circuits.is_missing("orders")
    assert circuits.admit("orders", 601) is SendPermission.PROBE
    circuits.receive("orders", SendSignal.GONE, 601)
    assert circuits.is_missing("orders")
    assert circuits.admit("orders", 601.5) is SendPermission.GIVE_UP
    # It is probed all the same, and may come back
    assert circuits.admit("orders", 601 + HOUR_S) is SendPermission.PROBE
    circuits.receive("orders", SendSignal.ACCEPTED, 601 + HOUR_S)
    assert not circuits.is_missing("orders")


def test_a_missing_destination_that_then_fails_otherwise_is_not_lost() -> None:
    circuits = make_board(gone_grace_s=0)
    circuits.receive("orders", SendSignal.GONE, 0)
    assert circuits.is_missing("orders")
    circuits.admit("orders", HOUR_S)
    circuits.receive("orders", SendSignal.FAILED, HOUR_S)
    assert not circuits.is_missing("orders")


def test_time_that_a_destination_was_disabled_is_no_time_that_it_was_missing() -> None:
    """Y4: it was there, so that its grace period begins anew."""
    circuits = make_board(gone_grace_s=600, last_s=1)
    for now_s, sign in [
        (0, SendSignal.GONE),
        (300, SendSignal.FAILED),
        (650, SendSignal.GONE),
        (1_200, SendSignal.GONE),
    ]:
        circuits.admit("orders", now_s)
        circuits.receive("orders", sign, now_s)
        assert not circuits.is_missing("orders"), now_s
    circuits.admit("orders", 1_250)
    circuits.receive("orders", SendSignal.GONE, 1_250)
    assert circuits.is_missing("orders")


def test_all_may_be_probed_at_once_when_what_kept_them_away_is_over() -> None:
    circuits = make_board(first_s=50)
    circuits.receive("orders", SendSignal.FAILED, 100)
    circuits.allow_probes_now(101)
    assert circuits.admit("orders", 101) is SendPermission.PROBE


def test_a_silent_destination_is_probed_by_those_only_who_may_wait() -> None:
    circuits = make_board(first_s=1)
    circuits.receive("silent", SendSignal.FAILED, 100, timed_out=True)
    circuits.receive("disabled", SendSignal.FAILED, 100)
    assert circuits.admit("silent", 200, may_wait=False) is SendPermission.WAIT
    assert circuits.admit("silent", 200) is SendPermission.PROBE
    assert circuits.admit("disabled", 200, may_wait=False) is SendPermission.PROBE


def test_a_probe_that_came_to_nothing_can_be_made_again() -> None:
    circuits = make_board(first_s=1)
    circuits.receive("orders", SendSignal.FAILED, 100)
    assert circuits.admit("orders", 200) is SendPermission.PROBE
    circuits.release("orders", 201)
    assert circuits.admit("orders", 201) is SendPermission.WAIT
    assert circuits.admit("orders", 203) is SendPermission.PROBE
    circuits.receive("orders", SendSignal.ACCEPTED, 204)
    circuits.release("orders", 204)
    assert circuits.admit("orders", 204) is SendPermission.SEND


def test_invented_destinations_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.mover.planning.circuit_breaker.DESTINATIONS_MAX", 3)
    circuits = make_board()
    for index in range(10):
        circuits.receive(f"invented-{index}", SendSignal.GONE, index)
    assert len(circuits.open_circuits()) == 3


def test_more_missing_destinations_than_are_remembered_are_lost_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y4: otherwise each forgets the others, and all are tried for ever."""
    monkeypatch.setattr("twinbus.mover.planning.circuit_breaker.DESTINATIONS_MAX", 3)
    circuits = make_board(gone_grace_s=10)
    lost = set()
    for now_s in range(24):
        path = f"missing-{now_s % 6}"
        if circuits.admit(path, now_s) is not SendPermission.WAIT:
            circuits.receive(path, SendSignal.GONE, now_s)
        if circuits.is_missing(path):
            lost.add(path)
    assert len(lost) == 6


@pytest.mark.parametrize(
    "wrong", [{"first_s": 0.0}, {"first_s": 2.0, "last_s": 1.0}, {"gone_grace_s": -1.0}]
)
def test_pauses_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Backoff(**wrong)


def rounded(notes: tuple[CircuitSnapshot, ...]) -> list[CircuitSnapshot]:
    return [each._replace(due_in_s=round(each.due_in_s, 6)) for each in notes]


def test_what_is_closed_can_be_taken_up_on_another_clock() -> None:
    # Given a destination that failed twice, one that is gone, and one that is silent
    circuits = make_board(first_s=10, gone_grace_s=50)
    circuits.receive("orders", SendSignal.FAILED, 100)
    circuits.admit("orders", 120)
    circuits.receive("orders", SendSignal.FAILED, 120)
    circuits.receive("gone", SendSignal.GONE, 60)
    circuits.admit("gone", 115)
    circuits.receive("gone", SendSignal.GONE, 115)
    circuits.receive("silent", SendSignal.FAILED, 120, timed_out=True)
    notes = circuits.export_state(121)

    # When another board takes the notes, at 5,000 s of its own clock
    other = make_board(first_s=10, gone_grace_s=50)
    other.import_state(notes, 5_000)

    # Then all of it is as it was
    assert rounded(other.export_state(5_000)) == rounded(notes)
    assert other.admit("orders", 5_000) is SendPermission.WAIT
    assert other.admit("gone", 5_000) is SendPermission.GIVE_UP
    assert other.admit("silent", 5_000 + HOUR_S, may_wait=False) is SendPermission.WAIT
    assert other.admit("orders", 5_000 + HOUR_S) is SendPermission.PROBE


def test_notes_of_less_are_not_taken() -> None:
    circuits, other = make_board(first_s=10), make_board(first_s=10)
    other.receive("orders", SendSignal.FAILED, 0)
    for now_s in (0, 100):
        circuits.admit("orders", now_s)
        circuits.receive("orders", SendSignal.FAILED, now_s)
    before = circuits.export_state(100)
    circuits.import_state(other.export_state(0), 100)
    assert circuits.export_state(100) == before
    other.import_state(before, 7)
    assert rounded(other.export_state(7)) == rounded(before)


def test_a_probe_that_was_cut_off_is_noted_as_due_soon() -> None:
    circuits = make_board(first_s=10)
    circuits.receive("orders", SendSignal.FAILED, 0)
    circuits.admit("orders", 20)
    (note,) = circuits.export_state(21)
    assert note.due_in_s == 10
