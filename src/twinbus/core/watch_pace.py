"""How often the backlog is looked at: soon at first, seldom later, and in time for an event.

    diverted |15 s| 30 s |  1 min  |    2 min    |      4 min      |     5 min     | 5 min ...
             look look   look      look          look              look            look

Rule 1: every look costs operations, so the pause between two of them doubles up to a ceiling.
        What was found out twice is not asked for a third time as soon.
Rule 2: the pauses begin anew when a diversion begins or ends: then a backlog fills or empties.
Rule 3: a pause ends when an event is to be expected, and never before the shortest one.
Rule 4: this file reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

__all__ = ["WATCH_INTERVAL_S", "WATCH_INTERVAL_S_MAX", "PollingPace", "polls_within"]

WATCH_INTERVAL_S: Final = 15.0
# Nobody who reads an event about a backlog of hours minds five minutes. With ten queues, and
# messages in all of them, that is 132 operations an hour from each process that sends.
WATCH_INTERVAL_S_MAX: Final = 300.0
GROWTH: Final = 2
# Clocks and rates are not exact: a look a moment too soon would have to be made again.
EVENT_MARGIN_S: Final = 1.0


@dataclass(slots=True)
class PollingPace:
    """The pauses of one watch."""

    interval_s: float = WATCH_INTERVAL_S
    """The shortest pause."""
    interval_s_max: float = WATCH_INTERVAL_S_MAX
    _next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The next pause is the shortest one."""
        self._next_s = self.interval_s

    def pause_s(self, until_event_s: float) -> float:
        """How long to wait now; an event is expected in ``until_event_s``, infinity for none."""
        pause_s = self._next_s
        self._next_s = min(GROWTH * pause_s, self.interval_s_max)
        return max(self.interval_s, min(pause_s, until_event_s + EVENT_MARGIN_S))


def polls_within(span_s: float, events_s: Sequence[float] = ()) -> int:
    """How many looks begin in a time whose first moment has one. ``events_s`` are the moments of
    expected events, on the same clock."""
    pace, looks, at_s = PollingPace(), 0, 0.0
    while at_s < span_s:
        looks += 1
        at_s += pace.pause_s(min((each - at_s for each in events_s if each > at_s), default=inf))
    return looks
