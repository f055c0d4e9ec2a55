"""What the schedules have visited: state and signal pairs, and what has to happen sometimes.

A simulation in which nothing ever went wrong proves nothing. A run is complete when every pair of
the failover table was visited and everything in SOMETIMES happened at least once.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from twinbus.failover.events import Event, PingPrimary
from twinbus.failover.state_machine import TRANSITIONS, EntityFailover, Health, Signal

PAIRS: Final = tuple((health, signal) for health, row in TRANSITIONS.items() for signal in row)

SOMETIMES: Final = (
    "a send succeeded at the primary after a retry",
    "a suspicion was cleared",
    "an ambiguous send was rerouted to the backlog",
    "the send that tripped the failover reached the backlog",
    "a send succeeded at the primary while its entity was diverted",
    "a send was interrupted by a diversion",
    "a send waited for another one to confirm its failure",
    "a caller that gave up made an entity suspect",
    "a throttled send waited and succeeded",
    "a throttled send gave up",
    "a throttled backlog queue was passed over",
    "a ping was throttled",
    "a backlog queue was withdrawn",
    "a probe of a withdrawn queue failed",
    "a probe of a withdrawn queue succeeded",
    "a probe was cancelled",
    "every backlog queue was withdrawn",
    "a message was too large for every queue",
    "a queue refused what another took",
    "a send waited for a backlog queue to come back",
    "a send was restored while it waited",
    "a restore was delayed by the flap limit",
    "a ping of an earlier diversion was answered",
    "a ping was answered twice or late",
    "a lapsed key diverted an entity",
    "a key that never worked was the caller's error",
    "a caller went away in the middle of a send",
    "a process slept past the deadline of a send",
    "a process was killed with sends under way",
    "a process started during an outage",
    "two factories disagreed about an entity",
    "a partner was faulted after the window",
    "a partner was faulted at once",
    "duplicate detection removed a copy",
    "a message arrived twice, announced",
    "a mover was killed between acceptance and completion",
    "a mover brought back what was set aside",
    "a mover found poison",
    "a mover found a message without a destination",
    "a destination was lost",
    "a mover's receipt said moved",
    "a mover's receipt said deferred",
    "a mover's receipt said ambiguous",
    "a mover's receipt said lock-lost",
    "a mover's receipt said released",
    "a mover's receipt said dead-lettered",
)


class Visits:
    """Counts over many schedules."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[Health, Signal]] = Counter()
        self.happened: Counter[str] = Counter()

    def add(self, other: Visits) -> None:
        self.pairs.update(other.pairs)
        self.happened.update(other.happened)

    @property
    def missing(self) -> list[str]:
        """What no schedule has visited."""
        pairs = [f"{h.value} x {s.value}" for h, s in PAIRS if not self.pairs[h, s]]
        return pairs + [what for what in SOMETIMES if not self.happened[what]]

    def matrix(self) -> str:
        """How often each signal met each state, as a table."""
        width = max(len(signal.value) for signal in Signal)
        lines = [" " * width + "".join(f"{health.value:>21}" for health in Health)]
        for signal in Signal:
            cells = "".join(f"{self.pairs[health, signal]:>21,}" for health in Health)
            lines.append(f"{signal.value:<{width}}{cells}")
        return "\n".join(lines)

    def sometimes(self) -> str:
        return "\n".join(f"{self.happened[what]:>12,}  {what}" for what in SOMETIMES)


CURRENT = Visits()
"""Where the machines of this process are counted; a batch of seeds begins with an empty one."""


class WatchedFailover(EntityFailover):
    """The real machine, and a count of what it was told in which state."""

    def send_succeeded(self, now_s: float) -> list[Event]:
        if self.health is Health.HEALTHY:
            CURRENT.pairs[Health.HEALTHY, Signal.SEND_SUCCEEDED] += 1
        return super().send_succeeded(now_s)

    def overdue(self, now_s: float, *, was_suspect: bool) -> list[Event | PingPrimary]:
        """A timer rings, perhaps one that was overtaken."""
        if was_suspect and self.health is not Health.SUSPECT:
            CURRENT.pairs[self.health, Signal.INTERVAL_PASSED] += 1
        return self.handle_timer(now_s)

    def _receive(self, signal: Signal, now_s: float, reason: str) -> list[Event]:
        CURRENT.pairs[self.health, signal] += 1
        return super()._receive(signal, now_s, reason)
