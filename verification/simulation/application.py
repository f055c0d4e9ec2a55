"""A factory of the application, with the real core inside: sends, pings, commands, close.

What ``twinbus.pairing`` does over sockets and tasks is done here over simulated requests and
events: ask the core for a step, carry it out, tell the core what came of it.

Rule 1: nothing is decided here. Which queue, which moment, which error: the core says it.
Rule 2: every step and every event goes past the watch before anything else is done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinbus.errors import FactoryFaulted, ServerBusy, ServiceError
from twinbus.failover.backlog_rotation import BacklogRotation, QueueAffinity
from twinbus.failover.error_classifier import Classifier
from twinbus.failover.events import Diverted, EntityHeld, PingPrimary, Restored, SuspicionCleared
from twinbus.failover.pair_lifecycle import (
    CloseFactory,
    Effect,
    FaultFactory,
    PairLifecycle,
    Side,
    StopPings,
)
from twinbus.failover.send_decision import (
    CredentialHistory,
    SendDecision,
    SendPolicy,
)
from twinbus.failover.state_machine import Health
from twinbus.mover.planning.chunk_ledger import ChunkLedger
from verification.simulation.coverage import WatchedFailover
from verification.simulation.mover import Mover
from verification.simulation.network import Request
from verification.simulation.plan import Letter, Plan
from verification.simulation.sends import Run
from verification.simulation.services import Backlog, Home, Mail
from verification.simulation.watch import FactoryWatch, Watch
from verification.simulation.world import Process, World

PING_TIMEOUT_S = 6.0
# Whoever waits for an entity's health is woken a moment after it changed, in no certain order.
WAKE_S = 0.02
# A library may need a moment to give up what it waits for.
INTERRUPT_S = 0.1
CLOSE_S_MAX = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the core is made of; a planted bug is one part that is replaced."""

    failover: type[WatchedFailover] = WatchedFailover
    rotation: type[BacklogRotation] = BacklogRotation
    send: type[SendDecision] = SendDecision
    classifier: Classifier = field(default_factory=Classifier)
    lifecycle: type[PairLifecycle] = PairLifecycle
    interrupts: bool = True
    """Whether a diversion reaches the sends that wait for the primary."""
    ledger: type[ChunkLedger] = ChunkLedger
    mover: type[Mover] = Mover


class Namespaces:
    """Both of them."""

    __slots__ = ("backlogs", "homes")

    def __init__(self, plan: Plan) -> None:
        self.homes = {
            path: Home(path, detects_duplicates=plan.detects_duplicates) for path in plan.paths
        }
        self.backlogs = {queue: Backlog(queue) for queue in plan.queues}


