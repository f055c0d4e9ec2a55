"""When a destination that failed is tried again."""

from __future__ import annotations

from random import Random

import pytest

from twinbus.core.chunk_board import (
    PROBE_S_MAX,
    TRANSITIONS,
    Backoff,
    CircuitState,
    DestinationBoard,
    SendPermission,
    Sign,
)
from twinbus.core.shift import BoardNote
from twinbus.errors import ConfigurationError

HOUR_S = 3_600.0


def make_board(**backoff: float) -> DestinationBoard:
    return DestinationBoard(Backoff(**backoff), Random(1))


def next_due_in_s(board: DestinationBoard, now_s: float) -> float:
    return min(note.due_in_s for note in board.notes(now_s))


def test_the_table_is_total() -> None:
    assert {(standing, sign) for standing, row in TRANSITIONS.items() for sign in row} == {
        (standing, sign) for standing in CircuitState for sign in Sign
    }


def test_a_destination_that_never_failed_is_open() -> None:
    board = make_board()
    board.receive("orders", Sign.ACCEPTED, 5)
    assert board.admit("orders", 10) is SendPermission.SEND
    assert board.open_circuits() == []


def test_a_destination_that_failed_is_left_alone_and_then_probed_by_one() -> None:
    # Given a destination that failed at 100 s
    board = make_board(first_s=10)
    board.receive("orders", Sign.FAILED, 100)
    due_s = 100 + next_due_in_s(board, 100)
    assert 108 <= due_s <= 112

    # Then nothing goes there before its pause is over, and one batch after it
    assert board.admit("orders", 107) is SendPermission.WAIT
    assert board.admit("orders", due_s) is SendPermission.PROBE
    assert board.admit("orders", due_s + 1) is SendPermission.WAIT
    assert board.admit("news", 107) is SendPermission.SEND


def test_a_probe_that_is_accepted_opens_it_for_all() -> None:
    board = make_board(first_s=10)
    board.receive("orders", Sign.FAILED, 100)
    board.admit("orders", 200)
    board.receive("orders", Sign.ACCEPTED, 201)
    assert board.admit("orders", 201) is SendPermission.SEND
    assert board.open_circuits() == []


def test_pauses_double_to_the_last_one_and_begin_anew_after_a_success() -> None:
    board = make_board(first_s=1, last_s=60)
    now_s, pauses = 0.0, []
    for _failure in range(9):
        board.receive("orders", Sign.FAILED, now_s)
        pauses.append(next_due_in_s(board, now_s))
        now_s += pauses[-1]
        assert board.admit("orders", now_s) is SendPermission.PROBE
    for pause_s, expected_s in zip(pauses, (1, 2, 4, 8, 16, 32, 60, 60, 60), strict=True):
        assert 0.8 * expected_s <= pause_s <= 1.2 * expected_s
    board.receive("orders", Sign.ACCEPTED, now_s)
    board.receive("orders", Sign.FAILED, now_s)
    assert board.admit("orders", now_s + 1.3) is SendPermission.PROBE


def test_many_failures_of_one_moment_count_once() -> None:
    board = make_board(first_s=10)
    for _batch in range(8):
        board.receive("orders", Sign.FAILED, 100)
    assert board.admit("orders", 113) is SendPermission.PROBE


def test_a_late_success_does_not_open_a_closed_destination() -> None:
    board = make_board(first_s=10)
    board.receive("orders", Sign.FAILED, 100)
    board.receive("orders", Sign.ACCEPTED, 101)
    assert board.admit("orders", 102) is SendPermission.WAIT


def test_a_throttled_destination_rests_at_least_as_long_as_it_asked() -> None:
    """F2: nothing is sent again for 10 s."""
    board = make_board(first_s=1)
    board.receive("orders", Sign.FAILED, 100, pause_s_min=10)
    assert board.admit("orders", 109.9) is SendPermission.WAIT
    assert board.admit("orders", 110) is SendPermission.PROBE


def test_a_probe_that_nobody_reports_on_is_given_up() -> None:
    board = make_board(first_s=1)
    board.receive("orders", Sign.FAILED, 100)
    assert board.admit("orders", 200) is SendPermission.PROBE
    assert board.admit("orders", 199 + PROBE_S_MAX) is SendPermission.WAIT
    assert board.admit("orders", 200 + PROBE_S_MAX) is SendPermission.PROBE


def test_a_missing_destination_is_lost_only_when_a_probe_misses_it_after_the_grace() -> None:
    """Y4: gone for longer than a grace period."""
    board = make_board(gone_grace_s=600, last_s=1_000)
    board.receive("orders", Sign.GONE, 0)
    assert board.admit("orders", 0.5) is SendPermission.WAIT
    # The grace is over, and nobody has looked since
    assert not board.is_lost("orders")
    assert board.admit("orders", 601) is SendPermission.PROBE
    board.receive("orders", Sign.GONE, 601)
    assert board.is_lost("orders")
    assert board.admit("orders", 601.5) is SendPermission.GIVE_UP
    # It is probed all the same, and may come back
    assert board.admit("orders", 601 + HOUR_S) is SendPermission.PROBE
    board.receive("orders", Sign.ACCEPTED, 601 + HOUR_S)
    assert not board.is_lost("orders")


