"""What the demo does: where messages go, how many, for how long.

Rule 1: one seed, the same messages: their sizes and contents, and the moment of the kill.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from twinbus.errors import ConfigurationError

__all__ = [
    "BACKLOG_QUEUES",
    "DESTINATIONS",
    "PRIMARY",
    "QUEUES",
    "SECONDARY",
    "SUBSCRIPTIONS",
    "TOPIC",
    "DemoScenario",
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
