"""One send through a pair, step by step, and how its time is split.

    step() returns what to do next        answered() takes the result
    SendToPrimary   --> accepted: the end     error: by the classifier, below
    SendToBacklog   --> accepted: the end     error: another queue, or the end
    Wait            --> until that time, or until the entity's health changes
    SendSucceeded, SendFailed                 the end: return to the caller, or raise

The time of a send is split between the primary and the backlog (P10):

    start ................................ primary_end ............ end
    |<---------- attempts at the primary ---------->|<-- reserve -->|

A quarter of the time, at least a second, is kept for the backlog, so that the send which detects
the outage can still divert its message. A send that cannot be diverted in its time, because the
failover interval is longer, gives all its time to the primary.

    primary error: CALLER     raise it
                   THROTTLED  wait 10 s or more, send again, never divert (F2)
                   OUTAGE     retry while the policy and the time allow; then it counts, and if
                              that diverts the entity, the same send goes to the backlog (P10).
                              With an interval of 0 the first send that fails retries for all,
                              and the others wait for its result (P25)
                   interrupted  the entity was diverted meanwhile: send to the backlog (P22)
    backlog error: a queue refuses the message: one other queue is tried. If that accepts it, the
                   first is withdrawn; if that refuses it too, the caller gets the error (P20)

Rule 1: a send to a diverted entity never contacts the primary (P8).
Rule 2: the caller gets an error only if no namespace is known to have accepted the message.
Rule 3: an ambiguous attempt is remembered: if the message is then sent again, it may arrive twice,
        and that is an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

from twinbus.errors import (
    BacklogExhausted,
    OperationTimeout,
    PairingError,
    SendInterrupted,
    ServerBusy,
    ServiceError,
)
from twinbus.failover.backlog_rotation import BacklogQueueChoice, BacklogRotation, QueueAffinity
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.error_classifier import BacklogErrorClass, Classifier, PrimaryErrorClass
from twinbus.failover.events import BacklogExhaustedEvent, Event, PossibleDuplicate, error_summary
from twinbus.failover.state_machine import CONFIRM_S, EntityFailover, Health

SEND_TIMEOUT_S: Final = 60.0
"""How long a send may take when the caller sets no timeout (F6)."""
RESERVE_SHARE: Final = 0.25
RESERVE_S_MIN: Final = 1.0
# With a timeout of less than two seconds each gets half: with all of it reserved for the backlog
# the primary would never be tried.
RESERVE_SHARE_MAX: Final = 0.5


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of one send."""

    start_s: float
    end_s: float

    @classmethod
    def after(cls, now_s: float, timeout_s: float) -> Deadline:
        return cls(now_s, now_s + timeout_s)

    @property
    def timeout_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def reserve_s(self) -> float:
        """The time that is kept for the backlog."""
        return reserve_s(self.timeout_s)

    @property
    def primary_end_s(self) -> float:
        return self.end_s - self.reserve_s

    def remaining_s(self, now_s: float) -> float:
        return self.end_s - now_s


def reserve_s(timeout_s: float) -> float:
    """The part of a timeout that is kept for the backlog."""
    return min(max(timeout_s * RESERVE_SHARE, RESERVE_S_MIN), timeout_s * RESERVE_SHARE_MAX)


# A queue that does not respond must not use up the time of all others: with at most this many
# tries left, each gets its share of what remains.
BACKLOG_TRIES_PLANNED = 3
BACKLOG_TRY_S_MIN = 1.0
# A send that tries a withdrawn queue while others work does not wait longer than this.
BACKLOG_PROBE_S_MAX = 3.0
# An attempt with less time than this would only end ambiguously.
ATTEMPT_S_MIN = 0.05
# An attempt that had no answer for this long when its caller cancelled it counts as a failure of
# the entity. One second, less the time by which a caller's own timer of one second is early.
SILENCE_S_MIN = 0.95


@dataclass(frozen=True, slots=True)
class SendToPrimary:
    """Send to the entity itself, then call answered()."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendToBacklog:
    """Send the envelope to this backlog queue, then call answered()."""

    queue: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Call step() again at this time, or earlier when the entity's health changes."""

    until_s: float


