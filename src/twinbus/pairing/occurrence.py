"""An event of the core with the calendar's time and the names of the pair, ready to be told.

    EventRecord   what subscribers, callbacks, the log and the journal receive
    facts()      the same as plain values, for a line of JSON

Rule 1: the core's clock means nothing outside this process: every moment leaves as UTC.
Rule 2: a moment that is not earlier on the core's clock is not earlier in UTC, unless somebody has
        set the machine's clock meanwhile.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.argument_types import type_shown
from twinbus.core.events import (
    BacklogDrained,
    BacklogExhaustedEvent,
    BacklogQueueReinstated,
    BacklogQueueWithdrawn,
    BacklogReady,
    BacklogThresholdCrossed,
    BacklogUnattended,
    BacklogUnreachable,
    ClaimMissing,
    DeadLettered,
    Diverted,
    EntityHeld,
    Event,
    FactoryClosedEvent,
    FactoryFaultedEvent,
    ForeignMessages,
    PingFailed,
    PingRefused,
    PingSent,
    PossibleDuplicate,
    Restored,
    RestoreDelayed,
    Suspected,
    SuspicionCleared,
    SyphonStalled,
)
from twinbus.errors import ConfigurationError

__all__ = ["EventRecord", "check_listener", "level_of", "utc_at"]

_WARNINGS: Final = (
    Suspected,
    Diverted,
    BacklogQueueWithdrawn,
    BacklogExhaustedEvent,
    BacklogUnreachable,
    PossibleDuplicate,
    BacklogThresholdCrossed,
    BacklogUnattended,
    SyphonStalled,
    ClaimMissing,
    DeadLettered,
    ForeignMessages,
    FactoryFaultedEvent,
    EntityHeld,
)
# A difference between the clocks that is larger was made by somebody who has set one of them.
CLOCK_SET_S_MIN: Final = 0.05
_MOMENTS: Final = {"at_s": "at", "until_s": "until"}


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event of a pair."""

    event: Event
    at: datetime
    primary: str
    """The address of the primary."""
    secondary: str = ""

    @property
    def name(self) -> str:
        """What happened, in an operator's word: ``diverted``, ``queue-withdrawn``, ..."""
        return _NAMES[type(self.event)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, moments as ISO 8601 in UTC."""
        told: dict[str, Any] = {
            "event": self.name,
            "at": self.at.isoformat(),
            "primary": self.primary,
            "secondary": self.secondary,
        }
        event: Any = self.event
        for field in dataclasses.fields(event):
            value = getattr(event, field.name)
            if field.name == "at_s":
                continue
            if field.name in _MOMENTS:
                value = utc_at(value).isoformat()
            told[_MOMENTS.get(field.name, field.name)] = (
                list(value) if isinstance(value, tuple) else value
            )
        return told

    def __str__(self) -> str:
        facts = self.to_dict()
        about = ", ".join(
            f"{name}={facts[name]}"
            for name in facts
            if name not in ("event", "at", "primary", "secondary") and facts[name] not in ("", [])
        )
        return f"{self.name}: {about}" if about else self.name


# These words are stored, in journals and logs: they stay when a class gets another name.
_NAMES: Final[Mapping[type[Event], str]] = {
    Suspected: "suspected",
    SuspicionCleared: "cleared",
    Diverted: "diverted",
    PingSent: "ping-sent",
    PingFailed: "ping-failed",
    PingRefused: "ping-refused",
    RestoreDelayed: "restore-delayed",
    Restored: "restored",
    EntityHeld: "held",
    BacklogQueueWithdrawn: "queue-withdrawn",
    BacklogQueueReinstated: "queue-returned",
    BacklogExhaustedEvent: "backlog-out-of-reach",
    BacklogUnreachable: "backlog-unreachable",
    BacklogReady: "backlog-ready",
    PossibleDuplicate: "possible-duplicate",
    BacklogThresholdCrossed: "backlog-level",
    BacklogUnattended: "backlog-unattended",
    SyphonStalled: "syphon-stalled",
    ClaimMissing: "claim-missing",
    DeadLettered: "dead-lettered",
    ForeignMessages: "foreign-messages",
    BacklogDrained: "drained",
    FactoryClosedEvent: "closed",
    FactoryFaultedEvent: "faulted",
}


class _Calendar:
    """How far the two clocks of the machine are apart.

    They cannot be read at once: two readings differ by microseconds, or by as much as a busy
    machine takes between them. So the first difference is kept until one is seen that this does
    not explain (rule 2).
    """

    def __init__(self) -> None:
        self._kept: tuple[float, float] | None = None
        """The difference, and by how much it may be wrong."""

    def apart_s(self) -> float:
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        seen_s, doubt_s = wall_s - before_s, after_s - before_s
        if self._kept is not None:
            kept_s, kept_doubt_s = self._kept
            if abs(seen_s - kept_s) <= CLOCK_SET_S_MIN + doubt_s + kept_doubt_s:
                return kept_s
        self._kept = seen_s, doubt_s
        return seen_s


_calendar: Final = _Calendar()


def utc_at(monotonic_s: float) -> datetime:
    """The calendar's name for a moment of the monotonic clock."""
    return datetime.fromtimestamp(monotonic_s + _calendar.apart_s(), UTC)


def check_listener(listener: object) -> None:
    """Refuse what cannot be called, and what would have to be awaited: it would never hear
    anything."""
    if not callable(listener):
        raise ConfigurationError(
            f"a listener for events must be a function, got {type_shown(listener)}",
            hint="Give a function of one argument, or read factory.events() in a task",
        )
    if inspect.iscoroutinefunction(listener):
        raise ConfigurationError(
            "a listener for events is called, and nobody awaits it",
            hint="Give a plain function, or read factory.events() in a task",
        )


def level_of(event: Event) -> int:
    """How loudly the log tells it."""
    if isinstance(event, PingRefused):
        # Sends are accepted meanwhile, so that no caller sees an error: the log has to say it.
        return logging.ERROR
    if isinstance(event, _WARNINGS):
        return logging.WARNING
    return logging.DEBUG if isinstance(event, PingSent | PingFailed) else logging.INFO
