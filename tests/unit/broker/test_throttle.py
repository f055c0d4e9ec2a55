"""When a broker answers ServerBusy because of its disk."""

from __future__ import annotations

import pytest

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.options import ThrottleThresholds
from twinbus.broker.throttle import LATE_COMMIT_GRACE_S, Throttle

LIMIT_S = 5.0


@pytest.fixture
def throttle() -> Throttle:
    made = Throttle(ThrottleThresholds(commit_latency_s_max=LIMIT_S))
    made.commit_began_at_s = 100.0
    return made


def is_busy(throttle: Throttle, now_s: float) -> bool:
    try:
        throttle.check(1, 1, now_s)
    except AmqpError as error:
        return error.condition == Condition.SERVER_BUSY
    return False


def test_a_commit_that_stays_late_makes_the_broker_busy(throttle: Throttle) -> None:
    """M11."""
    late_s = 100.0 + LIMIT_S + 0.1
    assert not is_busy(throttle, 100.0 + LIMIT_S)
    assert not is_busy(throttle, late_s)
    assert is_busy(throttle, late_s + LATE_COMMIT_GRACE_S + 0.1)
    throttle.commit_began_at_s = None
    assert not is_busy(throttle, late_s + 1.0)


def test_a_process_that_was_paused_is_not_busy_when_it_continues(throttle: Throttle) -> None:
    """M11: the disk was not slow. Clients would have to wait ten seconds for nothing."""
    continued_s = 110.7
    assert not is_busy(throttle, continued_s)
    assert not is_busy(throttle, continued_s + 0.01)
    throttle.commit_began_at_s = continued_s + 0.02  # The next one.
    assert not is_busy(throttle, continued_s + LIMIT_S)


def test_each_late_commit_has_its_own_grace(throttle: Throttle) -> None:
    """M11."""
    assert not is_busy(throttle, 106.0)
    throttle.commit_began_at_s = 107.0
    assert not is_busy(throttle, 112.1)
    assert is_busy(throttle, 112.1 + LATE_COMMIT_GRACE_S + 0.1)