@dataclass(frozen=True, slots=True)
class SendSucceeded:
    """The message was accepted by ``where``: the entity's own path, or a backlog queue."""

    where: str


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Raise this to the caller: no namespace is known to have accepted the message. Unless the
    error ``is_ambiguous``, neither has it."""

    error: BaseException


Step: TypeAlias = SendToPrimary | SendToBacklog | Wait | SendSucceeded | SendFailed


@dataclass(slots=True, weakref_slot=True)
class CredentialHistory:
    """Whether the primary's credential has worked in this process (P7)."""

    has_succeeded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """What all sends of a pair share."""

    rotation: BacklogRotation
    credential: CredentialHistory
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    classifier: Classifier = field(default_factory=Classifier)


def first_attempt_s(failover: EntityFailover, timeout_s: float) -> float | None:
    """How long the first attempt at an entity may take, or None where a SendDecision is needed.

    Nearly every send is this one attempt and needs no SendDecision; if it fails, one takes over
    with answered(), as if its step() had returned SendToPrimary.
    """
    if failover.health is Health.HEALTHY:
        if failover.policy.failover_interval_s >= timeout_s:
            return timeout_s
        return timeout_s - reserve_s(timeout_s)
    return timeout_s if failover.health is Health.HELD_ON_PRIMARY else None


def cancelled_attempt(
    failover: EntityFailover, *, began_s: float, success_mark: tuple[int, int], now_s: float
) -> list[Event]:
    """The caller cancelled an attempt at the primary. A long time without an answer counts as a
    failure, if no send has succeeded since it began (P22): otherwise callers with short timers of
    their own would keep an entity that never answers healthy for ever."""
    silent_s = now_s - began_s
    if silent_s < SILENCE_S_MIN or failover.success_mark != success_mark:
        return []
    reason = f"a send was cancelled after {silent_s:.1f} s without an answer"
    return failover.send_failed(now_s, reason)