def test_a_missing_destination_that_then_fails_otherwise_is_not_lost() -> None:
    board = make_board(gone_grace_s=0)
    board.receive("orders", Sign.GONE, 0)
    assert board.is_lost("orders")
    board.admit("orders", HOUR_S)
    board.receive("orders", Sign.FAILED, HOUR_S)
    assert not board.is_lost("orders")


def test_time_that_a_destination_was_disabled_is_no_time_that_it_was_missing() -> None:
    """Y4: it was there, so that its grace period begins anew."""
    board = make_board(gone_grace_s=600, last_s=1)
    for now_s, sign in [(0, Sign.GONE), (300, Sign.FAILED), (650, Sign.GONE), (1_200, Sign.GONE)]:
        board.admit("orders", now_s)
        board.receive("orders", sign, now_s)
        assert not board.is_lost("orders"), now_s
    board.admit("orders", 1_250)
    board.receive("orders", Sign.GONE, 1_250)
    assert board.is_lost("orders")


def test_all_may_be_probed_at_once_when_what_kept_them_away_is_over() -> None:
    board = make_board(first_s=50)
    board.receive("orders", Sign.FAILED, 100)
    board.hurry(101)
    assert board.admit("orders", 101) is SendPermission.PROBE


def test_a_silent_destination_is_probed_by_those_only_who_may_wait() -> None:
    board = make_board(first_s=1)
    board.receive("silent", Sign.FAILED, 100, is_silent=True)
    board.receive("disabled", Sign.FAILED, 100)
    assert board.admit("silent", 200, may_wait=False) is SendPermission.WAIT
    assert board.admit("silent", 200) is SendPermission.PROBE
    assert board.admit("disabled", 200, may_wait=False) is SendPermission.PROBE


def test_a_probe_that_came_to_nothing_can_be_made_again() -> None:
    board = make_board(first_s=1)
    board.receive("orders", Sign.FAILED, 100)
    assert board.admit("orders", 200) is SendPermission.PROBE
    board.release("orders", 201)
    assert board.admit("orders", 201) is SendPermission.WAIT
    assert board.admit("orders", 203) is SendPermission.PROBE
    board.receive("orders", Sign.ACCEPTED, 204)
    board.release("orders", 204)
    assert board.admit("orders", 204) is SendPermission.SEND


def test_invented_destinations_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.core.chunk_board.DESTINATIONS_MAX", 3)
    board = make_board()
    for index in range(10):
        board.receive(f"invented-{index}", Sign.GONE, index)
    assert len(board.open_circuits()) == 3


def test_more_missing_destinations_than_are_remembered_are_lost_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y4: otherwise each forgets the others, and all are tried for ever."""
    monkeypatch.setattr("twinbus.core.chunk_board.DESTINATIONS_MAX", 3)
    board = make_board(gone_grace_s=10)
    lost = set()
    for now_s in range(24):
        path = f"missing-{now_s % 6}"
        if board.admit(path, now_s) is not SendPermission.WAIT:
            board.receive(path, Sign.GONE, now_s)
        if board.is_lost(path):
            lost.add(path)
    assert len(lost) == 6


@pytest.mark.parametrize(
    "wrong", [{"first_s": 0.0}, {"first_s": 2.0, "last_s": 1.0}, {"gone_grace_s": -1.0}]
)
def test_pauses_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Backoff(**wrong)


def rounded(notes: tuple[BoardNote, ...]) -> list[BoardNote]:
    return [each._replace(due_in_s=round(each.due_in_s, 6)) for each in notes]


def test_what_is_closed_can_be_taken_up_on_another_clock() -> None:
    # Given a destination that failed twice, one that is gone, and one that is silent
    board = make_board(first_s=10, gone_grace_s=50)
    board.receive("orders", Sign.FAILED, 100)
    board.admit("orders", 120)
    board.receive("orders", Sign.FAILED, 120)
    board.receive("gone", Sign.GONE, 60)
    board.admit("gone", 115)
    board.receive("gone", Sign.GONE, 115)
    board.receive("silent", Sign.FAILED, 120, is_silent=True)
    notes = board.notes(121)

    # When another board takes the notes, at 5,000 s of its own clock
    other = make_board(first_s=10, gone_grace_s=50)
    other.take_notes(notes, 5_000)

    # Then all of it is as it was
    assert rounded(other.notes(5_000)) == rounded(notes)
    assert other.admit("orders", 5_000) is SendPermission.WAIT
    assert other.admit("gone", 5_000) is SendPermission.GIVE_UP
    assert other.admit("silent", 5_000 + HOUR_S, may_wait=False) is SendPermission.WAIT
    assert other.admit("orders", 5_000 + HOUR_S) is SendPermission.PROBE


def test_notes_of_less_are_not_taken() -> None:
    board, other = make_board(first_s=10), make_board(first_s=10)
    other.receive("orders", Sign.FAILED, 0)
    for now_s in (0, 100):
        board.admit("orders", now_s)
        board.receive("orders", Sign.FAILED, now_s)
    before = board.notes(100)
    board.take_notes(other.notes(0), 100)
    assert board.notes(100) == before
    other.take_notes(before, 7)
    assert rounded(other.notes(7)) == rounded(before)


def test_a_probe_that_was_cut_off_is_noted_as_due_soon() -> None:
    board = make_board(first_s=10)
    board.receive("orders", Sign.FAILED, 0)
    board.admit("orders", 20)
    (note,) = board.notes(21)
    assert note.due_in_s == 10
