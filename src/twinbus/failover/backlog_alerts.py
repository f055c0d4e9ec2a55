"""Alerts about the backlog: which readings cause an event, and how often the backlog is read.

    level       passed upwards: an event; it must fall to nine tenths before it can be passed again
    drained     the backlog held messages and is empty now
    unattended  messages wait, the oldest of them stays the same one, and nothing is diverted

The pauses between two readings are short at first, then longer, and end in time for an event:

    diverted |15 s| 30 s |  1 min  |    2 min    |      4 min      |     5 min     | 5 min ...
             read read   read      read          read              read            read

Rule 1: this module reads no clock and does no I/O: readings come in, events go out.
Rule 2: it also returns when the next event is expected: ages grow as time does, and counts are
        assumed to change as they did between the last two readings. So frequent readings are not
        needed.
Rule 3: every reading costs operations, so the pause between two of them doubles up to a maximum.
Rule 4: the pauses start again with the shortest one when a diversion begins or ends: then a
        backlog fills or empties.
Rule 5: a pause ends when an event is expected, and never before the shortest pause is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from twinbus.common.argument_types import check_type, is_number
from twinbus.errors import ConfigurationError
from twinbus.failover.events import (
    BacklogDrained,
    BacklogThresholdCrossed,
    BacklogUnattended,
    Event,
)

__all__ = [
    "FALLS_TO",
    "WATCH_INTERVAL_S",
    "WATCH_INTERVAL_S_MAX",
    "BacklogAlerts",
    "BacklogThresholds",
    "PollingPace",
    "QueueSnapshot",
    "polls_within",
]

# A level that moves to and fro around its threshold is one event, not one for every reading.
FALLS_TO: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogThresholds:
    """Levels of one backlog queue that are events when they are passed."""

    percent_full: tuple[float, ...] = (50.0, 80.0, 95.0)
    messages: tuple[float, ...] = ()
    age_s: tuple[float, ...] = (3_600.0,)
    unattended_s: float = 600.0
    """How long the oldest message may stay where it is while nothing is diverted (Y7)."""

    def __post_init__(self) -> None:
        for name in ("percent_full", "messages", "age_s"):
            hint = "Use a tuple, for example (80.0, 95.0)"
            check_type(name, getattr(self, name), tuple, list, hint=hint)
        levels = (*self.percent_full, *self.messages, *self.age_s, self.unattended_s)
        if not all(is_number(level) and level > 0 for level in levels):
            raise ConfigurationError(
                f"Every backlog threshold must be a number greater than 0, got {levels!r:.200}",
                hint="Remove the thresholds that you do not need",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """What one backlog queue holds; None where the value could not be read."""

    queue: str
    messages: int | None = None
    percent_full: float | None = None
    oldest_age_s: float | None = None
    oldest: int | None = None
    """The sequence number of the oldest message; None when there is none."""
    is_known: bool = True
    """Whether the queue could be read."""


@dataclass(slots=True)
class _Stay:
    """The oldest message of a queue, and since when it has not moved."""

    oldest: int
    since_s: float
    is_reported: bool = False


@dataclass(slots=True)
class BacklogAlerts:
    """Remembers the levels that were passed."""

    thresholds: BacklogThresholds = field(default_factory=BacklogThresholds)
    holds_messages: bool = False
    """Whether there are any, by the last readings."""
    expected_s: float = inf
    """When the next event is expected, by the last readings; infinity for none."""
    _above: set[tuple[str, str, float]] = field(default_factory=set)
    _stays: dict[str, _Stay] = field(default_factory=dict)
    _before: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """When a value was last read, and what it was; by queue and kind of value."""

    def observe(
        self, readings: Sequence[QueueSnapshot], now_s: float, *, is_diverted: bool
    ) -> list[Event]:
        """The events that the readings of all queues, taken together, cause."""
        events: list[Event] = []
        self.expected_s = inf
        for reading in readings:
            events += self._levels(reading, now_s)
        events += self._unattended(readings, now_s, is_diverted=is_diverted)
        held, is_certain = self.holds_messages, all(one.is_known for one in readings)
        # Messages that were there are assumed to be there until every queue was read as empty.
        self.holds_messages = any(map(_holds, readings)) or (held and not is_certain)
        if held and not self.holds_messages:
            events.append(BacklogDrained(now_s))
        messages = sum(reading.messages or 0 for reading in readings)
        self._expect(now_s, messages, 0, self._rate(("", "messages"), messages, now_s))
        return events

    def _rate(self, key: tuple[str, str], value: float, now_s: float) -> float:
        """By how much a value grows in a second."""
        then_s, before = self._before.get(key, (now_s, value))
        self._before[key] = now_s, value
        return (value - before) / (now_s - then_s) if now_s > then_s else 0.0

    def _expect(self, now_s: float, value: float, level: float, rate: float) -> None:
        """A value that goes on like this reaches a level, unless it is past it."""
        if (level - value) * rate > 0:
            self.expected_s = min(self.expected_s, now_s + (level - value) / rate)

    def _levels(self, reading: QueueSnapshot, now_s: float) -> list[Event]:
        wanted = self.thresholds
        known = (
            ("percent-full", reading.percent_full, wanted.percent_full),
            ("messages", reading.messages, wanted.messages),
            ("age", reading.oldest_age_s, wanted.age_s),
        )
        events: list[Event] = []
        for what, value, thresholds in known:
            if value is None:
                continue
            rate = 1.0 if what == "age" else self._rate((reading.queue, what), value, now_s)
            for threshold in thresholds:
                events += self._level(reading.queue, now_s, what, value, threshold)
                is_above = (reading.queue, what, threshold) in self._above
                self._expect(now_s, value, threshold * (FALLS_TO if is_above else 1), rate)
        return events

    def _level(
        self, queue: str, now_s: float, what: str, value: float, threshold: float
    ) -> list[Event]:
        key = (queue, what, threshold)
        if key not in self._above and value >= threshold:
            self._above.add(key)
        elif key in self._above and value < threshold * FALLS_TO:
            self._above.discard(key)
        else:
            return []
        return [BacklogThresholdCrossed(queue, now_s, what, value, threshold, key in self._above)]

    def _unattended(
        self, readings: Sequence[QueueSnapshot], now_s: float, *, is_diverted: bool
    ) -> list[Event]:
        """While an entity is diverted its messages cannot be moved: that time does not count."""
        stuck = [
            reading
            for reading in readings
            if self._has_stayed(reading, now_s, is_diverted=is_diverted)
        ]
        if not stuck:
            return []
        messages = sum(reading.messages or 1 for reading in stuck)
        return [
            BacklogUnattended(
                now_s, messages, max(reading.oldest_age_s or 0.0 for reading in stuck)
            )
        ]

    def _has_stayed(self, reading: QueueSnapshot, now_s: float, *, is_diverted: bool) -> bool:
        if reading.oldest is None:
            self._stays.pop(reading.queue, None)
            return False
        stay = self._stays.get(reading.queue)
        if stay is None or stay.oldest != reading.oldest:
            stay = self._stays[reading.queue] = _Stay(reading.oldest, now_s)
        if is_diverted:
            stay.since_s = now_s
        if is_diverted or stay.is_reported:
            return False
        due_s = stay.since_s + self.thresholds.unattended_s
        stay.is_reported = now_s >= due_s
        if not stay.is_reported:
            self.expected_s = min(self.expected_s, due_s)
        return stay.is_reported


def _holds(reading: QueueSnapshot) -> bool:
    return bool(reading.messages) or reading.oldest is not None


WATCH_INTERVAL_S: Final = 15.0
# For a backlog of hours, an event that is five minutes late is soon enough. With ten queues, and
# messages in all of them, that is 132 operations an hour from each process that sends.
WATCH_INTERVAL_S_MAX: Final = 300.0
GROWTH: Final = 2
# Clocks and rates are not exact: a reading slightly too early would have to be repeated.
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
    """How many readings begin in ``span_s``, the one at its start included. ``events_s`` are the
    times of expected events, on the same clock."""
    pace, polls, at_s = PollingPace(), 0, 0.0
    while at_s < span_s:
        polls += 1
        at_s += pace.pause_s(min((each - at_s for each in events_s if each > at_s), default=inf))
    return polls
