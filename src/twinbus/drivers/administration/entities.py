"""Queues, topics and subscriptions as a client sees them: frozen values.

Rule 1: the defaults are the service's own, so a value built with a path alone describes what the
        service would create for that path.
Rule 2: None for a lifetime is "never". Counts are those of the time of the request; two entities
        that differ only in counts are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

__all__ = [
    "MessageCounts",
    "NamespaceInfo",
    "QueueProperties",
    "SubscriptionProperties",
    "TopicProperties",
]

_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCounts:
    """The number of messages of an entity, by state."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return (
            self.active
            + self.dead_letter
            + self.scheduled
            + self.transfer
            + self.transfer_dead_letter
        )


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """Name and tier of a namespace."""

    name: str
    messaging_sku: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """A queue."""

    path: str
    lock_duration: timedelta = timedelta(minutes=1)
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: timedelta | None = None
    enable_dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: timedelta = timedelta(minutes=10)
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool = False
    forward_to: str | None = None
    """The path of another entity of the same namespace."""
    user_metadata: str = ""
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None
    """None: the default of the service."""
    counts: MessageCounts = field(default=MessageCounts(), compare=False)
    size_bytes: int = field(default=0, compare=False)

    @property
    def percent_full(self) -> float:
        """The used share of its quota, in percent."""
        return 100 * self.size_bytes / (self.max_size_in_megabytes * _MEGABYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProperties:
    """A topic."""

    path: str
    default_message_time_to_live: timedelta | None = None
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: timedelta = timedelta(minutes=10)
    enable_batched_operations: bool = True
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool = False
    user_metadata: str = ""
    max_message_size_in_kilobytes: int | None = None
    """None: the default of the service."""
    counts: MessageCounts = field(default=MessageCounts(), compare=False)
    """Scheduled messages; the others are in the subscriptions."""
    size_bytes: int = field(default=0, compare=False)
    subscription_count: int = field(default=0, compare=False)

    @property
    def percent_full(self) -> float:
        """The used share of its quota, in percent."""
        return 100 * self.size_bytes / (self.max_size_in_megabytes * _MEGABYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionProperties:
    """A subscription of a topic."""

    topic: str
    name: str
    lock_duration: timedelta = timedelta(minutes=1)
    requires_session: bool = False
    default_message_time_to_live: timedelta | None = None
    enable_dead_lettering_on_message_expiration: bool = False
    enable_dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    """The path of another entity of the same namespace."""
    user_metadata: str = ""
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: timedelta | None = None
    counts: MessageCounts = field(default=MessageCounts(), compare=False)
