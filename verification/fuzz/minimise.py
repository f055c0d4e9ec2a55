"""The smallest input that still breaks the same promise.

First whole frames or blocks go, then smaller and smaller runs of bytes (ddmin), until the time is
over. What is left is not the smallest there is, but one that a person can read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

TIME_S_MAX: Final = 10.0


def minimise(
    data: bytes, still_breaks: Callable[[bytes], bool], time_s_max: float = TIME_S_MAX
) -> bytes:
    """Leave out what is not needed."""
    stop_s = time.monotonic() + time_s_max
    pieces = 2
    while len(data) > 1 and time.monotonic() < stop_s:
        size = max(1, len(data) // pieces)
        shorter = _without_one(data, size, still_breaks, stop_s)
        if shorter is not None:
            data = shorter
            pieces = max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces = min(len(data), pieces * 2)
    return data


def _without_one(
    data: bytes, size: int, still_breaks: Callable[[bytes], bool], stop_s: float
) -> bytes | None:
    for start in range(0, len(data), size):
        if time.monotonic() > stop_s:
            return None
        shorter = data[:start] + data[start + size :]
        if still_breaks(shorter):
            return shorter
    return None
