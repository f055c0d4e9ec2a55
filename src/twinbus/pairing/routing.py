"""Where the sends of a factory go, and the health of its entities.

    ChangeNotifier   wakes all waiting tasks of a factory when its state has changed
    SendRouter       the routing that all senders of a factory share
        unpaired         every entity is held on the primary: the driver with retries
        incomplete       as unpaired, until the secondary responds (P19)
        paired           one failover state machine for each entity, one rotation for all senders
    EntityHealth     the health of one entity as a frozen value (P16)

Rule 1: all senders of a factory share one routing; pairing replaces it as a whole, so a send
        sees either the old one or the new one. An incomplete pair is completed in place, so that
        sends in progress can still be diverted.
Rule 2: every change goes through ``publish``: subscribers get an event, and waiting tasks check
        the state again.
Rule 3: a send that waits for the primary when its entity is diverted is interrupted: its
        task is cancelled, and the cancellation is taken back afterwards, as asyncio.timeout does
        (P22).
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
    """Wakes waiting tasks after a change; they check the state themselves."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        # Each is woken once: many notifications in a row would wake many tasks in vain.
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, timeout_s: float | None) -> None:
        """Return at the next change, or after the timeout."""
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
"""Every entity of the factory, including those that it has not used yet."""

# A cancelled send ends within one or two iterations of the loop.
INTERRUPT_AGAIN_S: Final = 0.05

