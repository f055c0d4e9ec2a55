"""One broker in a process of its own for all these tests, and a fresh queue for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import _servicebus_receiver, _servicebus_sender
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Brisk, Sdk

MakeQueue = Callable[..., str]

HERE = Path(__file__).parent
CLIENT_LEAKS = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""The stock client leaves sockets open when the broker ends a connection. That is its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forgive_clients(items, HERE)


def forgive_clients(items: list[pytest.Item], directory: Path) -> None:
    """The tests of a directory do not fail because of what the stock client leaves open."""
    for item in items:
        if item.path.is_relative_to(directory):
            item.add_marker(CLIENT_LEAKS)


@pytest.fixture(scope="session", autouse=True)
def brisk_clients() -> Iterator[None]:
    """The client looks every 50 ms whether its link is open, nine times; here every 5 ms.

    Nothing else of it is changed. With some 500 links that is minutes.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (_servicebus_sender, _servicebus_receiver):
            patch.setattr(module, "time", Brisk(time))
        for module in (_servicebus_sender_async, _servicebus_receiver_async):
            patch.setattr(module, "asyncio", Brisk(asyncio))
        yield


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sdk") / "data") as running:
        yield running
        assert running.is_alive, running.log()


@pytest.fixture(params=["sync", "aio"])
async def sdk(request: pytest.FixtureRequest, broker: BrokerProcess) -> AsyncIterator[Sdk]:
    """The stock client, once sync and once aio."""
    opened = Sdk(request.param, broker.connection_string)
    yield opened
    await opened.close()


@pytest.fixture
def make_queue(broker: BrokerProcess) -> MakeQueue:
    """Creates a queue that nobody else uses; takes the properties of a queue."""
    return broker.fresh_queue


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    """A fresh queue with default properties."""
    return make_queue()
