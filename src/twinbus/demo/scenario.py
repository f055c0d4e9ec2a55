"""The scenario of the demo, the check of its deliveries, and its result.

What the demo does: where messages go, how many, for how long.

What came of the demo: for people, and as one JSON object for programs.

Who sent what, what arrived where, and what is missing.

    attempted --acknowledged--> expected in every place of its entity --arrived--> delivered
        '-----failed-----> may arrive all the same

Rule 1: one seed, the same messages: their sizes and contents, and the moment of the kill.
Rule 2: a message is delivered when it has arrived in every place: a topic's in each subscription.
Rule 3: lost is what was acknowledged and is not delivered. Unexpected is what nobody sent there.
Rule 4: no clock and no network here; moments come in as arguments.
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
"""Where a message to an entity arrives: the queue itself, or every subscription of the topic."""

# Beyond this the demo measures this program and no longer the pair.
RATE_MAX: Final = 2_000.0
OUTAGE_S_MAX: Final = 600.0
_BODY_BYTES: Final = (100, 2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScenario:
    """One run."""

    seed: int = 1
    outage_s: float = 20.0
    """From the kill to the moment when the primary is started again."""
    rate_per_s: float = 200.0
    """Messages a second, all entities together."""
    calm_s: float = 6.0
    """How long everything is well before the kill, about."""

    def __post_init__(self) -> None:
        _check("--outage", self.outage_s, 1.0, OUTAGE_S_MAX, "seconds")
        _check("--rate", self.rate_per_s, 1.0, RATE_MAX, "messages a second")

    @property
    def kill_after_s(self) -> float:
        return self.calm_s + Random(f"{self.seed}-kill").random()

    def bodies(self, entity: str) -> Iterator[bytes]:
        """What is sent to one entity, for ever."""
        chance = Random(f"{self.seed}-{entity}")
        while True:
            yield chance.randbytes(chance.randint(*_BODY_BYTES))


def _check(name: str, value: float, low: float, high: float, unit: str) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigurationError(
            f"{name} is {value:g} {unit}", hint=f"Use {low:g} to {high:g} {unit}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The closed books."""

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
    """Billable ones, of both namespaces."""
    cost: float
    """What the outage cost on top of the messages themselves."""
    currency: str
    does_close: bool
    """Whether the books that Spark made of the logs close, too."""
    verdict: str

    @property
    def is_good(self) -> bool:
        """Whether everything that was promised has happened."""
        wrong = self.lost or self.unexpected or self.failed_sends or not self.does_close
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
            ("delivered twice", f"{self.duplicates:,}"),
            ("from nowhere", f"{len(self.unexpected):,}"),
            ("failed sends", f"{self.failed_sends:,}"),
            ("failover", f"{self.failover_seconds:.2f} s"),
            ("brought home by the syphon", f"{self.drained:,}"),
            ("at", f"{self.drain_messages_per_second:,.0f} messages a second"),
            ("billable operations", f"{self.operations:,}"),
            ("cost of the outage", f"{money(Decimal(str(self.cost)))} {self.currency}"),
            ("the logs", self.verdict),
        ]


class DeliveryCheck:
    """The counts of one run, message by message."""

    def __init__(self, destinations: Mapping[str, tuple[str, ...]]) -> None:
        self._destinations = destinations
        self._attempted: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._acknowledged: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._detoured: dict[str, set[str]] = {entity: set() for entity in destinations}
        self._arrived: dict[str, Counter[str]] = {
            place: Counter() for places in destinations.values() for place in places
        }
        self.failed_sends = 0
        """Messages whose send ended with an error."""

    # -- what happens -------------------------------------------------------------------------

    def attempt(self, entity: str, ids: Iterable[str]) -> None:
        self._attempted[entity].update(ids)

    def acknowledge(self, entity: str, ids: Iterable[str], *, is_detoured: bool) -> None:
        self._acknowledged[entity].update(ids)
        if is_detoured:
            self._detoured[entity].update(ids)

    def fail(self, count: int) -> None:
        self.failed_sends += count

    def arrive(self, place: str, message_id: str) -> None:
        self._arrived[place][message_id] += 1

    # -- what came of it ----------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self._acknowledged.values()))

    @property
    def detoured(self) -> int:
        """Messages that were acknowledged while their entity was diverted."""
        return sum(map(len, self._detoured.values()))

    @property
    def diverted_missing(self) -> int:
        """Of these, messages that have not arrived yet."""
        return sum(len(self._missing(entity, ids)) for entity, ids in self._detoured.items())

    @property
    def copies(self) -> int:
        """Everything that arrived, whatever it was."""
        return sum(counter.total() for counter in self._arrived.values())

    @property
    def lost(self) -> list[str]:
        """The ids of what was acknowledged and has not arrived everywhere."""
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
        """Copies beyond the first in a place."""
        return sum(counter.total() - len(counter) for counter in self._arrived.values())

    @property
    def unexpected(self) -> list[str]:
        """The ids of what arrived where nobody had sent it."""
        return sorted(
            message_id
            for entity, places in self._destinations.items()
            for place in places
            for message_id in self._arrived[place].keys() - self._attempted[entity]
        )

    def _missing(self, entity: str, ids: set[str]) -> set[str]:
        places = self._destinations[entity]
        return {each for place in places for each in ids - self._arrived[place].keys()}
