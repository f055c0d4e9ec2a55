"""What a topic and a subscription are told to be.

Both are described like a queue, because the machine of a queue runs them: a topic keeps what is
scheduled until it is due, a subscription is a queue that nobody can send to. What they cannot
have is refused unless it is left at its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from twinbus.broker.entities.description import QueueDescription
from twinbus.errors import ConfigurationError

__all__ = ["SUBSCRIPTION_NAME_LENGTH_MAX", "SubscriptionDescription", "TopicDescription"]

# Azure's limit for the name of a subscription.
SUBSCRIPTION_NAME_LENGTH_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription(QueueDescription):
    """The properties of one topic."""

    kind: ClassVar[str] = "topic"
    gives_messages: ClassVar[bool] = False

    support_ordering: bool = True
    """Kept and reported; messages of one sender keep their order either way."""

    def __post_init__(self) -> None:
        QueueDescription.__post_init__(self)
        _refuse_foreign(
            self,
            "lock_duration_ms",
            "max_delivery_count",
            "dead_lettering_on_expiration",
            "requires_session",
            "forward_to",
            "forward_dead_lettered_messages_to",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription(QueueDescription):
    """The properties of one subscription; its path is ``<topic>/subscriptions/<name>``."""

    kind: ClassVar[str] = "subscription"
    takes_messages: ClassVar[bool] = False

    dead_lettering_on_filter_errors: bool = True
    """Whether a message that a rule cannot be applied to goes to the dead-letter queue."""

    def __post_init__(self) -> None:
        QueueDescription.__post_init__(self)
        _refuse_foreign(
            self,
            "requires_duplicate_detection",
            "duplicate_detection_window_ms",
            "enable_partitioning",
            "authorization_rules",
        )

    def _check_shape(self, canonical: str) -> None:
        segments = canonical.split("/")
        if len(segments) < 3 or segments[-2] != "subscriptions":
            raise ConfigurationError(
                f"{self.path!r} is not the path of a subscription",
                hint="Write it as <topic>/subscriptions/<name>",
            )
        if len(segments[-1]) > SUBSCRIPTION_NAME_LENGTH_MAX:
            raise ConfigurationError(
                f"the name of a subscription has at most {SUBSCRIPTION_NAME_LENGTH_MAX} characters"
            )

    @property
    def topic_path(self) -> str:
        return self.path.rsplit("/", 2)[0]

    @property
    def name(self) -> str:
        """The name as its creator wrote it."""
        return self.display_path.rsplit("/", 1)[1]


def _refuse_foreign(description: QueueDescription, *names: str) -> None:
    defaults: Mapping[str, object] = {item.name: item.default for item in fields(description)}
    for name in names:
        value = getattr(description, name)
        if name == "authorization_rules":
            is_default = not list(description.authorization_rules)
        else:
            is_default = value == defaults[name]
        if not is_default:
            raise ConfigurationError(
                f"a {description.kind} has no {name}, asked for by {description.path!r}",
                hint=f"Leave {name} out",
            )
