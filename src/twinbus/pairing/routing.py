"""Where a send goes, the health of the entities, and who is told about changes of it.

Wakes everybody who waits in a factory, whenever something has changed there.

Where the sends of a factory go, and what is known about its entities.

    unpaired   every entity is held at home: retries, and otherwise nothing but the driver
    waiting    as unpaired, until the secondary answers (P19)
    paired     one failover machine for each entity, one rotation for all senders

What a factory says about its entities: one frozen value for each (P16).

Rule 1: all senders of a factory share one routing; pairing replaces it as a whole, so a send
        sees either the old one or the new one. A pair that was waiting is completed in place, so
        that sends under way can still be diverted.
Rule 2: everything that happens goes through ``publish``: subscribers hear of it, and whoever waits
        looks again.
Rule 3: a send that waits for the primary when its entity is diverted is interrupted, by a
        cancellation of its task that is taken back, as a timeout does it (P22).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from twinbus.common.entity_path import parse_entity_path
from twinbus.drivers.interface import Driver, LinkProperties, may_have_left
from twinbus.errors import SendInterrupted, ServiceError
from twinbus.failover.backlog_rotation import BacklogRotation
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.error_classifier import PrimaryErrorClass
from twinbus.failover.events import BacklogReady, Diverted, Event, Restored
from twinbus.failover.send_decision import CredentialHistory, SendPolicy
from twinbus.failover.state_machine import EntityFailover, FailoverPolicy, Health
from twinbus.pairing.client.call_tracker import DirectLink
from twinbus.pairing.events import EventHub, utc_at
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions

__all__ = [
    "ALL_PATHS",
    "Backlog",
    "ChangeNotifier",
    "Command",
    "Entity",
    "EntityHealth",
    "SendRouter",
    "health_of",
]


class ChangeNotifier:
    """Who waits asks again when it rings; nothing else is told."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Something has changed: look again."""
        # Each is woken once: many rings in a row, with many who wait, would be work for nothing.
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, timeout_s: float | None) -> None:
        """Return at the next ring, or when the time is up."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(max(timeout_s, 0.0), _wake, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


ALL_PATHS: Final = "*"
"""Every entity of the factory, those included that it has not used yet."""

# A cancelled send ends within a turn or two of the loop.
INTERRUPT_AGAIN_S: Final = 0.05

Command: TypeAlias = Callable[[EntityFailover, float], list[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The place where diverted messages wait."""

    driver: Driver
    queues: tuple[str, ...]
    message_bytes_max: int
    """What a backlog queue takes, aliases included."""
    batch_bytes_max: int
    owner: str = ""
    """The mark of this pair, in every message (P21)."""


@dataclass(slots=True)
class Entity:
    """One queue or topic of the primary, as all senders of the factory know it."""

    failover: EntityFailover
    attempts: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    """The sends that wait for the primary's answer, each with how often it was interrupted."""
    direct: set[DirectLink] = field(default_factory=set)
    """Links on which threads of their own send to it now."""
    sends_under_way: int = 0
    messages_diverted: int = 0
    """Since the process started."""
    last_error: str = ""
    link_facts: LinkProperties | None = None
    """What it takes, as far as a sender of the factory was told."""

    def attempt_ended(self, task: asyncio.Task[Any]) -> None:
        """The primary is asked no longer. Interruptions that the driver swallowed are taken back:
        the caller's own timeouts would count them as cancellations of the caller's."""
        swallowed = self.attempts.pop(task)
        if swallowed:
            for _ in range(swallowed):
                task.uncancel()


