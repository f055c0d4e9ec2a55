"""NamespaceManager, as an application uses it."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.errors import ConfigurationError, EntityExists, EntityNotFound
from twinbus.pairing.client.namespace_manager import NamespaceManager
from twinbus.testing.namespaces import NamespaceFixture


@pytest.fixture
def manager(servicebus: NamespaceFixture) -> NamespaceManager:
    return NamespaceManager.from_connection_string(servicebus.connection_string)


async def test_queues(manager: NamespaceManager) -> None:
    async with manager:
        assert not await manager.queue_exists("orders")
        with pytest.raises(EntityNotFound, match="'orders'"):
            await manager.get_queue("orders")

        made = await manager.create_queue("orders")
        with pytest.raises(EntityExists):
            await manager.create_queue(made)

        assert await manager.queue_exists("orders")
        assert await manager.get_queue("orders") == made
        assert [queue.path async for queue in manager.get_queues("or")] == ["orders"]
        await manager.delete_queue("orders")
        assert not await manager.queue_exists("orders")


async def test_topics_and_subscriptions(manager: NamespaceManager) -> None:
    with pytest.raises(EntityNotFound, match="'news'"):
        await manager.get_topic("news")
    await manager.create_topic("news")
    with pytest.raises(EntityNotFound, match="'news/all'"):
        await manager.get_subscription("news", "all")
    await manager.create_subscription("news", "all")

    assert await manager.topic_exists("news")
    assert (await manager.get_topic("news")).subscription_count == 1
    assert await manager.subscription_exists("news", "all")
    assert (await manager.get_subscription("news", "all")).name == "all"
    assert [topic.path async for topic in manager.get_topics()] == ["news"]
    assert [each.name async for each in manager.get_subscriptions("news")] == ["all"]

    await manager.delete_subscription("news", "all")
    await manager.delete_topic("news")
    assert not await manager.topic_exists("news")
    assert not await manager.subscription_exists("news", "all")


async def test_the_name_is_asked_once(
    manager: NamespaceManager, servicebus: NamespaceFixture
) -> None:
    assert await manager.namespace_name() == "test"
    with servicebus.outage("refused"):
        assert await manager.namespace_name() == "test"


async def test_a_name_that_was_given_is_not_asked_for() -> None:
    manager = NamespaceManager.from_connection_string(
        "Endpoint=sb://nowhere.invalid;SharedAccessKeyName=a;SharedAccessKey=Yg==",
        namespace_name="contoso",
    )
    assert await manager.namespace_name() == "contoso"


def test_the_address_is_the_one_for_messages(servicebus: NamespaceFixture) -> None:
    manager = NamespaceManager.from_connection_string(servicebus.connection_string)
    assert manager.address.port == servicebus.port

    class Identity:
        async def get_token(self, *_scopes: str, **_options: Any) -> Any: ...

    azure = NamespaceManager("Contoso.servicebus.windows.net", Identity())
    assert str(azure.address) == "contoso.servicebus.windows.net:5671"
    assert azure.client.endpoint.url == "https://contoso.servicebus.windows.net/"


@pytest.mark.parametrize("host", ["sb://contoso.example", "", "a b", "user@contoso.example"])
def test_a_namespace_is_named_by_a_plain_host(host: str) -> None:
    class Identity:
        async def get_token(self, *_scopes: str, **_options: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="host name"):
        NamespaceManager(host, Identity())
