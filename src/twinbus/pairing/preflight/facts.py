"""What was seen of two namespaces, before anybody judges it.

An error that stands in a field is what the question ended with; None is a good answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinbus.drivers.management import QueueProperties, TopicProperties
from twinbus.drivers.port import NamespaceAddress
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.pairing.environment import Role

__all__ = [
    "BacklogFacts",
    "EntityFacts",
    "ExpectedLoad",
    "NamespaceFacts",
    "Observations",
    "PingFacts",
]

BACKLOG_QUEUE_COUNT: Final = 10
EXPECTED_OUTAGE_S: Final = 3_600.0
MESSAGE_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedLoad:
    """What the pair has to bear."""

    expected_outage_s: float = EXPECTED_OUTAGE_S
    rate_per_s: float | None = None
    """Messages that are sent each second, to all entities together."""
    message_bytes: int = MESSAGE_BYTES
    backlog_queue_count: int = BACKLOG_QUEUE_COUNT
    has_syphon: bool = True
    """Whether these credentials are also those of the syphon."""
    allow_lossy: bool = False
    """Whether the application pairs with allow_lossy_backlog."""

    def __post_init__(self) -> None:
        if not self.expected_outage_s > 0 or self.message_bytes < 1 or self.backlog_queue_count < 1:
            raise ConfigurationError(
                "an expected outage, a message's size and the number of backlog queues are above 0",
                hint="Leave out what you do not know",
            )
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise ConfigurationError(
                f"a rate of {self.rate_per_s!r} messages a second is no rate",
                hint="Leave it out if you do not know it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """One of the two."""

    role: Role
    address: NamespaceAddress
    ip_addresses: frozenset[str] = frozenset()
    amqp: TwinbusError | None = None
    management: TwinbusError | None = None
    clock_ahead_s: float | None = None
    """None when it was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFacts:
    """A queue or topic of the primary."""

    path: str
    properties: QueueProperties | TopicProperties | None = None
    """None when nobody would say."""
    send: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogFacts:
    """A backlog queue of the secondary."""

    path: str
    properties: QueueProperties | None = None
    """None when it does not exist, or nobody would say."""
    send: TwinbusError | None = None
    listen: TwinbusError | None = None
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFacts:
    """What became of a ping."""

    path: str
    was_seen: bool | None = None
    """None when nobody could look."""
    error: TwinbusError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen."""

    expectation: ExpectedLoad
    primary: NamespaceFacts
    secondary: NamespaceFacts
    primary_name: str | TwinbusError
    entities: tuple[EntityFacts, ...] = ()
    backlog: tuple[BacklogFacts, ...] = ()
    pings: tuple[PingFacts, ...] = ()
    pings_left_out: bool = False
    """Whether nobody wanted any."""
