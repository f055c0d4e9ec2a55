"""How a factory is made, and what twinbus.aio offers."""

from __future__ import annotations

from typing import Any

import pytest

import twinbus.aio
from tests.support.pairing.fake_namespace import FakeNamespace
from twinbus.aio import MessagingFactory
from twinbus.drivers.credentials import SharedKey
from twinbus.errors import ConfigurationError, ConnectionStringError

TEXT = "Endpoint=sb://contoso.example;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"


def test_the_public_names_are_those_of_the_original() -> None:
    """P2: the vocabulary of paired namespaces, in Python."""
    assert set(twinbus.aio.__all__) >= {
        "BrokeredMessage",
        "MessageReceiver",
        "MessageSender",
        "MessagingFactory",
        "NamespaceManager",
        "PairedNamespaceOptions",
        "QueueClient",
        "SendAvailabilityPairedNamespaceOptions",
        "SubscriptionClient",
        "TopicClient",
    }


@pytest.mark.parametrize("driver", ["servicebus", "amqp"])
async def test_a_factory_from_a_connection_string_or_a_credential(driver: Any) -> None:
    """P3: both know the same address; nothing is contacted."""
    async with (
        MessagingFactory.from_connection_string(TEXT, driver=driver) as one,
        MessagingFactory("Contoso.example", SharedKey("k", "c2VjcmV0"), driver=driver) as other,
    ):
        assert one.address == other.address
        assert str(one.address) == "contoso.example:5671"


async def test_a_factory_from_the_environment() -> None:
    """The usual names, and their twins for the secondary."""
    environment = {
        "SERVICEBUS_CONNECTION_STR": TEXT,
        "SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE": "fabrikam.example",
    }
    async with (
        MessagingFactory.from_environment(environment, driver="amqp") as primary,
        MessagingFactory.from_environment(
            environment, role="secondary", credential=SharedKey("k", "c2VjcmV0"), driver="amqp"
        ) as secondary,
    ):
        assert primary.address.host == "contoso.example"
        assert secondary.address.host == "fabrikam.example"
    with pytest.raises(
        ConfigurationError, match="SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE requires"
    ):
        MessagingFactory.from_environment(environment, role="secondary")
    with pytest.raises(ConfigurationError, match="SERVICEBUS_CONNECTION_STRING"):
        MessagingFactory.from_environment({})


def test_what_cannot_be_used_is_refused() -> None:
    """P2: when the factory is made, in one sentence, without the secret."""
    with pytest.raises(ConnectionStringError):
        MessagingFactory.from_connection_string("Endpoint=http://contoso")
    with pytest.raises(ConfigurationError, match="driver"):
        MessagingFactory.from_connection_string(TEXT, driver="carrier-pigeon")  # type: ignore[arg-type]
    for nonsense in ({"retry_total": -1}, {"retry_mode": "never"}, {"operation_timeout": 0}):
        with pytest.raises(ConfigurationError):
            MessagingFactory.from_driver(FakeNamespace(), **nonsense)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="retry_totl"):
        MessagingFactory.from_driver(FakeNamespace(), retry_totl=3)  # type: ignore[call-arg]


async def test_an_entity_that_nobody_has_used_is_healthy() -> None:
    """P16: and asking makes nothing up."""
    async with MessagingFactory.from_driver(FakeNamespace()) as factory:
        health = factory.health("Orders")
        assert (health.path, health.is_diverted, health.since) == ("orders", False, None)
        assert factory.failovers() == []
