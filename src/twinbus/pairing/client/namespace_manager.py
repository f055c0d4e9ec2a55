"""NamespaceManager: the entities of one namespace, for applications.

    async with NamespaceManager.from_connection_string(text) as manager:
        if not await manager.queue_exists("orders"):
            await manager.create_queue("orders")

Every call requires the Manage claim. A manager keeps no connection between calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final

from twinbus.common.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.drivers.administration import (
    AdministrationClient,
    AdministrationEndpoint,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    credential_in,
    credential_of,
)
from twinbus.drivers.interface import NamespaceAddress
from twinbus.errors import EntityNotFound

__all__ = ["NamespaceManager"]

DEFAULT_TIMEOUT_S: Final = 60.0


class NamespaceManager:
    """One namespace, by its host name and a credential of azure-identity."""

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
        self._bind(
            namespace_at(fully_qualified_namespace),
            credential_of(credential),
            namespace_name=namespace_name,
            administration_port=administration_port,
            ca_file=ca_file,
            timeout_s=timeout_s,
        )

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        namespace_name: str | None = None,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> NamespaceManager:
        """A manager with the key or the signature of a connection string.

        ``namespace_name`` is the name of the namespace, if its host name does not contain it;
        ``administration_port`` its port for HTTP, if it is not the default (official emulator:
        5300); ``ca_file`` a PEM file of the authority that signed its certificate.
        """
        parsed = parse_connection_string(connection_string)
        manager = cls.__new__(cls)
        manager._bind(
            parsed,
            credential_in(parsed),
            namespace_name=namespace_name,
            administration_port=administration_port,
            ca_file=ca_file,
            timeout_s=timeout_s,
        )
        return manager

    @classmethod
    def over(cls, client: AdministrationClient, address: NamespaceAddress) -> NamespaceManager:
        """A manager that uses an existing client."""
        manager = cls.__new__(cls)
        manager.address, manager.client, manager._name = address, client, None
        return manager

    def _bind(
        self,
        parsed: ConnectionString,
        credential: Credential,
        *,
        namespace_name: str | None,
        administration_port: int | None,
        ca_file: str | Path | None,
        timeout_s: float,
    ) -> None:
        self.address = NamespaceAddress(parsed.host, parsed.effective_port)
        """The address of the namespace for messages."""
        endpoint = AdministrationEndpoint.of(parsed, administration_port=administration_port)
        self.client = AdministrationClient(
            endpoint, credential, ca_file=ca_file, timeout_s=timeout_s
        )
        self._name = namespace_name

    async def namespace_name(self) -> str:
        """The name that the namespace reports; requested once."""
        if self._name is None:
            self._name = (await self.client.namespace_info()).name
        return self._name

    # -- queues ---------------------------------------------------------------------------

    async def get_queue(self, path: str) -> QueueProperties:
        """A queue with its counts; raises EntityNotFound."""
        found = await self.client.get_queue(path)
        if found is None:
            raise self._missing("queue", path)
        return found

    async def queue_exists(self, path: str) -> bool:
        return await self.client.get_queue(path) is not None

    async def create_queue(self, queue: str | QueueProperties) -> QueueProperties:
        """Create a queue, by its name or its properties; raises EntityExists."""
        described = QueueProperties(path=queue) if isinstance(queue, str) else queue
        return await self.client.create_queue(described)

    async def delete_queue(self, path: str) -> None:
        """Delete a queue with everything in it; raises EntityNotFound."""
        await self.client.delete_queue(path)

    def get_queues(self, prefix: str = "") -> AsyncGenerator[QueueProperties, None]:
        """All queues, or those whose path begins with ``prefix``, a hundred per request."""
        return self.client.list_queues(prefix)

    # -- topics ---------------------------------------------------------------------------

    async def get_topic(self, path: str) -> TopicProperties:
        """A topic; raises EntityNotFound."""
        found = await self.client.get_topic(path)
        if found is None:
            raise self._missing("topic", path)
        return found

    async def topic_exists(self, path: str) -> bool:
        return await self.client.get_topic(path) is not None

    async def create_topic(self, topic: str | TopicProperties) -> TopicProperties:
        """Create a topic, by its name or its properties; raises EntityExists."""
        described = TopicProperties(path=topic) if isinstance(topic, str) else topic
        return await self.client.create_topic(described)

    async def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions; raises EntityNotFound."""
        await self.client.delete_topic(path)

    def get_topics(self, prefix: str = "") -> AsyncIterator[TopicProperties]:
        """All topics, or those whose path begins with ``prefix``."""
        return self.client.list_topics(prefix)

    # -- subscriptions --------------------------------------------------------------------

    async def get_subscription(self, topic: str, name: str) -> SubscriptionProperties:
        """A subscription with its counts; raises EntityNotFound."""
        found = await self.client.get_subscription(topic, name)
        if found is None:
            raise self._missing("subscription", f"{topic}/{name}")
        return found

    async def subscription_exists(self, topic: str, name: str) -> bool:
        return await self.client.get_subscription(topic, name) is not None

    async def create_subscription(
        self, topic: str | SubscriptionProperties, name: str = ""
    ) -> SubscriptionProperties:
        """Create a subscription that gets every message, by its names or its properties."""
        described = (
            SubscriptionProperties(topic=topic, name=name) if isinstance(topic, str) else topic
        )
        return await self.client.create_subscription(described)

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription with everything in it; raises EntityNotFound."""
        await self.client.delete_subscription(topic, name)

    def get_subscriptions(self, topic: str) -> AsyncIterator[SubscriptionProperties]:
        """The subscriptions of a topic."""
        return self.client.list_subscriptions(topic)

    # -- lifetime -------------------------------------------------------------------------

    async def close(self) -> None:
        """No effect: no connection is open between calls. For ``async with``."""

    async def __aenter__(self) -> NamespaceManager:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _missing(self, kind: str, path: str) -> EntityNotFound:
        return EntityNotFound(
            f"{kind.capitalize()} {path!r} not found in namespace {self.address}",
            path=path,
            hint=f"Create the {kind} first",
        )
