"""Samples of a process, and whether it grew.

Rule 1: the first part of a run is warm-up and counts for nothing.
Rule 2: growth is the median of the last quarter against the median of the first one after the
        warm-up, so that a single peak says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psutil

WARM_UP_SHARE = 0.2
# An allocator breathes; a leak of one object for a thousand messages shows as more than this.
MEMORY_GROWTH_MB_MAX = 16.0
DESCRIPTOR_GROWTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at_s: float
    memory_mb: float
    descriptors: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What changed between the beginning and the end."""

    memory_mb_before: float
    memory_mb_after: float
    descriptors_before: float
    descriptors_after: float

    @property
    def is_flat(self) -> bool:
        return (
            self.memory_mb_after - self.memory_mb_before <= MEMORY_GROWTH_MB_MAX
            and self.descriptors_after - self.descriptors_before <= DESCRIPTOR_GROWTH_MAX
        )


def look_at(process: psutil.Process, at_s: float) -> Sample:
    return Sample(at_s, process.memory_info().rss / (1 << 20), process.num_fds())


def judge(samples: Sequence[Sample]) -> Verdict:
    """The verdict over a run; needs at least eight looks."""
    counted = samples[int(len(samples) * WARM_UP_SHARE) :]
    quarter = max(1, len(counted) // 4)
    first, last = counted[:quarter], counted[-quarter:]
    return Verdict(
        median(each.memory_mb for each in first),
        median(each.memory_mb for each in last),
        median(each.descriptors for each in first),
        median(each.descriptors for each in last),
    )
