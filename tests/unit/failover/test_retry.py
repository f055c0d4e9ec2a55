"""How often, and after how long, a send is tried again."""

from __future__ import annotations

from random import Random

import pytest

from twinbus.errors import ConfigurationError
from twinbus.failover.backoff import RetryPolicy


def test_the_back_off_doubles_with_jitter() -> None:
    """F6: exponential with jitter."""
    policy, rng = RetryPolicy(), Random(1)
    for retry, middle_s in [(1, 1.6), (2, 3.2), (3, 6.4)]:
        delays = [policy.delay_s(retry, rng) for _ in range(200)]
        assert middle_s * 0.8 <= min(delays) < max(delays) <= middle_s * 1.2


def test_the_back_off_has_a_limit() -> None:
    """F6: also after very many retries."""
    policy = RetryPolicy(retry_backoff_max=5)
    assert policy.delay_s(1_000, Random(1)) <= 6


def test_a_fixed_back_off_stays_the_same() -> None:
    policy, rng = RetryPolicy(retry_mode="fixed", retry_backoff_factor=2), Random(1)
    assert all(1.6 <= policy.delay_s(retry, rng) <= 2.4 for retry in range(1, 10))


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_total": -1},
        {"retry_total": 1_001},
        {"retry_backoff_factor": -0.1},
        {"retry_backoff_factor": float("nan")},
        {"retry_backoff_max": -1},
        {"retry_mode": "sometimes"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