@dataclass(slots=True, kw_only=True)
class SendRouter:
    """What all sends of a factory share."""

    hub: EventHub
    rules: SendPolicy
    policy: FailoverPolicy = field(default_factory=FailoverPolicy)
    backlog: Backlog | None = None
    backlog_error: str = ""
    """Why a pair has no backlog yet, or nothing (P19)."""
    message_bytes_max: int | None = None
    """What a message may have at most to be diverted; None: nothing is ever diverted."""
    outage: str = ""
    """Why the primary could not be contacted when the pair was made: its entities begin
    diverted (P17)."""
    notifier: ChangeNotifier = field(default_factory=ChangeNotifier)
    rng: Random = field(default_factory=Random)
    now_s: Callable[[], float] = time.monotonic
    entities: dict[str, Entity] = field(default_factory=dict)
    _default_command: Command | None = None
    """What was said of all paths, for those that are used later."""

    @classmethod
    def unpaired(
        cls, hub: EventHub, retry: RetryPolicy, credential: CredentialHistory
    ) -> SendRouter:
        rules = SendPolicy(rotation=BacklogRotation(()), credential=credential, retry=retry)
        return cls(hub=hub, rules=rules)

    def paired(
        self,
        options: SendAvailabilityPairedNamespaceOptions,
        backlog: Backlog | None,
        outage: str,
        backlog_error: str = "",
    ) -> SendRouter:
        """The routing of the same factory from now on. Without a backlog it waits for one, see
        complete()."""
        rules = SendPolicy(
            rotation=BacklogRotation(() if backlog is None else backlog.queues, options.rotation),
            credential=self.rules.credential,
            retry=self.rules.retry,
            classifier=options.classifier,
        )
        policy = FailoverPolicy(
            failover_interval_s=options.failover_interval.total_seconds(),
            ping_interval_s=options.ping_primary_interval.total_seconds(),
        )
        return SendRouter(
            hub=self.hub,
            rules=rules,
            policy=policy,
            backlog=backlog,
            backlog_error=backlog_error,
            # No queue has said what it takes: a limit would be a guess.
            message_bytes_max=sys.maxsize if backlog is None else backlog.message_bytes_max,
            outage=outage,
        )

    def complete(self, backlog: Backlog, outage: str) -> None:
        """The secondary answered after all (P19). With an outage everything that was used is
        diverted now, sends that wait for the primary included (P17, P22)."""
        self.backlog, self.backlog_error, self.outage = backlog, "", outage
        self.message_bytes_max = backlog.message_bytes_max
        self.rules.rotation.add(backlog.queues)
        for entity in list(self.entities.values()):
            entity.failover.mark_healthy(self.now_s(), "the backlog is ready")
            self._begin(entity.failover)
        self.publish([BacklogReady(self.now_s(), len(backlog.queues))])

    def set_ping_interval(self, interval_s: float) -> None:
        """Ping diverted entities at another pace from now on."""
        self.policy = replace(self.policy, ping_interval_s=interval_s)
        for entity in self.entities.values():
            entity.failover.set_ping_interval(interval_s, self.now_s())
        self.notifier.notify()

    # -- entities -----------------------------------------------------------------------------

    def entity(self, path: str) -> Entity:
        """What is known about a canonical path; the first question makes it known."""
        found = self.entities.get(path)
        if found is None:
            found = self.entities[path] = Entity(EntityFailover(path, self.policy))
            self._begin(found.failover)
        return found

    def _begin(self, failover: EntityFailover) -> None:
        now_s = self.now_s()
        if self.backlog is None:
            failover.hold(now_s, self.backlog_error or "not paired")
            return
        if self.outage:
            self.publish(failover.start_diverted(now_s, self.outage))
        if self._default_command is not None:
            self.publish(self._default_command(failover, now_s))

    def command(self, path: str, command: Command) -> None:
        """Carry out what somebody said about one path, or about all of them."""
        if path == ALL_PATHS:
            self._default_command = command
            if command is not EntityFailover.hold:  # Which leaves everything where it would be.
                self.outage = ""
            paths = list(self.entities)
        else:
            paths = [parse_entity_path(path)]
        for each in paths:
            self.publish(command(self.entity(each).failover, self.now_s()))

    def say_no_backlog(self, error: BaseException) -> None:
        """Add to an error of the primary that would have diverted its entity why it could not."""
        if not isinstance(error, ServiceError) or self._is_callers(error):
            return
        sentence = f"There is no backlog yet, because {self.hub.secondary} is unreachable"
        error.advise(f"{sentence}: {self.backlog_error}")
        if error.__cause__ is not None:  # The SDK's own error, which the drop-in raises.
            error.__cause__.add_note(error.hint)

    def _is_callers(self, error: BaseException) -> bool:
        rules = self.rules
        worked = rules.credential.has_succeeded
        return (
            rules.classifier.at_primary(error, credential_worked=worked)
            is not PrimaryErrorClass.OUTAGE
        )

    def first_attempt_succeeded(self, entity: Entity) -> None:
        """A send went straight to the primary, as nearly all do."""
        self.rules.credential.has_succeeded = True
        if entity.failover.health is Health.HEALTHY:
            entity.failover.success_count += 1
        else:
            self.publish(entity.failover.send_succeeded(self.now_s()))

    # -- diversion wakes the waiting (P22) ------------------------------------------------------

    def _interrupt(self, entity: Entity, *, again: bool = False) -> None:
        """The entity is diverted: sends that wait for the primary go on to the backlog now.

        Again after a while for those that are still there: the SDK can swallow a cancellation
        (``wait_for`` before Python 3.12).
        """
        for link in tuple(entity.direct):
            link.interrupt()
        attempts = entity.attempts
        waiting = [task for task, count in attempts.items() if not again or count]
        for task in waiting:
            if task is not asyncio.current_task():
                attempts[task] += 1
                task.cancel()
        if waiting:
            loop = asyncio.get_running_loop()
            loop.call_later(INTERRUPT_AGAIN_S, partial(self._interrupt, entity, again=True))

    def interruption(
        self,
        entity: Entity,
        task: asyncio.Task[Any],
        cancelled: asyncio.CancelledError,
        before: int,
    ) -> SendInterrupted | None:
        """What to make of a cancelled attempt at the primary; None: its caller has left.

        ``before`` is how often the task had been cancelled before the attempt: one that sends
        while it cleans up has not left.
        """
        left, interruptions = task.cancelling(), entity.attempts[task]
        for _ in range(interruptions):
            left = task.uncancel()
        entity.attempts[task] = 0
        if left > before or not interruptions:
            return None
        return SendInterrupted(path=entity.failover.path, was_sent=may_have_left(cancelled))

    @property
    def is_anything_diverted(self) -> bool:
        return any(entity.failover.is_diverted for entity in self.entities.values())

    # -- events -------------------------------------------------------------------------------

    def publish(self, events: Iterable[Event]) -> None:
        """Publish what happened, and wake whoever waits for a change."""
        events = list(events)
        if events:
            for event in events:
                if isinstance(event, Diverted):
                    self._interrupt(self.entities[event.path])
            if any(isinstance(event, Restored) for event in events):
                self.outage = ""  # One entity that came home: the primary can be contacted.
            self.hub.publish(events)
            self.notifier.notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityHealth:
    """One queue or topic, as this factory knows it."""

    path: str
    state: Health
    is_diverted: bool
    """Whether sends go to the backlog now."""
    since: datetime | None
    """When the state last changed; None if it never did."""
    reason: str
    epoch: int
    """How often it was diverted."""
    sends_under_way: int
    messages_diverted: int
    """Messages that this factory has put into the backlog for it."""
    last_error: str
    """The last attempt that failed, at the primary or in the backlog."""
    last_ping_error: str
    """What the last ping of a diverted entity met; empty when it succeeded (P23)."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """The backlog queues that no sender of the factory uses now, each with the reason."""
    backlog_error: str = ""
    """Why the pair has no backlog yet, or nothing: until then no send can be diverted (P19)."""


def health_of(path: str, routing: SendRouter) -> EntityHealth:
    """Also of an entity that was not used yet."""
    entity, withdrawn = routing.entities.get(path), routing.rules.rotation.withdrawn_reasons
    if entity is None:
        return EntityHealth(
            path=path,
            state=Health.HEALTHY,
            is_diverted=False,
            since=None,
            reason="",
            epoch=0,
            sends_under_way=0,
            messages_diverted=0,
            last_error="",
            last_ping_error="",
            withdrawn=withdrawn,
            backlog_error=routing.backlog_error,
        )
    failover = entity.failover
    return EntityHealth(
        path=path,
        state=failover.health,
        is_diverted=failover.is_diverted,
        since=utc_at(failover.since_s) if failover.since_s else None,
        reason=failover.reason,
        epoch=failover.epoch,
        sends_under_way=entity.sends_under_way + len(entity.direct),
        messages_diverted=entity.messages_diverted,
        last_error=entity.last_error,
        last_ping_error=failover.last_ping_error,
        withdrawn=withdrawn,
        backlog_error=routing.backlog_error,
    )
