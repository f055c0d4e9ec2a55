"""The SDK's driver on a clean namespace, with a client that does not doze while it opens links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async

from tests.sdk.clients import Brisk
from twinbus.connection_string import parse_connection_string
from twinbus.drivers.servicebus import ServiceBusDriver
from twinbus.testing.bus import Bus


@pytest.fixture(autouse=True)
def brisk_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client looks every 50 ms whether its link is open, nine times; here every 5 ms."""
    for module in (_servicebus_sender_async, _servicebus_receiver_async):
        monkeypatch.setattr(module, "asyncio", Brisk(asyncio))


@pytest.fixture
async def driver(servicebus: Bus) -> AsyncIterator[ServiceBusDriver]:
    made = ServiceBusDriver.from_connection_string(
        parse_connection_string(servicebus.connection_string)
    )
    yield made
    await made.close()


@pytest.fixture
def queue(servicebus: Bus) -> str:
    return servicebus.queue("orders")
