"""Where the sends of a factory go, and what is known about its entities.

    unpaired   every entity is held at home: retries, and otherwise nothing but the driver
    paired     one failover machine for each entity, one rotation for all senders

Rule 1: all senders of a factory share one routing; pairing replaces it as a whole, so a send
        sees either the old one or the new one.
Rule 2: everything that happens goes through ``tell``: subscribers hear of it, and whoever waits
        looks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

from twinbus.core.events import Event, Restored
from twinbus.core.failover import Failover, FailoverPolicy, Health
from twinbus.core.retry import RetryPolicy
from twinbus.core.rotation import BacklogRotation
from twinbus.core.sending import CredentialMemory, SendRules
from twinbus.drivers.port import Driver
from twinbus.entity_path import parse_entity_path
from twinbus.pairing.hub import EventHub
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.pulse import Pulse

__all__ = ["ALL_PATHS", "Backlog", "Command", "Entity", "Routing"]

ALL_PATHS: Final = "*"
"""Every entity of the factory, those included that it has not used yet."""

Command: TypeAlias = Callable[[Failover, float], list[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The place where diverted messages wait."""

    driver: Driver
    queues: tuple[str, ...]
    message_bytes_max: int
    """What a backlog queue takes, aliases included."""
    batch_bytes_max: int


@dataclass(slots=True)
class Entity:
    """One queue or topic of the primary, as all senders of the factory know it."""

    failover: Failover
    sends_under_way: int = 0
    messages_diverted: int = 0
    """Since the process started."""
    last_error: str = ""


@dataclass(slots=True, kw_only=True)
class Routing:
    """What all sends of a factory share."""

    hub: EventHub
    rules: SendRules
    policy: FailoverPolicy = field(default_factory=FailoverPolicy)
    backlog: Backlog | None = None
    outage: str = ""
    """Why the primary could not be contacted when the pair was made: its entities begin
    diverted (P17)."""
    pulse: Pulse = field(default_factory=Pulse)
    rng: Random = field(default_factory=Random)
    now_s: Callable[[], float] = time.monotonic
    entities: dict[str, Entity] = field(default_factory=dict)
    _standing_order: Command | None = None
    """What was said of all paths, for those that are used later."""

    @classmethod
    def unpaired(cls, hub: EventHub, retry: RetryPolicy, credential: CredentialMemory) -> Routing:
        rules = SendRules(rotation=BacklogRotation(()), credential=credential, retry=retry)
        return cls(hub=hub, rules=rules)

    def paired(
        self, options: SendAvailabilityPairedNamespaceOptions, backlog: Backlog, outage: str
    ) -> Routing:
        """The routing of the same factory from now on."""
        rules = SendRules(
            rotation=BacklogRotation(backlog.queues, options.rotation),
            credential=self.rules.credential,
            retry=self.rules.retry,
            classifier=options.classifier,
        )
        policy = FailoverPolicy(
            failover_interval_s=options.failover_interval.total_seconds(),
            ping_interval_s=options.ping_primary_interval.total_seconds(),
        )
        return Routing(hub=self.hub, rules=rules, policy=policy, backlog=backlog, outage=outage)

    # -- entities -----------------------------------------------------------------------------

    def entity(self, path: str) -> Entity:
        """What is known about a canonical path; the first question makes it known."""
        found = self.entities.get(path)
        if found is None:
            found = self.entities[path] = Entity(Failover(path, self.policy))
            self._begin(found.failover)
        return found

    def _begin(self, failover: Failover) -> None:
        now_s = self.now_s()
        if self.backlog is None:
            failover.hold(now_s, "not paired")
            return
        if self.outage:
            self.tell(failover.start_diverted(now_s, self.outage))
        if self._standing_order is not None:
            self.tell(self._standing_order(failover, now_s))

    def command(self, path: str, command: Command) -> None:
        """Carry out what somebody said about one path, or about all of them."""
        if path == ALL_PATHS:
            self._standing_order = command
            if command is not Failover.hold:  # Which leaves everything where it would be.
                self.outage = ""
            paths = list(self.entities)
        else:
            paths = [parse_entity_path(path)]
        for each in paths:
            self.tell(command(self.entity(each).failover, self.now_s()))

    def first_attempt_succeeded(self, entity: Entity) -> None:
        """A send went straight to the primary, as nearly all do."""
        self.rules.credential.has_worked = True
        if entity.failover.health is not Health.HEALTHY:
            self.tell(entity.failover.send_succeeded(self.now_s()))

    @property
    def is_anything_diverted(self) -> bool:
        return any(entity.failover.is_diverted for entity in self.entities.values())

    # -- events -------------------------------------------------------------------------------

    def tell(self, events: Iterable[Event]) -> None:
        """Publish what happened, and wake whoever waits for a change."""
        events = list(events)
        if events:
            if any(isinstance(event, Restored) for event in events):
                self.outage = ""  # One entity that came home: the primary can be contacted.
            self.hub.publish(events)
            self.pulse.ring()
