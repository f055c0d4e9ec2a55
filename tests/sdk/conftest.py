"""One broker in a process of its own for all these tests, and a fresh queue for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.sdk.clients import Sdk
from tests.support.broker_process import BrokerProcess

MakeQueue = Callable[..., str]


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
