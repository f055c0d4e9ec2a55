"""What messages can be received from: a queue, a subscription, or the dead letters of one.

orders   news/subscriptions/all   orders/$DeadLetterQueue
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.entity_path import parse_address
from twinbus.errors import InvalidEntityPath

if TYPE_CHECKING:
    from twinbus.drivers.management import (
        AdministrationClient,
        QueueProperties,
        SubscriptionProperties,
    )

__all__ = ["SUBSCRIPTIONS", "MessageSource", "source_of", "split_subscription"]

SUBSCRIPTIONS: Final = "/subscriptions/"
_SUBSCRIPTIONS: Final = re.compile(re.escape(SUBSCRIPTIONS), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MessageSource:
    """A place that hands out messages."""

    entity: str
    """The queue, or ``<topic>/subscriptions/<name>``."""
    is_dead_letters: bool = False

    @property
    def path(self) -> str:
        """Where a receiver attaches."""
        return f"{self.entity}/$DeadLetterQueue" if self.is_dead_letters else self.entity

    @property
    def topic(self) -> str | None:
        """The topic of a subscription; None for a queue."""
        topic, found, _name = self.entity.partition(SUBSCRIPTIONS)
        return topic if found else None

    def __str__(self) -> str:
        """As it stands in a sentence."""
        return (
            f"the dead-letter queue of {self.entity!r}"
            if self.is_dead_letters
            else repr(self.entity)
        )

    async def described(
        self, management: AdministrationClient
    ) -> QueueProperties | SubscriptionProperties:
        """Its properties; raises EntityNotFound."""
        topic, found, name = self.entity.partition(SUBSCRIPTIONS)
        entity: QueueProperties | SubscriptionProperties | None
        if found:
            entity = await management.get_subscription(topic, name)
        else:
            entity = await management.get_queue(topic)
        if entity is None:
            from twinbus.service_errors import EntityNotFound

            kind = "subscription" if found else "queue"
            raise EntityNotFound(
                f"there is no {kind} {self.entity!r}", path=self.entity, hint="Check its spelling"
            )
        return entity


def split_subscription(path: str) -> tuple[str, str] | None:
    """Topic and name in ``TOPIC/subscriptions/NAME``; None for another path."""
    parts = _SUBSCRIPTIONS.split(path)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def source_of(path: str, *, dead_letters: bool = False) -> MessageSource:
    """The place with this path; raises InvalidEntityPath."""
    address = parse_address(path)
    if address.node != "entity" or address.sub_queue == "transfer-dead-letter":
        raise InvalidEntityPath(
            f"nobody receives messages from {path!r:.80}",
            hint="Name a queue, <topic>/subscriptions/<name>, or one of them with --dead-letters",
        )
    return MessageSource(address.entity, dead_letters or address.sub_queue == "dead-letter")
