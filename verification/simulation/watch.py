"""The checks that are made while it happens: one notebook for each factory and each entity.

    S1 ack is durable           S5 home means home        S9  liveness (at the end)
    S2 diverted means away      S6 shared withdrawal      S10 no storm
    S3 interval and class       S7 pings                  F2  throttling    F6  deadline
    S4 independence             S8 close and fault        P10 reserve       P11 flap limit

Rule 1: a check knows what the services did and what the core said, and compares the two. It keeps
        its own state and never reads the core's.
Rule 2: a process that slept is excused for what it could not do in time, and for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import (
    AuthenticationFailed,
    BacklogExhausted,
    OperationTimeout,
    SendInterrupted,
    ServerBusy,
    ServiceError,
    TwinbusError,
)
from twinbus.failover.events import (
    BacklogQueueReinstated,
    BacklogQueueWithdrawn,
    Diverted,
    EntityHeld,
    PingSent,
    PossibleDuplicate,
    Restored,
    RestoreDelayed,
    Suspected,
    SuspicionCleared,
)
from verification.simulation.network import Request
from verification.simulation.plan import Plan
from verification.simulation.services import Mail
from verification.simulation.shadow import (
    CLOSE_WINDOW_S,
    CONFIRM_S_MAX,
    EPSILON_S,
    MESSAGE_IS_BAD,
    OUTAGE,
    PROBE_PAUSE_S_MIN,
    QUEUE_IS_BAD,
    SILENCE_S,
    THROTTLE_S,
    Shadow,
)
from verification.simulation.world import Broken, World

if TYPE_CHECKING:
    from verification.simulation.application import Factory
    from verification.simulation.sends import Run


class Watch:
    """The checks of one schedule."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.factories: list[FactoryWatch] = []

    def of_factory(self, factory: Factory) -> FactoryWatch:
        watch = FactoryWatch(self.world, self.plan, factory)
        self.factories.append(watch)
        return watch

    def disagreement(self, path: str) -> None:
        alive = [each.shadows[path].is_away for each in self.factories if each.factory.is_alive]
        if True in alive and False in alive:
            self.world.seen.add("two factories disagreed about an entity")


