"""One send of the application, from the caller's call to its answer, with the real Send inside.

Rule 1: a step is carried out as the core says it; its answer goes to the watch and then to the
        core, once.
Rule 2: what a caller that went away, or a process that died, had under way is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from twinbus.errors import MessageRefused, MessageTooLarge, SendInterrupted, ServiceError
from twinbus.failover.events import Event
from twinbus.failover.send_decision import (
    Deadline,
    SendDecision,
    SendFailed,
    SendSucceeded,
    SendToBacklog,
    SendToPrimary,
    Step,
    Wait,
    cancelled_attempt,
    first_attempt_s,
)
from verification.simulation.network import Request
from verification.simulation.plan import Letter
from verification.simulation.services import Backlog, Home, Mail, Service

if TYPE_CHECKING:
    from verification.simulation.application import Factory

# Callers seldom go away just while theirs is the one send that tries a withdrawn queue.
LEAVES_SHARE = 0.1
LEAVES_S = 0.02


class Run:
    """One send, from the caller's call to its answer."""

    __slots__ = (
        "_world",
        "affinity",
        "asked",
        "asked_home_s",
        "callers_error",
        "deadline",
        "factory",
        "home_tries",
        "is_first",
        "is_probe",
        "is_silence",
        "is_waiting",
        "last_error",
        "last_home_error",
        "left_s",
        "mail",
        "outages",
        "quiet_until_s",
        "refused_by",
        "request",
        "returns",
        "send",
        "sent_away",
        "success_mark",
        "token",
        "tripped",
        "was_forced",
        "was_throttled",
        "was_unclear",
    )

    def __init__(
        self, factory: Factory, mail: Mail, letter: Letter, send: type[SendDecision]
    ) -> None:
        self.factory, self.mail, self._world = factory, mail, factory.world
        self.deadline = Deadline.after(self._world.now_s, letter.timeout_s)
        self.affinity = letter.sender
        self.send = send(
            factory.failovers[mail.path],
            factory.rules,
            factory.seats[letter.sender],
            self.deadline,
            self._world.core_chance,
            (mail.message_id,),
        )
        self.refused_by: list[str] = []
        """The backlog queues that have refused the message."""
        self.request: Request | None = None
        self.token = 0
        """Steps taken; a wake-up call for an earlier one is stale."""
        self.is_waiting = False
        self.is_first = False
        """Whether its first attempt is under way, which no Send has decided."""
        self.success_mark = (0, 0)
        # The rest is the watch's notebook about this send.
        self.asked: set[str] = set()
        self.asked_home_s = 0.0
        """When the primary was asked last."""
        self.home_tries = self.outages = self.returns = 0
        self.is_probe = self.is_silence = self.sent_away = self.tripped = False
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
        self.is_first = True
        self.success_mark = self.factory.failovers[self.mail.path].success_mark
        self._ask(home, _store_home, timeout_s, self._first_answered)

    def _first_answered(self, request: Request) -> None:
        self.is_first = False
        if request.error is not None:
            self._answered(request)
            return
        self.request = None
        self.factory.watch.answered(self, request)
        self.factory.rules.credential.has_succeeded = True
        events = self.factory.failovers[self.mail.path].send_succeeded(self._world.now_s)
        self.factory.observe(self.mail.path, events, "send", self)
        self._over()
        self.factory.watch.done(self, self.mail.path)

    def go(self, token: int) -> None:
        """Ask for the next step and begin it."""
        if token != self.token or self.mail.is_over:
            return
        self.token += 1
        world = self._world
        was_waiting, self.is_waiting = self.is_waiting, False
        step, events = self.send.step(world.now_s)
        self.factory.observe(self.mail.path, events, "send", self)
        if world.trace is not None:
            world.note("{} {} -> {}", self.factory.name, self.mail.message_id, step)
        self._carry_out(step, was_waiting)

    def _carry_out(self, step: Step, was_waiting: bool) -> None:
        watch, world, namespaces = self.factory.watch, self._world, self.factory.namespaces
        match step:
            case SendToPrimary():
                watch.to_primary(self, step.timeout_s, was_waiting)
                self._ask(namespaces.homes[self.mail.path], _store_home, step.timeout_s)
            case SendToBacklog():
                watch.to_backlog(self, step.queue, step.timeout_s)
                self._ask(namespaces.backlogs[step.queue], _store_away, step.timeout_s)
                if self.is_probe and world.network_chance.random() < LEAVES_SHARE:
                    world.at(world.now_s + LEAVES_S, self.factory, self.leave, self.token)
            case Wait():
                watch.waits(self, step.until_s, was_waiting)
                self.is_waiting = True
                world.at(step.until_s, self.factory, self.go, self.token)
            case SendSucceeded():
                self._over()
                watch.done(self, step.where)
            case SendFailed():
                self._over()
                watch.failed(self, step.error)
            case _:
                assert_never(step)

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

    @property
    def waits_for_home(self) -> bool:
        return self.request is not None and self.request.service.name == self.mail.path

    def interrupt(self, token: int, request: Request | None) -> None:
        """Its entity was diverted while it waited for the primary (P22)."""
        if token != self.token or request is None or self.request is not request:
            return
        world = self._world
        world.note("{} {} is interrupted", self.factory.name, self.mail.message_id)
        world.seen.add("a send was interrupted by a diversion")
        request.give_up()
        request.error = SendInterrupted(path=self.mail.path, was_sent=True)
        self.is_first = False
        self._answered(request)

    def leave(self, token: int) -> None:
        """The caller goes away in the middle of just this step."""
        if token == self.token and not self.mail.is_over:
            self.cancel()

    def cancel(self, error: BaseException | None = None) -> None:
        """The caller goes away, or is sent away with an error."""
        self._world.note("{} {} is cancelled", self.factory.name, self.mail.message_id)
        path, watch, now_s = self.mail.path, self.factory.watch, self._world.now_s
        watch.cancelled(self, is_callers_own=error is None)
        if error is not None:
            events: list[Event] = []  # The end of a factory says nothing about its entities.
        elif self.is_first:
            events = cancelled_attempt(
                self.factory.failovers[path],
                began_s=self.asked_home_s,
                success_mark=self.success_mark,
                now_s=now_s,
            )
        else:
            events = self.send.cancelled(now_s)
        self.factory.observe(path, events, "send", self)
        watch.silence_counted(self)
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
    if backlog.refuses:
        return MessageRefused(f"{backlog.name} requires sessions")
    run.mail.sender_copies += 1
    backlog.store(run.mail, run.factory.world.now_s)
    return None