Command: TypeAlias = Callable[[EntityFailover, float], list[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The backlog queues, and what they accept."""

    driver: Driver
    queues: tuple[str, ...]
    message_bytes_max: int
    """Maximum message size of a backlog queue, aliases included."""
    batch_bytes_max: int
    owner: str = ""
    """The mark of this pair, stored on every message (P21)."""


@dataclass(slots=True)
class Entity:
    """One queue or topic of the primary; all senders of the factory share it."""

    failover: EntityFailover
    attempts: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    """The sends that wait for the primary, each with how often it was interrupted."""
    direct: set[DirectLink] = field(default_factory=set)
    """Links on which threads send to it now without the loop."""
    sends_under_way: int = 0
    messages_diverted: int = 0
    """Since the process started."""
    last_error: str = ""
    link_facts: LinkProperties | None = None
    """The link properties that a sender of the factory has received; None before that."""

    def attempt_ended(self, task: asyncio.Task[Any]) -> None:
        """End an attempt at the primary. Interruptions that the driver has swallowed are undone:
        timeouts of the caller would count them as cancellations by the caller."""
        swallowed = self.attempts.pop(task)
        if swallowed:
            for _ in range(swallowed):
                task.uncancel()


@dataclass(slots=True, kw_only=True)
class SendRouter:
    """The state that all sends of a factory share."""

    hub: EventHub
    rules: SendPolicy
    policy: FailoverPolicy = field(default_factory=FailoverPolicy)
    backlog: Backlog | None = None
    backlog_error: str = ""
    """Why a pair has no backlog yet; empty if it has one (P19)."""
    message_bytes_max: int | None = None
    """Maximum size of a message that can be diverted; None if nothing is ever diverted."""
    outage: str = ""
    """Why the primary was unreachable when the pair was created: its entities start diverted
    (P17)."""
    notifier: ChangeNotifier = field(default_factory=ChangeNotifier)
    rng: Random = field(default_factory=Random)
    now_s: Callable[[], float] = time.monotonic
    entities: dict[str, Entity] = field(default_factory=dict)
    _default_command: Command | None = None
    """The last command for all paths, for entities that are used later."""

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
        """A new routing for the factory as a pair. Without a backlog it is incomplete until
        complete() is called."""
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
            # No queue has reported its limit yet.
            message_bytes_max=sys.maxsize if backlog is None else backlog.message_bytes_max,
            outage=outage,
        )

    def complete(self, backlog: Backlog, outage: str) -> None:
        """The secondary has responded (P19). During an outage all used entities are diverted now,
        including sends that wait for the primary (P17, P22)."""
        self.backlog, self.backlog_error, self.outage = backlog, "", outage
        self.message_bytes_max = backlog.message_bytes_max
        self.rules.rotation.add(backlog.queues)
        for entity in list(self.entities.values()):
            entity.failover.mark_healthy(self.now_s(), "backlog ready")
            self._begin(entity.failover)
        self.publish([BacklogReady(self.now_s(), len(backlog.queues))])

    def set_ping_interval(self, interval_s: float) -> None:
        """Change how often diverted entities are pinged."""
        self.policy = replace(self.policy, ping_interval_s=interval_s)
        for entity in self.entities.values():
            entity.failover.set_ping_interval(interval_s, self.now_s())
        self.notifier.notify()

    # -- entities -----------------------------------------------------------------------------

    def entity(self, path: str) -> Entity:
        """The entity of a canonical path; created with the first call."""
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
        """Apply a command to one path, or to all of them."""
        if path == ALL_PATHS:
            self._default_command = command
            if command is not EntityFailover.hold:  # A hold does not change where sends go.
                self.outage = ""
            paths = list(self.entities)
        else:
            paths = [parse_entity_path(path)]
        for each in paths:
            self.publish(command(self.entity(each).failover, self.now_s()))

    def explain_no_backlog(self, error: BaseException) -> None:
        """Add to an error that would have diverted its entity why it could not be diverted."""
        if not isinstance(error, ServiceError) or self._is_caller_error(error):
            return
        sentence = f"The pair has no backlog yet, because {self.hub.secondary} is unreachable"
        error.advise(f"{sentence}: {self.backlog_error}")
        if error.__cause__ is not None:  # The SDK's own error, which the drop-in raises.
            error.__cause__.add_note(error.hint)

    def _is_caller_error(self, error: BaseException) -> bool:
        rules = self.rules
        worked = rules.credential.has_succeeded
        return (
            rules.classifier.at_primary(error, credential_worked=worked)
            is not PrimaryErrorClass.OUTAGE
        )

    def first_attempt_succeeded(self, entity: Entity) -> None:
        """The primary has accepted the first attempt of a send, as in nearly all cases."""
        self.rules.credential.has_succeeded = True
        if entity.failover.health is Health.HEALTHY:
            entity.failover.success_count += 1
        else:
            self.publish(entity.failover.send_succeeded(self.now_s()))

    # -- diversion interrupts waiting sends (P22) -----------------------------------------------

    def _interrupt(self, entity: Entity, *, again: bool = False) -> None:
        """The entity is diverted: sends that wait for the primary continue with the backlog now.

        Repeated for sends that still wait: the SDK can swallow a cancellation (``wait_for``
        before Python 3.12).
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
        """The error of an attempt at the primary that we have interrupted; None if its caller was
        cancelled.

        ``before`` is how often the task had been cancelled before the attempt: a caller that sends
        while it cleans up was not cancelled again.
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
        """Publish events, and wake the tasks that wait for a change."""
        events = list(events)
        if events:
            for event in events:
                if isinstance(event, Diverted):
                    self._interrupt(self.entities[event.path])
            if any(isinstance(event, Restored) for event in events):
                self.outage = ""  # One entity is restored: the primary can be reached.
            self.hub.publish(events)
            self.notifier.notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityHealth:
    """The health of one queue or topic, from the view of this factory."""

    path: str
    state: Health
    is_diverted: bool
    """Whether sends go to the backlog now."""
    since: datetime | None
    """When the state last changed; None if it never changed."""
    reason: str
    epoch: int
    """How often it was diverted."""
    sends_under_way: int
    messages_diverted: int
    """Messages that this factory has sent to the backlog for it."""
    last_error: str
    """The error of the last failed attempt, at the primary or at the backlog."""
    last_ping_error: str
    """The error of the last ping of a diverted entity; empty if it succeeded (P23)."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """The withdrawn backlog queues, each with the reason."""
    backlog_error: str = ""
    """Why the pair has no backlog yet, so that no send can be diverted; empty if it has one
    (P19)."""


def health_of(path: str, routing: SendRouter) -> EntityHealth:
    """The health of an entity, even if it was not used yet."""
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