class Factory(Process):
    """One process that sends through a pair."""

    __slots__ = (
        "_armed_s",
        "_is_pinging_stopped",
        "_parts",
        "_plan",
        "ended",
        "failovers",
        "is_open",
        "lifecycle",
        "namespaces",
        "rotation",
        "rules",
        "runs",
        "seats",
        "watch",
        "world",
    )

    def __init__(
        self,
        world: World,
        plan: Plan,
        parts: Parts,
        namespaces: Namespaces,
        watch: Watch,
        name: str,
    ) -> None:
        super().__init__(name)
        self.world, self._plan, self._parts, self.namespaces = world, plan, parts, namespaces
        self.failovers = {path: parts.failover(path, plan.policy) for path in plan.paths}
        self.rotation = parts.rotation(plan.queues)
        self.rules = SendPolicy(
            rotation=self.rotation,
            credential=CredentialHistory(),
            retry=plan.retry,
            classifier=parts.classifier,
        )
        self.lifecycle = parts.lifecycle(hosts_syphon=plan.hosts_syphon)
        self.seats = [QueueAffinity() for _ in range(plan.senders)]
        self.runs: dict[Run, None] = {}
        self.watch: FactoryWatch = watch.of_factory(self)
        self.is_open = True
        self.ended: set[Side] = set()
        self._is_pinging_stopped = False
        self._armed_s: dict[str, float | None] = dict.fromkeys(plan.paths)

    # -- sends --------------------------------------------------------------------------------

    def submit(self, mail: Mail, letter: Letter) -> None:
        if self.is_open:
            mail.is_submitted = True
            run = Run(self, mail, letter, self._parts.send)
            self.runs[run] = None
            run.start()

    def observe(self, path: str, events: Sequence[Any], cause: str, run: Run | None = None) -> None:
        """Show events to the watch, wake whoever waits for a change, set the clock."""
        if not events:
            return
        is_changed = False
        for event in events:
            self.world.note("{} {}: {}", self.name, cause, event)
            self.watch.told(event, cause, run)
            is_changed = is_changed or type(event) in (
                SuspicionCleared,
                Diverted,
                Restored,
                EntityHeld,
            )
            if type(event) is Diverted:
                self._interrupt(path)
        if is_changed:
            for waiting in self.runs:
                if waiting.is_waiting and waiting.mail.path == path:
                    after_s = self.world.core_chance.random() * WAKE_S
                    self.world.at(self.world.now_s + after_s, self, waiting.go, waiting.token)
        self.arm(path)

    def _interrupt(self, path: str) -> None:
        """Who waits for the primary goes on to the backlog, a moment later (P22)."""
        for run in self.runs:
            if run.waits_for_home and run.mail.path == path:
                at_s = self.world.now_s + self.world.core_chance.random() * INTERRUPT_S
                if self._parts.interrupts:
                    self.world.at(at_s, self, run.interrupt, run.token, run.request)
                self.watch.must_wake(run, at_s)

    # -- time and pings -----------------------------------------------------------------------

    def arm(self, path: str) -> None:
        """Be called when the machine wants to be. Clocks that were set before ring all the same."""
        failover = self.failovers[path]
        due_s = failover.next_timer()
        if due_s is not None and due_s != self._armed_s[path]:
            self._armed_s[path] = due_s
            was_suspect = failover.health is Health.SUSPECT
            self.world.at(max(due_s, self.world.now_s), self, self._ring, path, was_suspect)

    def _ring(self, path: str, was_suspect: bool) -> None:
        if self._is_pinging_stopped:
            return
        failover = self.failovers[path]
        self._armed_s[path] = None
        effects = failover.overdue(self.world.now_s, was_suspect=was_suspect)
        self.observe(path, [each for each in effects if type(each) is not PingPrimary], "timer")
        self.watch.rang(path)
        for effect in effects:
            if type(effect) is PingPrimary:
                self._ping(path, effect.epoch)
        self.arm(path)

    def _ping(self, path: str, epoch: int) -> None:
        self.watch.pinged(path)
        Request(
            self.world,
            self,
            self.namespaces.homes[path],
            _swallow,
            self._ping_answered,
            timeout_s=PING_TIMEOUT_S,
            facts=(path, epoch, self.watch.shadows[path].diversions),
            hears_late=True,
        )

    def _ping_answered(self, request: Request) -> None:
        path, epoch, diversion = request.facts
        failure = None if request.error is None else str(request.error)
        self.world.note("{} ping {}.{}: {}", self.name, path, epoch, failure or "accepted")
        self.watch.ping_answered(path, diversion, request)
        if isinstance(request.error, ServerBusy):
            self.world.seen.add("a ping was throttled")
        events = self.failovers[path].ping_answered(epoch, self.world.now_s, failure)
        self.observe(path, events, "ping")
        self.arm(path)

    # -- commands, close, end -----------------------------------------------------------------

    def command(self, what: str, path: str) -> None:
        failover, now_s = self.failovers[path], self.world.now_s
        call: Callable[[float], list[Any]] = {
            "force": failover.force,
            "start": lambda now_s: failover.start_diverted(now_s, "out of reach"),
            "mark": failover.mark_healthy,
            "hold": failover.hold,
        }[what]
        self.observe(path, call(now_s), what)
        if what == "start":
            self.watch.started_away(path)

    def cancel_one(self) -> None:
        """A caller that waits for a send goes away."""
        if self.runs:
            runs = list(self.runs)
            runs[self.world.core_chance.randrange(len(runs))].cancel()

    def end(self, how: str) -> None:
        """``close primary``, ``fault secondary`` and so on."""
        verb, _, name = how.partition(" ")
        side, now_s = Side(name), self.world.now_s
        self.world.note("{} {}", self.name, how)
        self.watch.ends(verb)
        self.ended.add(side)
        if side is Side.PRIMARY:
            self.is_open = False
        effects = (
            self.lifecycle.closed(side, now_s)
            if verb == "close"
            else self.lifecycle.faulted(side, now_s, "it broke")
        )
        if verb == "fault" and side is Side.PRIMARY:
            self._end_runs()
        self._obey(effects, "at once")

    def _obey(self, effects: list[Effect], when: str) -> None:
        now_s = self.world.now_s
        for effect in effects:
            if isinstance(effect, StopPings):
                self._is_pinging_stopped = True
                self.watch.pings_stopped()
            elif isinstance(effect, CloseFactory):
                takes_s = self.world.core_chance.random() * CLOSE_S_MAX
                self.world.at(now_s + takes_s, self, self._closed, effect.side)
            elif isinstance(effect, FaultFactory):
                self.world.seen.add(f"a partner was faulted {when}")
                self.ended.add(effect.side)
                self.is_open = self.is_open and effect.side is not Side.PRIMARY
                if effect.side is Side.PRIMARY:
                    self._end_runs()
                self._obey(self.lifecycle.faulted(effect.side, now_s, effect.reason), when)
        if (due_s := self.lifecycle.next_timer()) is not None:
            self.world.at(due_s, self, self._window_over)

    def _closed(self, side: Side) -> None:
        if side not in self.ended:
            self.ended.add(side)
            self._obey(self.lifecycle.closed(side, self.world.now_s), "at once")

    def _window_over(self) -> None:
        self._obey(self.lifecycle.handle_timer(self.world.now_s), "after the window")

    def _end_runs(self) -> None:
        for run in list(self.runs):
            run.cancel(FactoryFaulted("the factory has faulted"))

    def kill(self) -> None:
        if self.runs:
            self.world.seen.add("a process was killed with sends under way")
        for run in list(self.runs):
            run.abandon()
        self.is_alive = False


def _swallow(_request: Request) -> ServiceError | None:
    return None  # A ping is accepted and never stored (M7).
