"""The SDK's driver on a clean namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.testing.namespaces import NamespaceFixture


@pytest.fixture
async def driver(servicebus: NamespaceFixture) -> AsyncIterator[ServiceBusDriver]:
    made = ServiceBusDriver.from_connection_string(servicebus.connection_string)
    yield made
    await made.close()


@pytest.fixture
def queue(servicebus: NamespaceFixture) -> str:
    return servicebus.queue("orders")
