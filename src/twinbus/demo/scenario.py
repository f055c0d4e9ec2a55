"""The scenario of the demo, the check of its deliveries, and its result.

    attempted --acknowledged--> expected at every destination of its entity --arrived--> delivered
        '-----failed-----> may still arrive

Rule 1: the same seed gives the same messages, with their sizes and contents, and the same time of
        the kill.
Rule 2: a message is delivered when it has arrived at every destination: for a topic, in each
        subscription.
Rule 3: a message is lost if it was acknowledged and not delivered. It is unexpected if it arrives
        where it was not sent.
Rule 4: this module uses no clock and no network; times are arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, Final

from twinbus.cost.prices import money
from twinbus.errors import ConfigurationError

__all__ = [
    "BACKLOG_QUEUES",
    "DESTINATIONS",
    "PRIMARY",
    "QUEUES",
    "SECONDARY",
    "SUBSCRIPTIONS",
    "TOPIC",
    "DeliveryCheck",
    "DemoScenario",
    "Result",
]

PRIMARY: Final = "east"
SECONDARY: Final = "west"
QUEUES: Final = ("orders", "invoices", "shipments")
TOPIC: Final = "events"
SUBSCRIPTIONS: Final = ("billing", "audit")
BACKLOG_QUEUES: Final = 4

DESTINATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **{queue: (queue,) for queue in QUEUES},
    TOPIC: tuple(f"{TOPIC}/subscriptions/{name}" for name in SUBSCRIPTIONS),
}
"""The destinations of each entity: the queue itself, or every subscription of the topic."""

# Above this the demo would measure this program and not the pair.
RATE_MAX: Final = 2_000.0
OUTAGE_S_MAX: Final = 600.0
_BODY_BYTES: Final = (100, 2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScenario:
    """The options of one run."""

    seed: int = 1
    outage_s: float = 20.0
    """From the kill until the primary is started again."""
    rate_per_s: float = 200.0
    """Messages per second, to all entities together."""
    calm_s: float = 6.0
    """Approximate time before the kill."""

    def __post_init__(self) -> None:
        _check("--outage", self.outage_s, 1.0, OUTAGE_S_MAX, "seconds")
        _check("--rate", self.rate_per_s, 1.0, RATE_MAX, "messages per second")

    @property
    def kill_after_s(self) -> float:
        return self.calm_s + Random(f"{self.seed}-kill").random()

    def bodies(self, entity: str) -> Iterator[bytes]:
        """The bodies of the messages to one entity, without end."""
        chance = Random(f"{self.seed}-{entity}")
        while True:
            yield chance.randbytes(chance.randint(*_BODY_BYTES))


def _check(name: str, value: float, low: float, high: float, unit: str) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigurationError(
            f"Invalid value for {name}: {value:g} {unit}", hint=f"Use {low:g} to {high:g} {unit}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run."""

    sent: int
    delivered: int
    lost: tuple[str, ...]
    """Message ids."""
    duplicates: int
    unexpected: tuple[str, ...]
    failed_sends: int
    failover_seconds: float
    drained: int
    drain_messages_per_second: float
    operations: int
    """Billable operations on both namespaces."""
    cost: float
    """Cost of the outage: the operations that it has added."""
    currency: str
    is_reconciled: bool
    """Whether the reconciliation of the logs, on Spark, finds every message."""
    verdict: str
    """The result of the reconciliation, as a sentence."""

    @property
    def is_good(self) -> bool:
        """Whether every message was delivered and no send failed."""
        wrong = self.lost or self.unexpected or self.failed_sends or not self.is_reconciled
        return bool(self.delivered) and not wrong

    def to_json(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "delivered": self.delivered,
            "lost": len(self.lost),
            "duplicates": self.duplicates,
            "unexpected": len(self.unexpected),
            "failed_sends": self.failed_sends,
            "failover_seconds": round(self.failover_seconds, 3),
            "drained": self.drained,
            "drain_messages_per_second": round(self.drain_messages_per_second, 1),
            "operations": self.operations,
            "cost": self.cost,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for a table."""
        return [
            ("sent", f"{self.sent:,}"),
            ("delivered", f"{self.delivered:,}"),
            ("lost", f"{len(self.lost):,}"),
            ("duplicates", f"{self.duplicates:,}"),
            ("unexpected", f"{len(self.unexpected):,}"),
            ("failed sends", f"{self.failed_sends:,}"),
            ("failover", f"{self.failover_seconds:.2f} s"),
            ("moved by the syphon", f"{self.drained:,}"),
            ("drain rate", f"{self.drain_messages_per_second:,.0f} messages per second"),
            ("billable operations", f"{self.operations:,}"),
            ("cost of the outage", f"{money(Decimal(str(self.cost)))} {self.currency}"),
            ("reconciliation", self.verdict),
        ]


class DeliveryCheck:
    """Which messages were sent, and which have arrived where."""

    def __init__(self, destinations: Mapping[str, tuple[str, ...]]) -> None:
        self._destinations = destinations
        self._attempted: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._acknowledged: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._diverted: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._arrived: dict[str, Counter[str]] = {
            place: Counter() for places in destinations.values() for place in places
        }
        self.failed_sends = 0
        """Messages whose send has failed."""

    # -- input --------------------------------------------------------------------------------

    def attempt(self, entity: str, ids: Iterable[str]) -> None:
        self._attempted[entity].update(ids)

    def acknowledge(self, entity: str, ids: Iterable[str], *, is_diverted: bool) -> None:
        self._acknowledged[entity].update(ids)
        if is_diverted:
            self._diverted[entity].update(ids)

    def fail(self, count: int) -> None:
        self.failed_sends += count

    def arrive(self, place: str, message_id: str) -> None:
        self._arrived[place][message_id] += 1

    # -- results ------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self._acknowledged.values()))

    @property
    def messages_diverted(self) -> int:
        """Messages that were acknowledged while their entity was diverted."""
        return sum(map(len, self._diverted.values()))

    @property
    def diverted_missing(self) -> int:
        """Diverted messages that have not arrived yet."""
        return sum(len(self._missing(entity, ids)) for entity, ids in self._diverted.items())

    @property
    def copies(self) -> int:
        """All messages that have arrived, duplicates included."""
        return sum(counter.total() for counter in self._arrived.values())

    @property
    def lost(self) -> list[str]:
        """The ids of messages that were acknowledged and have not arrived at every destination."""
        return sorted(
            message_id
            for entity, ids in self._acknowledged.items()
            for message_id in self._missing(entity, ids)
        )

    @property
    def delivered(self) -> int:
        return self.sent - len(self.lost)

    @property
    def duplicates(self) -> int:
        """Copies after the first at a destination."""
        return sum(counter.total() - len(counter) for counter in self._arrived.values())

    @property
    def unexpected(self) -> list[str]:
        """The ids of messages that have arrived where they were not sent."""
        return sorted(
            message_id
            for entity, places in self._destinations.items()
            for place in places
            for message_id in self._arrived[place].keys() - self._attempted[entity]
        )

    def _missing(self, entity: str, ids: set[str]) -> set[str]:
        places = self._destinations[entity]
        return {each for place in places for each in ids - self._arrived[place].keys()}