class SendDecision:
    """The decisions about one message, or one batch."""

    def __init__(
        self,
        failover: EntityFailover,
        rules: SendPolicy,
        affinity: QueueAffinity,
        deadline: Deadline,
        rng: Random,
        message_ids: tuple[str, ...] = (),
    ) -> None:
        self._failover = failover
        self._rules = rules
        self._affinity = affinity
        self._deadline = deadline
        self._timeout_s = deadline.timeout_s
        self._rng = rng
        self._message_ids = message_ids
        self._end: SendSucceeded | SendFailed | None = None
        self._choice: BacklogQueueChoice | None = None
        """The backlog queue that is being tried."""
        self._tried: set[str] = set()
        self._refusal: tuple[BacklogQueueChoice, BaseException] | None = None
        """The backlog queue that refused the message, while another is tried."""
        self._retries = 0
        self._not_before_s = float("-inf")
        self._last_error: BaseException | None = None
        self._was_outage = False
        """Whether the last error of the primary was of the failover class."""
        self._spends_all = False
        """Whether the primary may use the backlog's reserve too."""
        self._was_diverted = False
        """Whether the last step was a send to the backlog."""
        self._unclear: str | None = None
        """Where the first ambiguous attempt went."""
        self._unclear_count = 0
        self._awaits_confirmation = False
        """Whether another send is confirming the failure that this one had, too."""
        self._confirms_until_s: float | None = None
        """Until when this send confirms a failure."""
        self._asked_at_s: float | None = None
        """When the attempt at the primary began, while it has no answer."""
        self._success_mark = (0, 0)
        """That of the entity at that time."""

    # -- what to do ---------------------------------------------------------------------------

    def step(self, now_s: float) -> tuple[Step, list[Event]]:
        """What to do now. After SendToPrimary and SendToBacklog call answered() first."""
        if self._end is not None:
            return self._end, []
        if self._failover.is_diverted:
            return self._step_backlog(now_s)
        if self._was_diverted:
            self._restore(now_s)
        primary_end_s = self._primary_end_s()
        if now_s >= primary_end_s:
            return self._primary_time_is_up(now_s)
        if self._awaits_confirmation:
            decision_due_s = self._failover.decision_due_s
            if self._failover.health is Health.SUSPECT and now_s < decision_due_s:
                return Wait(min(decision_due_s, primary_end_s)), []
            self._awaits_confirmation = False
        if now_s < self._not_before_s:
            return Wait(min(self._not_before_s, primary_end_s)), []
        timeout_s = primary_end_s - now_s
        if self._confirms_until_s is not None:
            timeout_s = min(timeout_s, max(self._confirms_until_s - now_s, ATTEMPT_S_MIN))
        self._asked_at_s, self._success_mark = now_s, self._failover.success_mark
        return SendToPrimary(timeout_s), []

    def _restore(self, now_s: float) -> None:
        """The entity was restored before the backlog accepted this send: the time that is left is
        split again, because the primary may fail once more."""
        self._was_diverted = False
        self._drop_refusal()
        self._deadline = Deadline(now_s, self._deadline.end_s)

    def _primary_time_is_up(self, now_s: float) -> tuple[Step, list[Event]]:
        """The wait for a retry was longer than planned: the last failure counts now."""
        events: list[Event] = []
        if self._last_error is not None and self._was_outage:
            events = self._count(now_s, self._last_error)
            if self._end is None:
                step, more = self._step_backlog(now_s)
                return step, events + more
        return self._fail(self._last_error or self._too_late()), events

    def _step_backlog(self, now_s: float) -> tuple[Step, list[Event]]:
        self._was_diverted = True
        # Errors of the primary from before the diversion have been counted or are out of date;
        # errors of a backlog queue do not concern the primary.
        self._was_outage = False
        if now_s >= self._deadline.end_s:
            return self._give_up_on_backlog(now_s)
        rotation = self._rules.rotation
        self._choice = rotation.choose(
            self._affinity,
            now_s,
            self._rng,
            avoid=self._tried,
            has_refusal=self._refusal is not None,
        )
        if self._choice is not None:
            return SendToBacklog(
                self._choice.queue, self._backlog_timeout_s(self._choice, now_s)
            ), []
        if self._refusal is not None:  # No other queue can be tried now.
            return self._fail(self._refusal[1]), []
        # Every usable queue was tried once: those that return later may be tried again.
        self._tried.clear()
        chance_s = rotation.next_chance_s()
        if chance_s is None:
            chance_s = now_s + BACKLOG_TRY_S_MIN  # Another send is trying the last one.
        if chance_s < self._deadline.end_s:
            return Wait(max(chance_s, now_s)), []
        return self._give_up_on_backlog(now_s)

    def _give_up_on_backlog(self, now_s: float) -> tuple[Step, list[Event]]:
        path, withdrawn = self._failover.path, self._rules.rotation.withdrawn
        if len(withdrawn) < len(self._rules.rotation.queues):
            is_over = now_s >= self._deadline.end_s
            untried = self._too_late() if is_over else self._all_busy()
            return self._fail(self._last_error or untried), []
        error = BacklogExhausted(
            path=path, withdrawn=withdrawn, is_ambiguous=self._unclear is not None
        )
        error.__cause__ = self._last_error
        return self._fail(error), [BacklogExhaustedEvent(path, now_s, len(withdrawn))]

    # -- the result ---------------------------------------------------------------------------

    def answered(self, now_s: float, error: BaseException | None = None) -> list[Event]:
        """The outcome of the last SendToPrimary or SendToBacklog."""
        choice, self._choice = self._choice, None
        self._asked_at_s = None
        if choice is None:
            return self._primary_answered(now_s, error)
        return self._backlog_answered(choice, now_s, error)

    def queue_ahead(self, now_s: float) -> str | None:
        """The backlog queue that this send may need soon: the primary has just failed and the
        entity is not diverted yet, so a link can be opened beside the next attempt (P25)."""
        if not self._was_outage or self._failover.is_diverted:
            return None
        return self._rules.rotation.expect(self._affinity, now_s, self._rng)

    def cancelled(self, now_s: float) -> list[Event]:
        """The caller cancelled the send during a step."""
        if self._choice is not None:
            self._rules.rotation.release(self._choice)
            self._choice = None
        self._drop_refusal()
        if self._asked_at_s is None:
            return []
        return cancelled_attempt(
            self._failover,
            began_s=self._asked_at_s,
            success_mark=self._success_mark,
            now_s=now_s,
        )

    def _primary_answered(self, now_s: float, error: BaseException | None) -> list[Event]:
        if error is None:
            self._rules.credential.has_succeeded = True
            return self._done(self._failover.path, now_s, self._failover.send_succeeded(now_s))
        self._remember(error, self._failover.path)
        self._confirms_until_s = None
        if isinstance(error, SendInterrupted):
            self._was_outage = False  # The entity is diverted already.
            return []
        error_class = self._rules.classifier.at_primary(
            error, credential_worked=self._rules.credential.has_succeeded
        )
        self._was_outage = error_class is PrimaryErrorClass.OUTAGE
        if self._was_outage:
            return self._outage(now_s, error)
        if error_class is PrimaryErrorClass.THROTTLED and self._can_wait_throttled(now_s, error):
            return []
        self._fail(error)
        return []

    def _outage(self, now_s: float, error: BaseException) -> list[Event]:
        # If the failure of another send has diverted it meanwhile, step() goes to the backlog.
        if not self._failover.is_diverted and self._may_retry():
            self._retries += 1
            delay_s = self._retry_delay_s()
            if now_s + delay_s + ATTEMPT_S_MIN < self._primary_end_s():
                self._not_before_s = now_s + delay_s
                return self._confirm(now_s, error) if self._is_at_once else []
        return self._count(now_s, error)

    def _confirm(self, now_s: float, error: BaseException) -> list[Event]:
        """The interval is 0: the first send to fail tries again for all of them. Without that, a
        hundred sends would each reopen a link, one after the other, before the entity is
        diverted (P25)."""
        if self._failover.health is Health.SUSPECT:
            self._awaits_confirmation = True
            return []
        if self._failover.health is Health.HEALTHY:
            self._confirms_until_s = now_s + CONFIRM_S
        return self._failover.suspect(now_s, error_summary(error))

    def _count(self, now_s: float, error: BaseException) -> list[Event]:
        """The retries are used up: the failure counts for the entity, and surfaces unless it
        diverts."""
        if isinstance(error, ServiceError):
            error.mark_final()
        events = self._failover.send_failed(now_s, error_summary(error))
        if not self._failover.is_diverted:
            self._fail(error)
        return events

    @property
    def _is_at_once(self) -> bool:
        return self._failover.policy.failover_interval_s <= 0

    def _may_retry(self) -> bool:
        retry_total = self._rules.retry.retry_total
        return self._retries < (min(1, retry_total) if self._is_at_once else retry_total)

    def _retry_delay_s(self) -> float:
        if self._is_at_once:
            return 0.0
        return self._rules.retry.delay_s(self._retries, self._rng)

    def _can_wait_throttled(self, now_s: float, error: BaseException) -> bool:
        wanted_s = (
            error.retry_after_s if isinstance(error, ServerBusy) else ServerBusy.retry_after_s
        )
        # All senders were throttled at the same time: do not let them return at the same time.
        wait_s = max(wanted_s, ServerBusy.retry_after_s) * self._rng.uniform(1.0, 1.2)
        self._not_before_s = now_s + wait_s
        if self._failover.is_diverted:
            return True  # The backlog is not throttled: step() goes there.
        if self._not_before_s >= self._deadline.end_s:
            return False
        # A throttled entity is not down: the reserve is better used for this attempt.
        self._spends_all = self._spends_all or self._not_before_s >= self._primary_end_s()
        return True

    def _backlog_answered(
        self, choice: BacklogQueueChoice, now_s: float, error: BaseException | None
    ) -> list[Event]:
        rotation = self._rules.rotation
        if error is None:
            self._affinity.queue = choice.queue
            events = rotation.succeeded(choice.queue, now_s)
            return self._done(choice.queue, now_s, events + self._blame(now_s))
        self._remember(error, choice.queue)
        match self._rules.classifier.at_backlog(error):
            case BacklogErrorClass.WITHDRAW:
                self._tried.add(choice.queue)
                return rotation.failed(
                    choice.queue, now_s, error_summary(error), is_probe=choice.is_probe
                )
            case BacklogErrorClass.TRY_ANOTHER:
                self._tried.add(choice.queue)
                return rotation.throttled(choice.queue, now_s, is_probe=choice.is_probe)
            case BacklogErrorClass.ASK_ANOTHER:
                self._tried.add(choice.queue)
                if self._refusal is None:
                    self._refusal = (choice, error)
                    return []
                rotation.release(choice)
                # In a pair with several queues of the wrong kind the next send tries others.
                self._affinity.queue = None
                self._fail(self._refusal[1])
                return []
            case BacklogErrorClass.GIVE_UP:
                rotation.release(choice)
                self._fail(error)
                return []

    def _blame(self, now_s: float) -> list[Event]:
        """Another queue accepted what the first one refused: that one is withdrawn (P20)."""
        if self._refusal is None:
            return []
        (choice, error), self._refusal = self._refusal, None
        return self._rules.rotation.failed(
            choice.queue, now_s, error_summary(error), is_probe=choice.is_probe, is_refusal=True
        )

    def _drop_refusal(self) -> None:
        """No other queue has shown whether the refusal concerned the queue or the message."""
        if self._refusal is not None:
            self._rules.rotation.release(self._refusal[0])
            self._refusal = None

    # -- parts --------------------------------------------------------------------------------

    def _primary_end_s(self) -> float:
        """When attempts at the primary end: the reserve is kept only where this send could be
        diverted; all others behave as without a pair (P0)."""
        failover = self._failover
        if self._spends_all or failover.health is Health.HELD_ON_PRIMARY:
            return self._deadline.end_s
        interval_s = failover.policy.failover_interval_s
        if failover.health is Health.HEALTHY and interval_s >= self._deadline.timeout_s:
            return self._deadline.end_s
        return self._deadline.primary_end_s

    def _backlog_timeout_s(self, choice: BacklogQueueChoice, now_s: float) -> float:
        rotation = self._rules.rotation
        remaining_s = self._deadline.remaining_s(now_s)
        withdrawn = set(rotation.withdrawn)
        in_use = [queue for queue in rotation.queues if queue not in withdrawn]
        if choice.is_probe and in_use:
            return min(remaining_s / 2, BACKLOG_PROBE_S_MAX)
        # With none in use every queue is tried in turn, and any of them may work.
        untried = sum(queue not in self._tried for queue in in_use or rotation.queues)
        tries = max(1, min(untried, BACKLOG_TRIES_PLANNED))
        return min(max(remaining_s / tries, BACKLOG_TRY_S_MIN), remaining_s)

    def _remember(self, error: BaseException, where: str) -> None:
        self._last_error = error
        if isinstance(error, ServiceError) and error.is_ambiguous:
            self._unclear = self._unclear or where
            self._unclear_count += 1

    def _done(self, where: str, now_s: float, events: list[Event]) -> list[Event]:
        self._end = SendSucceeded(where)
        if self._unclear is not None:
            unclear = PossibleDuplicate(
                self._failover.path, now_s, self._unclear, self._message_ids, self._unclear_count
            )
            return [*events, unclear]
        return events

    def _fail(self, error: BaseException) -> SendFailed:
        if self._unclear is not None and isinstance(error, ServiceError | PairingError):
            error.is_ambiguous = True  # The last attempt may be clear, an earlier one was not.
            error.unclear_attempts = self._unclear_count
        self._drop_refusal()
        self._end = SendFailed(error)
        return self._end

    def _all_busy(self) -> ServerBusy:
        return ServerBusy(
            f"All backlog queues for {self._failover.path!r} are throttled for longer than the "
            "time that this send has left",
            path=self._failover.path,
            hint="Send more slowly, or use a longer timeout",
        )

    def _too_late(self) -> OperationTimeout:
        error = OperationTimeout(
            f"The send to {self._failover.path!r} timed out after {self._timeout_s:g} s",
            path=self._failover.path,
            hint="Use a longer timeout, or check both namespaces with `twinbus preflight`",
        )
        error.is_ambiguous = False  # Nothing was tried.
        return error
