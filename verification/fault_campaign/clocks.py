"""Moments of the calendar on the monotonic clock, for processes whose wall clock jumps.

Rule 1: a jump is longer than a run, so that a time tells by which clock it was read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from verification.fault_campaign.history import Event

# What a process reads just before or after a jump may be on either side of it.
SLACK_S: Final = 2.0


class WallClock:
    """The wall clock of one process: straight, with stretches that are off."""

    def __init__(
        self, ahead_s: float, jumps: Sequence[tuple[float, float]] = (), *, began_s: float = 0.0
    ) -> None:
        self._ahead_s = ahead_s
        """Of the monotonic clock, while nothing is wrong."""
        # Before the run nobody read anything: a machine may be up for longer than a jump back.
        self._stretches = [(began_s, 0.0), *jumps]
        """From when on it is off by how much."""

    def monotonic(self, unix_s: float) -> float:
        """When it showed that time: in the stretch that fits, or nearest to fitting."""
        ends = [begin_s for begin_s, _off_s in self._stretches[1:]] + [float("inf")]
        found = []
        for (begin_s, off_s), end_s in zip(self._stretches, ends, strict=True):
            at_s = unix_s - self._ahead_s - off_s
            found.append((max(begin_s - SLACK_S - at_s, at_s - end_s - SLACK_S, 0.0), at_s))
        return min(found)[1]


def wall_clocks(events: Sequence[Event]) -> dict[str, WallClock]:
    """The clocks of the processes that jumped, by name of the role; '' is everybody else's. The
    events are in the order of their times."""
    ahead_s = time.time() - time.monotonic()
    began_s = events[0].at_s if events else 0.0
    jumps: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event.what == "clock":
            jumps.setdefault(event.process, []).append((event.at_s, float(event.detail)))
    return {"": WallClock(ahead_s, began_s=began_s)} | {
        name: WallClock(ahead_s, found, began_s=began_s) for name, found in jumps.items()
    }


def clock_of(clocks: dict[str, WallClock], process: str) -> WallClock:
    """``syphon-1.2`` has the clock of ``syphon-1``."""
    return clocks.get(process.partition(".")[0], clocks[""])


__all__ = ["WallClock", "clock_of", "wall_clocks"]
