"""The verdict of a soak."""

from __future__ import annotations

from verification.soak.watch import Sample, judge


def run(memory_mb: list[float], descriptors: list[int] | None = None) -> list[Sample]:
    counts = descriptors or [50] * len(memory_mb)
    return [
        Sample(float(at), memory, count)
        for at, (memory, count) in enumerate(zip(memory_mb, counts, strict=True))
    ]


def test_a_broker_that_warms_up_and_then_stays_is_flat() -> None:
    assert judge(run([50, 80, 100, 110] + [112.0] * 16)).is_flat


def test_a_single_peak_says_nothing() -> None:
    assert judge(run([110.0] * 17 + [400.0, 110.0, 110.0])).is_flat


def test_steady_growth_is_seen() -> None:
    assert not judge(run([100.0 + 2 * at for at in range(20)])).is_flat


def test_descriptors_that_are_not_given_back_are_seen() -> None:
    assert not judge(run([100.0] * 20, [50 + at for at in range(20)])).is_flat
