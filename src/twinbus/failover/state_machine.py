"""The failover machine of one entity (a queue or a topic of the primary).

Rule 1: everything that can change an entity's health is in this module, and the table is total.
Rule 2: this module reads no clock and does no I/O. Time comes in as ``now_s``; events and the
        pings to send go out as values.

    HEALTHY --send failed--> SUSPECT --failover interval passes--> DIVERTED
    HEALTHY <--any send succeeds-- SUSPECT
    HEALTHY <------------------- ping succeeded ------------------ DIVERTED

    hold() keeps an entity where it is: HELD_ON_PRIMARY or HELD_ON_BACKLOG, until it is marked
    healthy or a failover is forced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from twinbus.failover.events import (
    Diverted,
    EntityHeld,
    Event,
    PingFailed,
    PingPrimary,
    PingRefused,
    PingSent,
    Restored,
    RestoreDelayed,
    Suspected,
    SuspicionCleared,
)


class Health(Enum):
    """Where an entity's sends go, and why. The values are shown to operators."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DIVERTED = "diverted"
    HELD_ON_PRIMARY = "held on the primary"
    HELD_ON_BACKLOG = "held on the backlog"


class Signal(Enum):
    """Everything that can change the health of an entity."""

    SEND_SUCCEEDED = "send succeeded"
    SEND_FAILED = "send failed"
    INTERVAL_PASSED = "failover interval passed"
    PING_SUCCEEDED = "ping succeeded"
    PING_SUCCEEDED_TOO_SOON = "ping succeeded too soon"
    PING_FAILED = "ping failed"
    FORCED = "failover forced"
    MARKED_HEALTHY = "marked healthy"
    HELD = "held"


TRANSITIONS: Final[Mapping[Health, Mapping[Signal, Health]]] = {
    Health.HEALTHY: {
        Signal.SEND_SUCCEEDED: Health.HEALTHY,
        Signal.SEND_FAILED: Health.SUSPECT,
        # The timer of an earlier suspicion that a success has cleared meanwhile.
        Signal.INTERVAL_PASSED: Health.HEALTHY,
        # The answer to a ping that arrives after an operator marked the entity healthy.
        Signal.PING_SUCCEEDED: Health.HEALTHY,
        Signal.PING_SUCCEEDED_TOO_SOON: Health.HEALTHY,
        Signal.PING_FAILED: Health.HEALTHY,
        Signal.FORCED: Health.DIVERTED,
        Signal.MARKED_HEALTHY: Health.HEALTHY,
        Signal.HELD: Health.HELD_ON_PRIMARY,
    },
    Health.SUSPECT: {
        Signal.SEND_SUCCEEDED: Health.HEALTHY,
        # The interval runs from the first failure: more of them do not restart it.
        Signal.SEND_FAILED: Health.SUSPECT,
        Signal.INTERVAL_PASSED: Health.DIVERTED,
        Signal.PING_SUCCEEDED: Health.SUSPECT,
        Signal.PING_SUCCEEDED_TOO_SOON: Health.SUSPECT,
        Signal.PING_FAILED: Health.SUSPECT,
        Signal.FORCED: Health.DIVERTED,
        Signal.MARKED_HEALTHY: Health.HEALTHY,
        Signal.HELD: Health.HELD_ON_PRIMARY,
    },
    Health.DIVERTED: {
        # Only a ping restores an entity: one slow send that succeeds during an outage would
        # otherwise make every sender return to the primary.
        Signal.SEND_SUCCEEDED: Health.DIVERTED,
        Signal.SEND_FAILED: Health.DIVERTED,
        Signal.INTERVAL_PASSED: Health.DIVERTED,
        Signal.PING_SUCCEEDED: Health.HEALTHY,
        # At most one restore in a ping interval: a flapping entity stays on the backlog.
        Signal.PING_SUCCEEDED_TOO_SOON: Health.DIVERTED,
        Signal.PING_FAILED: Health.DIVERTED,
        Signal.FORCED: Health.DIVERTED,
        Signal.MARKED_HEALTHY: Health.HEALTHY,
        Signal.HELD: Health.HELD_ON_BACKLOG,
    },
    Health.HELD_ON_PRIMARY: {
        Signal.SEND_SUCCEEDED: Health.HELD_ON_PRIMARY,
        Signal.SEND_FAILED: Health.HELD_ON_PRIMARY,
        Signal.INTERVAL_PASSED: Health.HELD_ON_PRIMARY,
        Signal.PING_SUCCEEDED: Health.HELD_ON_PRIMARY,
        Signal.PING_SUCCEEDED_TOO_SOON: Health.HELD_ON_PRIMARY,
        Signal.PING_FAILED: Health.HELD_ON_PRIMARY,
        Signal.FORCED: Health.DIVERTED,
        Signal.MARKED_HEALTHY: Health.HEALTHY,
        Signal.HELD: Health.HELD_ON_PRIMARY,
    },
    Health.HELD_ON_BACKLOG: {
        Signal.SEND_SUCCEEDED: Health.HELD_ON_BACKLOG,
        Signal.SEND_FAILED: Health.HELD_ON_BACKLOG,
        Signal.INTERVAL_PASSED: Health.HELD_ON_BACKLOG,
        Signal.PING_SUCCEEDED: Health.HELD_ON_BACKLOG,
        Signal.PING_SUCCEEDED_TOO_SOON: Health.HELD_ON_BACKLOG,
        Signal.PING_FAILED: Health.HELD_ON_BACKLOG,
        Signal.FORCED: Health.DIVERTED,
        Signal.MARKED_HEALTHY: Health.HEALTHY,
        Signal.HELD: Health.HELD_ON_BACKLOG,
    },
}

