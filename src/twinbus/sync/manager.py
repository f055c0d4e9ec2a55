"""NamespaceManager that blocks: the async one, through the portal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from twinbus import aio
from twinbus.drivers.credentials import Credential, IdentityCredential
from twinbus.drivers.management import (
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.port import NamespaceAddress
from twinbus.pairing.manager import DEFAULT_TIMEOUT_S
from twinbus.sync.portal import PORTAL

__all__ = ["NamespaceManager"]


class NamespaceManager:
    """The entities of one namespace. Every call needs the claim Manage."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential | IdentityCredential,
        *,
        namespace_name: str | None = None,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.twin = aio.NamespaceManager(
            fully_qualified_namespace,
            credential,
            namespace_name=namespace_name,
            administration_port=administration_port,
            ca_file=ca_file,
            timeout_s=timeout_s,
        )

    @classmethod
    def of(cls, twin: aio.NamespaceManager) -> Self:
        """The sync face of a manager that lives on the loop."""
        made = cls.__new__(cls)
        made.twin = twin
        return made

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        namespace_name: str | None = None,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Self:
        """A manager with the key or the signature of a connection string."""
        return cls.of(
            aio.NamespaceManager.from_connection_string(
                connection_string,
                namespace_name=namespace_name,
                administration_port=administration_port,
                ca_file=ca_file,
                timeout_s=timeout_s,
            )
        )

    @property
    def address(self) -> NamespaceAddress:
        return self.twin.address

    def namespace_name(self) -> str:
        """What the namespace calls itself."""
        return PORTAL.call(self.twin.namespace_name())

    # -- queues -------------------------------------------------------------------------------

    def get_queue(self, path: str) -> QueueProperties:
        return PORTAL.call(self.twin.get_queue(path))

    def queue_exists(self, path: str) -> bool:
        return PORTAL.call(self.twin.queue_exists(path))

    def create_queue(self, queue: str | QueueProperties) -> QueueProperties:
        return PORTAL.call(self.twin.create_queue(queue))

    def delete_queue(self, path: str) -> None:
        PORTAL.call(self.twin.delete_queue(path))

    def get_queues(self, prefix: str = "") -> Iterator[QueueProperties]:
        return PORTAL.iterate(self.twin.get_queues(prefix))

    # -- topics and subscriptions -------------------------------------------------------------

    def get_topic(self, path: str) -> TopicProperties:
        return PORTAL.call(self.twin.get_topic(path))

    def topic_exists(self, path: str) -> bool:
        return PORTAL.call(self.twin.topic_exists(path))

    def create_topic(self, topic: str | TopicProperties) -> TopicProperties:
        return PORTAL.call(self.twin.create_topic(topic))

    def delete_topic(self, path: str) -> None:
        PORTAL.call(self.twin.delete_topic(path))

    def get_topics(self, prefix: str = "") -> Iterator[TopicProperties]:
        return PORTAL.iterate(self.twin.get_topics(prefix))

    def get_subscription(self, topic: str, name: str) -> SubscriptionProperties:
        return PORTAL.call(self.twin.get_subscription(topic, name))

    def subscription_exists(self, topic: str, name: str) -> bool:
        return PORTAL.call(self.twin.subscription_exists(topic, name))

    def create_subscription(
        self, topic: str | SubscriptionProperties, name: str = ""
    ) -> SubscriptionProperties:
        return PORTAL.call(self.twin.create_subscription(topic, name))

    def delete_subscription(self, topic: str, name: str) -> None:
        PORTAL.call(self.twin.delete_subscription(topic, name))

    def get_subscriptions(self, topic: str) -> Iterator[SubscriptionProperties]:
        return PORTAL.iterate(self.twin.get_subscriptions(topic))

    def close(self) -> None:
        PORTAL.call(self.twin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