class FactoryWatch:
    """The checks of one factory."""

    __slots__ = (
        "_busy_until_s",
        "_ended_s",
        "_key_worked",
        "_no_pings",
        "_plan",
        "_probing",
        "_seats",
        "_world",
        "factory",
        "shadows",
        "withdrawn_s",
    )

    def __init__(self, world: World, plan: Plan, factory: Factory) -> None:
        self._world, self._plan, self.factory = world, plan, factory
        self.shadows = {path: Shadow() for path in plan.paths}
        self.withdrawn_s: dict[str, float] = {}
        self._busy_until_s: dict[str, float] = {}
        self._probing: dict[str, Run] = {}
        self._seats: dict[int, str] = {}
        self._key_worked = False
        self._no_pings = False
        self._ended_s: float | None = None

    def _broken(self, check: str, sentence: str) -> Broken:
        return self._world.broken(check, f"{self.factory.name}: {sentence}")

    # -- steps of a send ----------------------------------------------------------------------

    def to_primary(self, run: Run, timeout_s: float, was_waiting: bool) -> None:
        now_s, shadow = self._world.now_s, self.shadows[run.mail.path]
        if shadow.is_away:
            raise self._broken("S2 diverted means away", f"{run.mail.message_id} to the primary")
        if run.mail.acked_at is not None:
            raise self._broken("S1 ack is durable", "sent again after it was acknowledged")
        if now_s < run.quiet_until_s - EPSILON_S:
            raise self._broken("F2 throttling", "sent again before the 10 s were over")
        self._check_time(run, timeout_s)
        self._check_reserve(run, shadow, timeout_s)
        self._free_refused(run)
        run.home_tries += 1
        run.asked_home_s = now_s
        if run.sent_away:
            run.returns += 1
            run.sent_away = False
            if was_waiting:
                self._world.seen.add("a send was restored while it waited")
        retries = self._plan.retry.retry_total
        if self._plan.policy.failover_interval_s <= 0:
            retries = min(1, retries)
        if run.outages > retries + run.returns:
            raise self._broken("S10 no storm", f"retry {run.outages} of {retries}")

    def _check_time(self, run: Run, timeout_s: float) -> None:
        if not 0 < timeout_s <= run.deadline.end_s - self._world.now_s + EPSILON_S:
            raise self._broken("F6 deadline", f"an attempt of {timeout_s:.3f} s outlives its send")

    def _check_reserve(self, run: Run, shadow: Shadow, timeout_s: float) -> None:
        """P10: what this attempt could trip must leave the backlog its share."""
        whole_s = run.deadline.timeout_s
        if run.sent_away:  # It came back from the backlog: what was left is split again.
            run.left_s = run.deadline.end_s - self._world.now_s
        interval_s = self._plan.policy.failover_interval_s
        can_trip = shadow.suspect_s is not None or interval_s < min(whole_s, run.left_s)
        if shadow.is_held or not can_trip or run.was_throttled:
            return
        share_s = min(max(whole_s / 4, 1.0), whole_s / 2, run.left_s / 4)
        if self._world.now_s + timeout_s > run.deadline.end_s - share_s + EPSILON_S:
            raise self._broken("P10 reserve", f"{timeout_s:.3f} s leave less than {share_s:.3f} s")

    def to_backlog(self, run: Run, queue: str, timeout_s: float) -> None:
        now_s, shadow = self._world.now_s, self.shadows[run.mail.path]
        if not shadow.is_away:
            raise self._broken("S5 home means home", f"{run.mail.message_id} to {queue}")
        if run.mail.acked_at is not None:
            raise self._broken("S1 ack is durable", "sent again after it was acknowledged")
        self._check_time(run, timeout_s)
        run.is_probe = queue in self.withdrawn_s
        if run.is_probe:
            self._check_probe(run, queue, now_s)
        elif now_s < self._busy_until_s.get(queue, 0.0):
            raise self._broken("F2 throttling", f"{queue} was asked before its 10 s were over")
        elif not run.refused_by:
            self._check_seat(run, queue, now_s)
        if len(run.refused_by) > 1 or queue in run.refused_by:
            raise self._broken("P20 one question", f"{run.mail.message_id} to {queue}, too")
        run.sent_away = True
        run.last_home_error = None
        run.asked.add(queue)

    def _check_probe(self, run: Run, queue: str, now_s: float) -> None:
        if now_s < self.withdrawn_s[queue] + PROBE_PAUSE_S_MIN - EPSILON_S:
            raise self._broken("S6 shared withdrawal", f"{queue} was withdrawn and is used")
        if queue in self._probing:
            raise self._broken("S6 shared withdrawal", f"{queue} is half-open for two at once")
        self._probing[queue] = run

    def _check_seat(self, run: Run, queue: str, now_s: float) -> None:
        kept = self._seats.get(run.affinity)
        if kept is not None and kept != queue and kept not in run.asked:
            is_free = kept not in self.withdrawn_s and now_s >= self._busy_until_s.get(kept, 0.0)
            if is_free:
                raise self._broken("P8 queue is kept", f"{queue} although {kept} is well")
        self._seats[run.affinity] = queue

    def waits(self, run: Run, until_s: float, was_waiting: bool) -> None:
        now_s = self._world.now_s
        if until_s > run.deadline.end_s + EPSILON_S:
            raise self._broken("F6 deadline", "waits beyond its end")
        if until_s <= now_s and was_waiting:
            raise self._broken("S10 no storm", "asks to be called again at once, twice")
        shadow = self.shadows[run.mail.path]
        if shadow.is_away:
            run.sent_away = True
            self._world.seen.add("a send waited for a backlog queue to come back")
        elif shadow.suspect_s is not None and self._plan.policy.failover_interval_s <= 0:
            self._world.seen.add("a send waited for another one to confirm its failure")
            if until_s > shadow.suspect_s + CONFIRM_S_MAX + EPSILON_S:
                raise self._broken("P25 one decision", "waits longer than a confirmation takes")

    # -- answers ------------------------------------------------------------------------------

    def answered(self, run: Run, request: Request) -> None:
        """What the service said, before the core hears it."""
        error = request.error
        if error is not None:
            run.last_error = error
            if error.is_ambiguous:
                run.mail.unclear += 1
                run.was_unclear = True
        if request.service.name == run.mail.path:
            self._home_answered(run, error)
        else:
            self._away_answered(run, request.service.name, error)

    def _home_answered(self, run: Run, error: ServiceError | None) -> None:
        shadow = self.shadows[run.mail.path]
        if error is None:
            shadow.last_success_s = self._world.now_s
            self._key_worked = True
            if shadow.is_away:
                self._world.seen.add(
                    "a send succeeded at the primary while its entity was diverted"
                )
            if run.outages:
                self._world.seen.add("a send succeeded at the primary after a retry")
            if run.was_throttled:
                self._world.seen.add("a throttled send waited and succeeded")
        elif isinstance(error, SendInterrupted):
            run.sent_away = True  # It says nothing about the entity; where it goes now, others say.
        elif isinstance(error, ServerBusy):
            run.was_throttled = True
            run.quiet_until_s = self._world.now_s + THROTTLE_S
        elif self._is_outage(error):
            run.outages += 1
            run.last_home_error = error
        else:
            run.callers_error = error

    def _away_answered(self, run: Run, queue: str, error: BaseException | None) -> None:
        was_probe = run.is_probe and self._probing.get(queue) is run
        if isinstance(error, MESSAGE_IS_BAD):
            # A probe until somebody tells whose fault it was.
            run.refused_by.append(queue)
            if len(run.refused_by) > 1:
                self._seats.pop(run.affinity, None)
            return
        if was_probe:
            del self._probing[queue]
            how = "succeeded" if error is None else "failed"
            self._world.seen.add(f"a probe of a withdrawn queue {how}")
        if error is None or (isinstance(error, ServerBusy) and was_probe):
            self.withdrawn_s.pop(queue, None)
            if error is None:
                self._seats[run.affinity] = queue
                self._blame(run)
        elif isinstance(error, QUEUE_IS_BAD) and (was_probe or queue not in self.withdrawn_s):
            self.withdrawn_s[queue] = self._world.now_s
        if isinstance(error, ServerBusy):
            self._busy_until_s[queue] = self._world.now_s + THROTTLE_S
            self._world.seen.add("a throttled backlog queue was passed over")

    def _blame(self, run: Run) -> None:
        """P20: what one queue has refused and another has taken is the first one's fault."""
        for queue in run.refused_by:
            if self._probing.get(queue) is run or queue not in self.withdrawn_s:
                self.withdrawn_s[queue] = self._world.now_s
            self._world.seen.add("a queue refused what another took")
        self._free_refused(run)

    def _free_refused(self, run: Run) -> None:
        for queue in run.refused_by:
            if self._probing.get(queue) is run:
                del self._probing[queue]
        run.refused_by.clear()

    def _is_outage(self, error: BaseException | None) -> bool:
        if isinstance(error, AuthenticationFailed):
            return self._key_worked
        return isinstance(error, OUTAGE)

    def started_away(self, path: str) -> None:
        """P17: a pair that is made during an outage sends to the backlog from the beginning."""
        if not self.shadows[path].is_away:
            raise self._broken("P17 begins diverted", f"{path} begins at home during an outage")

    def must_wake(self, run: Run, at_s: float) -> None:
        """P22: whoever waits for a primary that is diverted is on its way a moment later."""
        due_s = at_s + 2 * EPSILON_S
        self._world.at(due_s, self.factory, self._is_awake, run, run.request)

    def _is_awake(self, run: Run, request: Request) -> None:
        if run.request is request and not run.mail.is_over:
            raise self._broken("P22 woken", f"{run.mail.message_id} still waits for the primary")

    def silence_counted(self, run: Run) -> None:
        """P22: after a silence that counts the entity is no longer taken for healthy."""
        shadow = self.shadows[run.mail.path]
        if run.is_silence and not (shadow.is_away or shadow.is_held) and shadow.suspect_s is None:
            raise self._broken("P22 silence", "a caller gave up after a second, and it is healthy")

    def cancelled(self, run: Run, *, is_callers_own: bool) -> None:
        shadow, now_s = self.shadows[run.mail.path], self._world.now_s
        run.is_silence = (
            is_callers_own
            and run.waits_for_home
            and now_s - run.asked_home_s >= SILENCE_S
            and shadow.last_success_s < run.asked_home_s
        )
        if run.is_silence:
            run.last_home_error = OperationTimeout("its caller gave up")
            self._world.seen.add("a caller that gave up made an entity suspect")
        self._world.seen.add("a caller went away in the middle of a send")
        for queue, probing in list(self._probing.items()):
            if probing is run:
                del self._probing[queue]
                self._world.seen.add("a probe was cancelled")

    # -- the end of a send --------------------------------------------------------------------

    def done(self, run: Run, where: str) -> None:
        mail = run.mail
        self._check_end(run)
        namespaces = self.factory.namespaces
        is_held = (
            namespaces.homes[where].holds(mail)
            if where in namespaces.homes
            else mail.number in namespaces.backlogs[where].stored
        )
        if not is_held:
            raise self._broken("S1 ack is durable", f"{mail.message_id} is not in {where}")
        mail.acked_at = where
        if where != mail.path:
            if run.tripped:
                self._world.seen.add("the send that tripped the failover reached the backlog")
            if run.was_unclear and run.home_tries:
                self._world.seen.add("an ambiguous send was rerouted to the backlog")

    def failed(self, run: Run, error: BaseException) -> None:
        mail, shadow = run.mail, self.shadows[run.mail.path]
        self._check_refusals(run, shadow, error)
        self._free_refused(run)
        self._check_end(run)
        mail.error = error
        if not isinstance(error, TwinbusError):
            raise self._broken("S6 typed error", f"{type(error).__name__} to the caller")
        is_early = self._world.now_s < run.deadline.end_s - EPSILON_S
        if isinstance(error, OperationTimeout) and is_early and error is not run.last_error:
            raise self._broken("F6 deadline", "a timeout before the time was up")
        if isinstance(error, BacklogExhausted):
            self._world.seen.add("every backlog queue was withdrawn")
            if len(self.withdrawn_s) < len(self._plan.queues):
                raise self._broken("S6 typed error", "exhausted, and a queue is in the rotation")
        elif isinstance(error, MESSAGE_IS_BAD):
            self._world.seen.add("a message was too large for every queue")
        elif isinstance(error, ServerBusy) and not shadow.is_away:
            self._world.seen.add("a throttled send gave up")
        elif isinstance(error, AuthenticationFailed) and not self._key_worked:
            self._world.seen.add("a key that never worked was the caller's error")
        elif shadow.is_away and error is not run.callers_error:
            self._check_all_asked(run)
        if error is run.last_home_error and not shadow.is_away and not shadow.is_held:
            self._check_counted(run, shadow)

    def _check_refusals(self, run: Run, shadow: Shadow, error: BaseException) -> None:
        """P20: no caller hears of a refusal that another queue was not asked about."""
        if not (run.refused_by and isinstance(error, MESSAGE_IS_BAD) and shadow.is_away):
            return
        now_s = self._world.now_s
        for queue in self._plan.queues if len(run.refused_by) == 1 else ():
            is_free = queue not in self.withdrawn_s and now_s >= self._busy_until_s.get(queue, 0.0)
            if is_free and queue not in run.asked:
                raise self._broken(
                    "P20 one question", f"{run.mail.message_id} not asked of {queue}"
                )

    def _check_all_asked(self, run: Run) -> None:
        """P9, P10: while there is time, no queue that might take it is left out."""
        now_s = self._world.now_s
        if now_s >= run.deadline.end_s - EPSILON_S:
            return
        for queue in self._plan.queues:
            is_free = queue not in self.withdrawn_s and now_s >= self._busy_until_s.get(queue, 0.0)
            if is_free and queue not in run.asked:
                raise self._broken("P10 rerouted", f"{run.mail.message_id} failed, {queue} is free")

    def _check_counted(self, run: Run, shadow: Shadow) -> None:
        if shadow.suspect_s is None and shadow.last_success_s < self._world.now_s:
            raise self._broken("S3 interval and class", "an outage surfaced and did not count")

    def _check_end(self, run: Run) -> None:
        late_s = self._world.now_s - run.deadline.end_s
        if late_s > EPSILON_S:
            if self.factory.asleep_until_s < run.deadline.end_s:
                raise self._broken("F6 deadline", f"over {late_s:.3f} s after its deadline")
            self._world.seen.add("a process slept past the deadline of a send")
        if run.request is not None:
            raise self._broken("S1 ack is durable", "over while an attempt is under way")

    # -- events -------------------------------------------------------------------------------

    def told(self, event: Any, cause: str, run: Run | None) -> None:
        """Judge one event of the core."""
        judge = _JUDGES.get(type(event))
        if judge is not None:
            judge(self, event, cause, run)

    def _suspected(self, event: Suspected, cause: str, run: Run | None) -> None:
        shadow = self.shadows[event.path]
        if run is None or run.mail.path != event.path:
            raise self._broken("S4 independence", f"{event.path} is suspected by another's send")
        if run.last_home_error is None:
            kind = type(run.last_error).__name__
            raise self._broken("S3 interval and class", f"{kind} made {event.path} suspect")
        shadow.suspect_s = self._world.now_s

    def _cleared(self, event: SuspicionCleared, cause: str, run: Run | None) -> None:
        shadow = self.shadows[event.path]
        if cause != "mark" and shadow.last_success_s < self._world.now_s:
            raise self._broken("S3 interval and class", "cleared without a success")
        shadow.suspect_s, shadow.is_held = None, False
        self._world.seen.add("a suspicion was cleared")

    def _diverted(self, event: Diverted, cause: str, run: Run | None) -> None:
        shadow, now_s = self.shadows[event.path], self._world.now_s
        if cause not in ("force", "start"):
            self._check_diversion(event, shadow, run)
        shadow.is_away, shadow.is_held, shadow.was_forced = True, False, cause == "force"
        shadow.suspect_s = shadow.last_ping_s = None
        shadow.was_ping_taken = False
        shadow.diverted_s = now_s
        shadow.diversions += 1
        if run is not None and cause == "send":
            run.tripped = True
            if isinstance(run.last_home_error, AuthenticationFailed):
                self._world.seen.add("a lapsed key diverted an entity")

    def _check_diversion(self, event: Diverted, shadow: Shadow, run: Run | None) -> None:
        interval_s = self._plan.policy.failover_interval_s
        if run is not None and run.mail.path != event.path:
            raise self._broken("S4 independence", f"{event.path} is diverted by another's send")
        if shadow.suspect_s is None:
            raise self._broken("S3 interval and class", "diverted without a failure")
        waited_s = self._world.now_s - shadow.suspect_s
        if waited_s < interval_s - EPSILON_S:
            raise self._broken("S3 interval and class", f"diverted after {waited_s:.3f} s")
        if shadow.last_success_s > shadow.suspect_s:
            raise self._broken("S3 interval and class", "diverted although a send succeeded")

    def _restored(self, event: Restored, cause: str, run: Run | None) -> None:
        shadow, now_s = self.shadows[event.path], self._world.now_s
        if cause == "ping":
            if not shadow.was_ping_taken or shadow.is_held:
                raise self._broken("P11 only a ping", "restored without a ping of this diversion")
            if shadow.restored_s is not None:
                since_s = now_s - shadow.restored_s
                if since_s < self._plan.policy.ping_interval_s - EPSILON_S:
                    raise self._broken("P11 flap limit", f"restored again after {since_s:.3f} s")
        elif cause != "mark":
            raise self._broken("P11 only a ping", f"restored by a {cause}")
        shadow.is_away = shadow.is_held = False
        shadow.restored_s = now_s

    def _held(self, event: EntityHeld, cause: str, run: Run | None) -> None:
        shadow = self.shadows[event.path]
        if event.is_diverted != shadow.is_away:
            raise self._broken("S3 interval and class", "a hold moved the entity")
        shadow.is_held, shadow.suspect_s = True, None

    def _restore_delayed(self, event: RestoreDelayed, cause: str, run: Run | None) -> None:
        self._world.seen.add("a restore was delayed by the flap limit")

    def _ping_sent(self, event: PingSent, cause: str, run: Run | None) -> None:
        shadow, now_s = self.shadows[event.path], self._world.now_s
        interval_s = self._plan.policy.ping_interval_s
        if not shadow.is_away or shadow.is_held or self._no_pings:
            raise self._broken("S7 pings", f"{event.path} is pinged for nothing")
        last_s = shadow.last_ping_s
        if last_s is not None and now_s < last_s + interval_s - EPSILON_S:
            raise self._broken("S7 pings", f"two pings within {now_s - last_s:.3f} s")
        if last_s is None:
            first_s = shadow.diverted_s + (interval_s if shadow.was_forced else 0.0)
            is_late = now_s > max(first_s, self.factory.asleep_until_s) + EPSILON_S
            if is_late or now_s < first_s - EPSILON_S:
                raise self._broken("S7 pings", "the first ping does not go at once")
        shadow.last_ping_s = now_s

    def _withdrawn(self, event: BacklogQueueWithdrawn, cause: str, run: Run | None) -> None:
        self._world.seen.add("a backlog queue was withdrawn")
        is_blamed = run is not None and event.queue in self.withdrawn_s
        if run is None or not (is_blamed or isinstance(run.last_error, QUEUE_IS_BAD)):
            raise self._broken("S6 shared withdrawal", f"{event.queue} did nothing wrong")

    def _returned(self, event: BacklogQueueReinstated, cause: str, run: Run | None) -> None:
        if event.queue in self.withdrawn_s:
            raise self._broken("S6 shared withdrawal", f"{event.queue} returned unproven")

    def _possible_duplicate(self, event: PossibleDuplicate, cause: str, run: Run | None) -> None:
        assert run is not None
        if not run.was_unclear or event.message_ids != (run.mail.message_id,):
            raise self._broken("I3 explained duplicates", "announced without a reason")
        run.mail.announced = True

    # -- pings, timers, the end of the factory ------------------------------------------------

    def rang(self, path: str) -> None:
        """A timer was handled: what is due must have happened."""
        shadow = self.shadows[path]
        if shadow.suspect_s is not None:
            due_s = shadow.suspect_s + (self._plan.policy.failover_interval_s or CONFIRM_S_MAX)
            if self._world.now_s >= due_s + EPSILON_S:
                raise self._broken("S3 interval and class", "the interval passed: not diverted")

    def pinged(self, path: str) -> None:
        if self.shadows[path].last_ping_s != self._world.now_s:
            raise self._broken("S7 pings", "a ping that was not told")

    def ping_answered(self, path: str, diversion: int, request: Request) -> None:
        shadow = self.shadows[path]
        if diversion != shadow.diversions:
            self._world.seen.add("a ping of an earlier diversion was answered")
        elif request.error is None:
            shadow.was_ping_taken = True
        if request.answers > 1:
            self._world.seen.add("a ping was answered twice or late")

    def pings_stopped(self) -> None:
        self._no_pings = True

    def ends(self, verb: str) -> None:
        """One side was closed or has faulted: the other must follow in time (L1)."""
        if self._ended_s is None and self._plan.hosts_syphon:
            self._ended_s = self._world.now_s
            within_s = CLOSE_WINDOW_S if verb == "close" else 0.0
            due_s = self._world.now_s + within_s + 2 * EPSILON_S
            self._world.at(due_s, self.factory, self._both_ended)

    def _both_ended(self) -> None:
        if self.factory.asleep_until_s >= self._world.now_s - EPSILON_S:
            # It has just woken up, and what is due may come a moment later.
            self._world.at(self._world.now_s + 2 * EPSILON_S, self.factory, self._both_ended)
            return
        if len(self.factory.ended) < 2:
            raise self._broken("S8 close and fault", "one side ended and the other stands")


_JUDGES: Final[dict[type, Any]] = {
    Suspected: FactoryWatch._suspected,
    SuspicionCleared: FactoryWatch._cleared,
    Diverted: FactoryWatch._diverted,
    Restored: FactoryWatch._restored,
    EntityHeld: FactoryWatch._held,
    RestoreDelayed: FactoryWatch._restore_delayed,
    PingSent: FactoryWatch._ping_sent,
    BacklogQueueWithdrawn: FactoryWatch._withdrawn,
    BacklogQueueReinstated: FactoryWatch._returned,
    PossibleDuplicate: FactoryWatch._possible_duplicate,
}


def check_mail_over(world: World, mail: Mail) -> None:
    """F6: no caller waits for ever."""
    if not mail.is_over:
        raise world.broken("F6 deadline", f"{mail.message_id} was never answered")