DIVERTED_STATES: Final = frozenset({Health.DIVERTED, Health.HELD_ON_BACKLOG})

# With a failover interval of 0 one more attempt confirms the first failure, for all sends of the
# entity. It has this long, so that with what the decision costs an entity is diverted within 0.3 s
# of its first error (P25).
CONFIRM_S: Final = 0.25

# A refused ping is reported again after this time: the refusal lasts until an operator acts, and
# the backlog fills meanwhile. Callers get no error that would draw attention to it.
REFUSAL_REPORT_S: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPolicy:
    """The two intervals of P2."""

    failover_interval_s: float = 60.0
    """0: the first failure diverts, unless one more attempt at once succeeds."""
    ping_interval_s: float = 60.0

    @property
    def suspicion_s(self) -> float:
        """How long an entity is suspect before it is diverted."""
        return self.failover_interval_s or CONFIRM_S


class EntityFailover:
    """The health of one entity, for all senders of a factory."""

    def __init__(self, path: str, policy: FailoverPolicy) -> None:
        self.path = path
        self.policy = policy
        self.health = Health.HEALTHY
        self.since_s = 0.0
        """When the health last changed; 0 before that."""
        self.reason = ""
        self.success_count = 0
        """Sends that the primary accepted; shows whether one succeeded in a given time (P22)."""
        self.direct_success = 0
        """The number of the last success that was counted on another thread. Each thread writes
        a number that no other has, so that two at the same time cannot hide each other."""
        self.epoch = 0
        """Counts diversions; an answer to a ping of an earlier one is ignored."""
        self.last_ping_error = ""
        """The error of the last ping of this diversion; empty when it succeeded."""
        self._refusals: dict[str, float] = {}
        """The refusals of this diversion, and when each was last reported (P23)."""
        self._suspect_since_s = 0.0
        self._next_ping_s: float | None = None
        self._is_pinging = False
        self._restored_at_s: float | None = None

    @property
    def is_diverted(self) -> bool:
        return self.health in DIVERTED_STATES

    # -- what happened ------------------------------------------------------------------------

    def send_succeeded(self, now_s: float) -> list[Event]:
        self.success_count += 1
        if self.health is Health.HEALTHY:
            return []  # Nearly every send: nothing changes, nothing is allocated.
        return self._receive(Signal.SEND_SUCCEEDED, now_s, "a send succeeded")

    @property
    def success_mark(self) -> tuple[int, int]:
        """A value that changes with every success."""
        return self.success_count, self.direct_success

    def suspect(self, now_s: float, reason: str) -> list[Event]:
        """The first failure where the interval is 0: the send that failed tries once more, and its
        result decides for all sends (P25)."""
        return self._receive(Signal.SEND_FAILED, now_s, reason)

    @property
    def decision_due_s(self) -> float:
        """When a suspect entity is diverted unless a send succeeds before."""
        return self._suspect_since_s + self.policy.suspicion_s

    def send_failed(self, now_s: float, reason: str) -> list[Event]:
        """A send whose retries are used up failed with an error of the failover class."""
        events = self._receive(Signal.SEND_FAILED, now_s, reason)
        due_s = self._suspect_since_s + self.policy.failover_interval_s
        # With an interval of 0 it is over at once; a longer one may be over before its timer is
        # handled, and this send must be diverted nevertheless (P10).
        if self.health is Health.SUSPECT and now_s >= due_s:
            events += self._receive(Signal.INTERVAL_PASSED, now_s, reason)
        return events

    def ping_answered(
        self, epoch: int, now_s: float, failure: str | None, *, refusal: str = ""
    ) -> list[Event]:
        """The answer to a PingPrimary of that epoch; ``failure`` is None when it succeeded.
        ``refusal`` is set where waiting does not help: ``not found`` or ``unauthorized``."""
        if epoch != self.epoch:
            return []
        self._is_pinging = False
        self.last_ping_error = failure or ""
        if failure is not None:
            events = self._receive(Signal.PING_FAILED, now_s, failure)
            if not self.is_diverted:
                return events
            events.insert(0, PingFailed(self.path, now_s, failure))
            return events + self._refused(now_s, refusal, failure)
        allowed_s = self._restore_allowed_s()
        if now_s >= allowed_s:
            return self._receive(Signal.PING_SUCCEEDED, now_s, "a ping succeeded")
        self._receive(Signal.PING_SUCCEEDED_TOO_SOON, now_s, "")
        if self.health is not Health.DIVERTED:
            return []
        self._next_ping_s = max(self._next_ping_s or now_s, allowed_s)
        return [RestoreDelayed(self.path, now_s, allowed_s)]

    def _refused(self, now_s: float, refusal: str, reason: str) -> list[Event]:
        """The backlog accepts messages for an entity that refuses them: reported, but not with
        every ping (P23)."""
        reported_s = self._refusals.get(refusal, float("-inf"))
        if not refusal or now_s < reported_s + REFUSAL_REPORT_S:
            return []
        self._refusals[refusal] = now_s
        return [PingRefused(self.path, now_s, refusal, reason)]

    def force(self, now_s: float, reason: str = "forced") -> list[Event]:
        """Divert the entity although nothing failed. The first ping waits a whole interval: a
        healthy primary would answer at once and undo the command."""
        events = self._receive(Signal.FORCED, now_s, reason)
        if events:
            self._next_ping_s = now_s + self.policy.ping_interval_s
        return events

    def start_diverted(self, now_s: float, reason: str) -> list[Event]:
        """The primary was unreachable before the first send: begin on the backlog (P17), and ping
        at once."""
        return self._receive(Signal.FORCED, now_s, reason)

    def set_ping_interval(self, interval_s: float, now_s: float) -> None:
        """Use another ping interval from now on, counted from the last ping. A ping that is due
        stays due."""
        earlier_s = self.policy.ping_interval_s
        self.policy = replace(self.policy, ping_interval_s=interval_s)
        if self._next_ping_s is not None and self._next_ping_s > now_s:
            self._next_ping_s = max(now_s, self._next_ping_s - earlier_s + interval_s)

    def mark_healthy(self, now_s: float, reason: str = "marked healthy") -> list[Event]:
        return self._receive(Signal.MARKED_HEALTHY, now_s, reason)

    def hold(self, now_s: float, reason: str = "held") -> list[Event]:
        return self._receive(Signal.HELD, now_s, reason)

    # -- time ---------------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """When to call handle_timer(), or None when nothing is pending."""
        if self.health is Health.SUSPECT:
            return self.decision_due_s
        if self.health is Health.DIVERTED and not self._is_pinging:
            return self._next_ping_s
        return None

    def handle_timer(self, now_s: float) -> list[Event | PingPrimary]:
        """Do what is due: divert, ping."""
        out: list[Event | PingPrimary] = []
        due_s = self.next_timer()
        if due_s is not None and now_s >= due_s and self.health is Health.SUSPECT:
            out += self._receive(Signal.INTERVAL_PASSED, now_s, self.reason)
            due_s = self.next_timer()
        if due_s is not None and now_s >= due_s and self.health is Health.DIVERTED:
            self._is_pinging = True
            self._next_ping_s = now_s + self.policy.ping_interval_s
            out += [PingSent(self.path, now_s), PingPrimary(self.path, self.epoch)]
        return out

    # -- the table ----------------------------------------------------------------------------

    def _receive(self, signal: Signal, now_s: float, reason: str) -> list[Event]:
        before, after = self.health, TRANSITIONS[self.health][signal]
        if before is after:
            return []
        self.health, self.since_s, self.reason = after, now_s, reason
        match after:
            case Health.SUSPECT:
                self._suspect_since_s = now_s
                return [Suspected(self.path, now_s, reason)]
            case Health.DIVERTED:
                return self._divert(before, now_s, reason)
            case Health.HEALTHY:
                return self._restore(before, now_s, reason)
            case Health.HELD_ON_PRIMARY | Health.HELD_ON_BACKLOG:
                return [EntityHeld(self.path, now_s, after is Health.HELD_ON_BACKLOG, reason)]

    def _divert(self, before: Health, now_s: float, reason: str) -> list[Event]:
        self.epoch += 1
        self._is_pinging = False
        self.last_ping_error = ""
        self._refusals.clear()
        self._next_ping_s = now_s
        return [Diverted(self.path, now_s, reason)]

    def _restore(self, before: Health, now_s: float, reason: str) -> list[Event]:
        if before not in DIVERTED_STATES:
            return [SuspicionCleared(self.path, now_s, reason)]
        self._restored_at_s = now_s
        self.last_ping_error = ""
        self._next_ping_s = None
        return [Restored(self.path, now_s, reason)]

    def _restore_allowed_s(self) -> float:
        if self._restored_at_s is None:
            return float("-inf")
        return self._restored_at_s + self.policy.ping_interval_s
