"""Bugs of the core: each replaces one part of it by a wrong one.

These are the mistakes that such a system is likely to have, some of which others have made. The
simulation is built from parts, and takes these instead of the real ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import ClassVar, Final, NamedTuple

from twinbus.errors import MessageRefused, OperationTimeout, ServerBusy, ServiceError
from twinbus.failover.backlog_rotation import BacklogQueueChoice, BacklogRotation, QueueAffinity
from twinbus.failover.error_classifier import (
    BACKLOG_ERRORS,
    BacklogErrorClass,
    Classifier,
    PrimaryErrorClass,
)
from twinbus.failover.events import BacklogQueueWithdrawn, Event
from twinbus.failover.pair_lifecycle import Effect, PairLifecycle
from twinbus.failover.send_decision import (
    SendDecision,
    SendFailed,
    SendSucceeded,
    SendToBacklog,
    SendToPrimary,
    Step,
)
from twinbus.failover.state_machine import FailoverPolicy, Health, Signal
from twinbus.mover.planning.chunk_ledger import RestoredDelivery
from twinbus.mover.planning.chunk_plan import MoveErrorClass as HomeVerdict
from twinbus.mover.planning.chunk_plan import classify_error, poison_from_error
from verification.simulation.application import Parts
from verification.simulation.coverage import WatchedFailover
from verification.simulation.mover import Chunk, Mover, Work
from verification.simulation.services import Home


class LateSuccessRestores(WatchedFailover):
    def send_succeeded(self, now_s: float) -> list[Event]:
        if self.health is Health.DIVERTED:
            return self._receive(Signal.MARKED_HEALTHY, now_s, "a send succeeded")
        return super().send_succeeded(now_s)


class TimerRestarts(WatchedFailover):
    def send_failed(self, now_s: float, reason: str) -> list[Event]:
        events = super().send_failed(now_s, reason)
        self._suspect_since_s = now_s
        return events


class SuccessIsForgotten(WatchedFailover):
    def send_succeeded(self, now_s: float) -> list[Event]:
        return []


class StalePingRestores(WatchedFailover):
    def ping_answered(
        self, epoch: int, now_s: float, failure: str | None, *, refusal: str = ""
    ) -> list[Event]:
        return super().ping_answered(self.epoch, now_s, failure, refusal=refusal)


class NoFlapLimit(WatchedFailover):
    def _restore_allowed_s(self) -> float:
        return float("-inf")


class PingsHastily(WatchedFailover):
    def ping_answered(
        self, epoch: int, now_s: float, failure: str | None, *, refusal: str = ""
    ) -> list[Event]:
        events = super().ping_answered(epoch, now_s, failure, refusal=refusal)
        if self._next_ping_s is not None:
            self._next_ping_s = now_s + 0.1
        return events


class PingsLater(WatchedFailover):
    def _divert(self, before: Health, now_s: float, reason: str) -> list[Event]:
        events = super()._divert(before, now_s, reason)
        self._next_ping_s = now_s + self.policy.ping_interval_s
        return events


class PingEndsHold(WatchedFailover):
    def ping_answered(
        self, epoch: int, now_s: float, failure: str | None, *, refusal: str = ""
    ) -> list[Event]:
        if self.health is Health.HELD_ON_BACKLOG and failure is None:
            return self._receive(Signal.MARKED_HEALTHY, now_s, "a ping succeeded")
        return super().ping_answered(epoch, now_s, failure, refusal=refusal)


class Contagious(WatchedFailover):
    """Trouble of one entity is trouble of its neighbours."""

    _known: ClassVar[list[Contagious]] = []

    def __init__(self, path: str, policy: FailoverPolicy) -> None:
        super().__init__(path, policy)
        self._known[:] = [each for each in self._known if each.policy is policy] + [self]

    def send_failed(self, now_s: float, reason: str) -> list[Event]:
        events = super().send_failed(now_s, reason)
        for other in self._known:
            if other.path != self.path:
                events += WatchedFailover.send_failed(other, now_s, reason)
        return events


class BeginsAtHome(WatchedFailover):
    """A pair that is made during an outage does not ask, and begins at home."""

    def start_diverted(self, now_s: float, reason: str) -> list[Event]:
        return []


class WithdrawalIsNotShared(BacklogRotation):
    def failed(
        self, queue: str, now_s: float, reason: str, *, is_probe: bool, is_refusal: bool = False
    ) -> list[Event]:
        return [BacklogQueueWithdrawn(queue, now_s, reason)]


class EverybodyProbes(BacklogRotation):
    def choose(
        self,
        affinity: QueueAffinity,
        now_s: float,
        rng: Random,
        *,
        avoid: Collection[str] = (),
        has_refusal: bool = False,
    ) -> BacklogQueueChoice | None:
        choice = super().choose(affinity, now_s, rng, avoid=avoid, has_refusal=has_refusal)
        if choice is not None:
            self._queue_states[choice.queue].is_probed = False
        return choice


class CancelledProbeIsKept(BacklogRotation):
    def release(self, choice: BacklogQueueChoice) -> None:
        pass


class WithdrawnForGood(BacklogRotation):
    def failed(
        self, queue: str, now_s: float, reason: str, *, is_probe: bool, is_refusal: bool = False
    ) -> list[Event]:
        events = super().failed(queue, now_s, reason, is_probe=is_probe, is_refusal=is_refusal)
        self._queue_states[queue].withdrawn_until_s = float("inf")
        return events


class ThrottlingWithdraws(BacklogRotation):
    def throttled(self, queue: str, now_s: float, *, is_probe: bool) -> list[Event]:
        return self.failed(queue, now_s, "busy", is_probe=is_probe)


class RefusingQueueStays(SendDecision):
    def _blame(self, now_s: float) -> list[Event]:
        self._drop_refusal()
        return []


class IgnoresDiversion(SendDecision):
    def step(self, now_s: float) -> tuple[Step, list[Event]]:
        if self._end is None and self._failover.is_diverted and self._retries == 0:
            self._retries += 1
            return SendToPrimary(0.1), []
        return super().step(now_s)


class KeepsNoReserve(SendDecision):
    def _primary_end_s(self) -> float:
        return self._deadline.end_s


class AcksTooSoon(SendDecision):
    def step(self, now_s: float) -> tuple[Step, list[Event]]:
        step, events = super().step(now_s)
        if isinstance(step, SendToBacklog):
            self._end = SendSucceeded(step.queue)
            return self._end, events
        return step, events


class ForgetsToReroute(SendDecision):
    def _count(self, now_s: float, error: BaseException) -> list[Event]:
        events = super()._count(now_s, error)
        self._fail(error)
        return events


class StaysWithOneQueue(SendDecision):
    def _backlog_answered(
        self, choice: BacklogQueueChoice, now_s: float, error: BaseException | None
    ) -> list[Event]:
        events = super()._backlog_answered(choice, now_s, error)
        if error is not None:
            self._fail(error)
        return events


class HidesDoubt(SendDecision):
    def _done(self, where: str, now_s: float, events: list[Event]) -> list[Event]:
        self._unclear = None
        return super()._done(where, now_s, events)


class DeniesDoubt(SendDecision):
    def _fail(self, error: BaseException) -> SendFailed:
        self._unclear = None
        if isinstance(error, ServiceError):
            error.is_ambiguous = False
        return super()._fail(error)


class RetriesForEver(SendDecision):
    def _may_retry(self) -> bool:
        return True


class ReturnsAtOnceWhenThrottled(SendDecision):
    def _can_wait_throttled(self, now_s: float, error: BaseException) -> bool:
        return now_s < self._deadline.end_s


class OutlivesItsDeadline(SendDecision):
    def _backlog_timeout_s(self, choice: BacklogQueueChoice, now_s: float) -> float:
        return 60.0


class BacklogErrorCounts(SendDecision):
    def _backlog_answered(
        self, choice: BacklogQueueChoice, now_s: float, error: BaseException | None
    ) -> list[Event]:
        events = super()._backlog_answered(choice, now_s, error)
        if isinstance(error, OperationTimeout):
            self._was_outage = True
        return events


class LeavesPartnerOpen(PairLifecycle):
    def handle_timer(self, now_s: float) -> list[Effect]:
        self._window_end_s = None
        return []


class CompletesFirst(Mover):
    class chunk_type(Chunk):
        def send(self, home: Home, items: Sequence[RestoredDelivery]) -> Work:
            yield self.completion(items)
            yield from super().send(home, items)


class CompletesWhatIsUnsure(Mover):
    class chunk_type(Chunk):
        def _refused(
            self, home: Home, items: Sequence[RestoredDelivery], error: ServiceError
        ) -> Work:
            if classify_error(error) is HomeVerdict.AMBIGUOUS:
                yield from self.complete(items)
            else:
                yield from super()._refused(home, items, error)


class BuriesWhatHasToWait(Mover):
    class chunk_type(Chunk):
        def _refused(
            self, home: Home, items: Sequence[RestoredDelivery], error: ServiceError
        ) -> Work:
            if classify_error(error) is HomeVerdict.LATER:
                yield from self.bury([poison_from_error(item, error) for item in items])
            else:
                yield from super()._refused(home, items, error)


class Replaced(NamedTuple):
    """A bug, and the check that must catch it."""

    name: str
    parts: Parts
    check: str


def _classified(rows: dict[type[BaseException], PrimaryErrorClass]) -> Parts:
    return Parts(classifier=Classifier().with_primary(rows))


REPLACED: Final = (
    Replaced("a late success restores", Parts(failover=LateSuccessRestores), "P11 only a ping"),
    Replaced(
        "each failure restarts the timer", Parts(failover=TimerRestarts), "S3 interval and class"
    ),
    Replaced("a success is forgotten", Parts(failover=SuccessIsForgotten), "S3 interval and class"),
    Replaced("a stale ping restores", Parts(failover=StalePingRestores), "P11 only a ping"),
    Replaced("no flap limit", Parts(failover=NoFlapLimit), "P11 flap limit"),
    Replaced("pings without a pause", Parts(failover=PingsHastily), "S7 pings"),
    Replaced("the first ping waits", Parts(failover=PingsLater), "S7 pings"),
    Replaced("a ping ends a hold", Parts(failover=PingEndsHold), "P11 only a ping"),
    Replaced("one entity's trouble diverts another", Parts(failover=Contagious), "S4 independence"),
    Replaced(
        "a pair begins on the primary in an outage",
        Parts(failover=BeginsAtHome),
        "P17 begins diverted",
    ),
    Replaced("a diversion wakes no send", Parts(interrupts=False), "P22 woken"),
    Replaced(
        "a withdrawal is not shared", Parts(rotation=WithdrawalIsNotShared), "S6 shared withdrawal"
    ),
    Replaced(
        "half-open lets all senders in", Parts(rotation=EverybodyProbes), "S6 shared withdrawal"
    ),
    Replaced(
        "a cancelled probe is never freed", Parts(rotation=CancelledProbeIsKept), "S9 liveness"
    ),
    Replaced("a withdrawn queue never returns", Parts(rotation=WithdrawnForGood), "S9 liveness"),
    Replaced(
        "throttling withdraws a queue", Parts(rotation=ThrottlingWithdraws), "S6 shared withdrawal"
    ),
    Replaced(
        "a refusing queue stays in the rotation",
        Parts(send=RefusingQueueStays),
        "S6 shared withdrawal",
    ),
    Replaced(
        "a refusal is not asked about",
        Parts(
            classifier=Classifier(
                backlog={**BACKLOG_ERRORS, MessageRefused: BacklogErrorClass.GIVE_UP}
            )
        ),
        "P20 one question",
    ),
    Replaced(
        "sends to the primary while diverted",
        Parts(send=IgnoresDiversion),
        "S2 diverted means away",
    ),
    Replaced("no reserve for the backlog", Parts(send=KeepsNoReserve), "P10 reserve"),
    Replaced(
        "acknowledged before the backlog has it", Parts(send=AcksTooSoon), "S1 ack is durable"
    ),
    Replaced("the send that trips is not rerouted", Parts(send=ForgetsToReroute), "P10 rerouted"),
    Replaced("one bad queue ends the send", Parts(send=StaysWithOneQueue), "P10 rerouted"),
    Replaced(
        "a possible duplicate is not reported", Parts(send=HidesDoubt), "I3 explained duplicates"
    ),
    Replaced("an error denies its doubt", Parts(send=DeniesDoubt), "H1 honest errors"),
    Replaced("retries without an end", Parts(send=RetriesForEver), "S10 no storm"),
    Replaced("throttled and back at once", Parts(send=ReturnsAtOnceWhenThrottled), "F2 throttling"),
    Replaced("an attempt outlives its send", Parts(send=OutlivesItsDeadline), "F6 deadline"),
    Replaced(
        "a backlog error counts for the primary",
        Parts(send=BacklogErrorCounts),
        "S3 interval and class",
    ),
    Replaced(
        "throttling diverts",
        _classified({ServerBusy: PrimaryErrorClass.OUTAGE}),
        "S3 interval and class",
    ),
    Replaced(
        "a timeout does not count",
        _classified({OperationTimeout: PrimaryErrorClass.CALLER}),
        "S3 interval and class",
    ),
    Replaced("the partner stays open", Parts(lifecycle=LeavesPartnerOpen), "S8 close and fault"),
    Replaced(
        "completes before it sends", Parts(mover=CompletesFirst), "Y1 accepted before completed"
    ),
    Replaced(
        "completes what is unsure",
        Parts(mover=CompletesWhatIsUnsure),
        "Y1 accepted before completed",
    ),
    Replaced(
        "buries what has to wait", Parts(mover=BuriesWhatHasToWait), "Y4 only poison is buried"
    ),
)
