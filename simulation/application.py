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

from simulation.coverage import WatchedFailover
from simulation.mover import Mover
from simulation.network import Request
from simulation.plan import Letter, Plan
from simulation.services import Backlog, Home, Mail, Service
from simulation.watch import FactoryWatch, Watch
from simulation.world import Process, World
from twinbus.core.chunk_ledger import ChunkLedger
from twinbus.core.classifier import Classifier
from twinbus.core.deadline import Deadline
from twinbus.core.events import Diverted, Held, PingPrimary, Restored
from twinbus.core.failover import Health
from twinbus.core.lifecycle import (
    CloseFactory,
    Effect,
    FaultFactory,
    PairLifecycle,
    Side,
    Standing,
    StopPings,
)
from twinbus.core.rotation import BacklogRotation, Seat
from twinbus.core.sending import (
    CredentialMemory,
    Done,
    Fail,
    Send,
    SendRules,
    ToBacklog,
    ToPrimary,
    first_attempt_s,
)
from twinbus.service_errors import FactoryFaulted, MessageTooLarge, ServerBusy, ServiceError

PING_TIMEOUT_S = 6.0
# Whoever waits for an entity's health is woken a moment after it changed, in no certain order.
WAKE_S = 0.02
CLOSE_S_MAX = 9.0
# Callers seldom go away just while theirs is the one send that tries a withdrawn queue.
LEAVES_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the core is made of; a planted bug is one part that is replaced."""

    failover: type[WatchedFailover] = WatchedFailover
    rotation: type[BacklogRotation] = BacklogRotation
    send: type[Send] = Send
    classifier: Classifier = field(default_factory=Classifier)
    lifecycle: type[PairLifecycle] = PairLifecycle
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
        self.rules = SendRules(
            rotation=self.rotation,
            credential=CredentialMemory(),
            retry=plan.retry,
            classifier=parts.classifier,
        )
        self.lifecycle = parts.lifecycle(hosts_syphon=plan.hosts_syphon)
        self.seats = [Seat() for _ in range(plan.senders)]
        self.runs: dict[Run, None] = {}
        self.watch: FactoryWatch = watch.of_factory(self)
        self.is_open = True
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
            is_changed = is_changed or type(event) in (Diverted, Restored, Held)
        if is_changed:
            for waiting in self.runs:
                if waiting.is_waiting and waiting.mail.path == path:
                    after_s = self.world.core_chance.random() * WAKE_S
                    self.world.at(self.world.now_s + after_s, self, waiting.go, waiting.token)
        self.arm(path)

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
            "mark": failover.mark_healthy,
            "hold": failover.hold,
        }[what]
        self.observe(path, call(now_s), what)

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
                self.is_open = self.is_open and effect.side is not Side.PRIMARY
                if effect.side is Side.PRIMARY:
                    self._end_runs()
                self._obey(self.lifecycle.faulted(effect.side, now_s, effect.reason), when)
        if (due_s := self.lifecycle.next_timer()) is not None:
            self.world.at(due_s, self, self._window_over)

    def _closed(self, side: Side) -> None:
        if self.lifecycle.standings[side] is Standing.OPEN:
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


class Run:
    """One send, from the caller's call to its answer."""

    __slots__ = (
        "_world",
        "asked",
        "callers_error",
        "deadline",
        "factory",
        "home_tries",
        "is_probe",
        "is_waiting",
        "last_error",
        "last_home_error",
        "left_s",
        "mail",
        "outages",
        "quiet_until_s",
        "request",
        "returns",
        "seat",
        "send",
        "sent_away",
        "token",
        "tripped",
        "was_forced",
        "was_throttled",
        "was_unclear",
    )

    def __init__(self, factory: Factory, mail: Mail, letter: Letter, send: type[Send]) -> None:
        self.factory, self.mail, self._world = factory, mail, factory.world
        self.deadline = Deadline.after(self._world.now_s, letter.timeout_s)
        self.seat = letter.sender
        self.send = send(
            factory.failovers[mail.path],
            factory.rules,
            factory.seats[letter.sender],
            self.deadline,
            self._world.core_chance,
            (mail.message_id,),
        )
        self.request: Request | None = None
        self.token = 0
        """Steps taken; a wake-up call for an earlier one is stale."""
        self.is_waiting = False
        # The rest is the watch's notebook about this send.
        self.asked: set[str] = set()
        self.home_tries = self.outages = self.returns = 0
        self.is_probe = self.sent_away = self.tripped = False
        self.was_forced = self.was_throttled = self.was_unclear = False
        self.quiet_until_s = 0.0
        self.left_s = 4 * letter.timeout_s
        """The time that was left when it came back from the backlog."""
        self.last_error: ServiceError | None = None
        self.last_home_error: ServiceError | None = None
        self.callers_error: ServiceError | None = None
        """What the primary answered and the caller is to be told."""

    def start(self) -> None:
        """The first attempt at an entity that is well needs no Send to decide about it."""
        timeout_s = first_attempt_s(self.factory.failovers[self.mail.path], self.deadline.timeout_s)
        if timeout_s is None:
            self.go(0)
            return
        self.factory.watch.to_primary(self, timeout_s, False)
        home = self.factory.namespaces.homes[self.mail.path]
        self._ask(home, _store_home, timeout_s, self._first_answered)

    def _first_answered(self, request: Request) -> None:
        if request.error is not None:
            self._answered(request)
            return
        self.request = None
        self.factory.watch.answered(self, request)
        self.factory.rules.credential.has_worked = True
        events = self.factory.failovers[self.mail.path].send_succeeded(self._world.now_s)
        self.factory.observe(self.mail.path, events, "send", self)
        self._over()
        self.factory.watch.done(self, self.mail.path)

    def go(self, token: int) -> None:
        """Ask for the next step and begin it."""
        if token != self.token or self.mail.is_over:
            return
        self.token += 1
        watch, world = self.factory.watch, self._world
        was_waiting, self.is_waiting = self.is_waiting, False
        step, events = self.send.step(world.now_s)
        self.factory.observe(self.mail.path, events, "send", self)
        kind = type(step)
        if world.trace is not None:
            world.note("{} {} -> {}", self.factory.name, self.mail.message_id, step)
        if kind is ToPrimary:
            watch.to_primary(self, step.timeout_s, was_waiting)
            self._ask(self.factory.namespaces.homes[self.mail.path], _store_home, step.timeout_s)
        elif kind is ToBacklog:
            watch.to_backlog(self, step.queue, step.timeout_s)
            self._ask(self.factory.namespaces.backlogs[step.queue], _store_away, step.timeout_s)
            if self.is_probe and world.network_chance.random() < LEAVES_SHARE:
                world.at(world.now_s + WAKE_S, self.factory, self.leave, self.token)
        elif kind is Done:
            self._over()
            watch.done(self, step.where)
        elif kind is Fail:
            self._over()
            watch.failed(self, step.error)
        else:
            watch.waits(self, step.until_s, was_waiting)
            self.is_waiting = True
            world.at(step.until_s, self.factory, self.go, self.token)

    def _ask(
        self,
        service: Service,
        act: Callable[[Request], ServiceError | None],
        timeout_s: float,
        reply: Callable[[Request], None] | None = None,
    ) -> None:
        self.request = Request(
            self._world,
            self.factory,
            service,
            act,
            reply or self._answered,
            timeout_s=timeout_s,
            facts=self,
        )

    def _answered(self, request: Request) -> None:
        self.request = None
        if self._world.trace is not None:
            answer = "accepted" if request.error is None else repr(request.error)
            self._world.note(
                "{} {} <- {}: {}",
                self.factory.name,
                self.mail.message_id,
                request.service.name,
                answer,
            )
        self.factory.watch.answered(self, request)
        events = self.send.answered(self._world.now_s, request.error)
        self.factory.observe(self.mail.path, events, "send", self)
        self.go(self.token)

    def leave(self, token: int) -> None:
        """The caller goes away in the middle of just this step."""
        if token == self.token and not self.mail.is_over:
            self.cancel()

    def cancel(self, error: BaseException | None = None) -> None:
        """The caller goes away, or is sent away with an error."""
        self._world.note("{} {} is cancelled", self.factory.name, self.mail.message_id)
        self.factory.watch.cancelled(self)
        self.send.cancelled()
        self.abandon()
        self.mail.error = error

    def abandon(self) -> None:
        """Nobody hears of this send again."""
        self.mail.was_cut_off = True
        if self.request is not None:
            self.request.give_up()
            self.mail.unclear += 1
            self.request = None
        self._over()

    def _over(self) -> None:
        self.mail.is_over = True
        self.is_waiting = False
        self.factory.runs.pop(self, None)


def _store_home(request: Request) -> ServiceError | None:
    run: Run = request.facts
    home = request.service
    assert isinstance(home, Home)
    refusal = home.refusal(run.mail)
    if refusal is None:
        run.mail.sender_copies += 1
        if not home.store(run.mail):
            run.factory.world.seen.add("duplicate detection removed a copy")
    return refusal


def _store_away(request: Request) -> ServiceError | None:
    run: Run = request.facts
    backlog = request.service
    assert isinstance(backlog, Backlog)
    if run.mail.is_too_large:
        return MessageTooLarge(f"{run.mail.message_id} is too large")
    run.mail.sender_copies += 1
    backlog.store(run.mail, run.factory.world.now_s)
    return None
