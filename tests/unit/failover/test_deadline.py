"""How the time of one send is split."""

from __future__ import annotations

import pytest

from twinbus.failover.send_decision import SEND_TIMEOUT_S, Deadline


def test_a_send_has_a_minute_by_default() -> None:
    """F6: no send can outlive its deadline, default 60 s."""
    assert SEND_TIMEOUT_S == 60


@pytest.mark.parametrize(
    ("timeout_s", "reserve_s"),
    [
        (60, 15),
        (8, 2),
        # At least a second...
        (3, 1),
        (2, 1),
        # ...but never more than half, or the primary would not be tried at all.
        (1, 0.5),
        (0.1, 0.05),
    ],
)
def test_a_quarter_and_at_least_a_second_is_kept_for_the_backlog(
    timeout_s: float, reserve_s: float
) -> None:
    """P10: the reserve."""
    deadline = Deadline.after(100, timeout_s)
    assert deadline.reserve_s == pytest.approx(reserve_s)
    assert deadline.primary_end_s == pytest.approx(100 + timeout_s - reserve_s)
    assert deadline.end_s == 100 + timeout_s


def test_what_remains_is_counted_from_now() -> None:
    assert Deadline.after(100, 60).remaining_s(130) == 30
