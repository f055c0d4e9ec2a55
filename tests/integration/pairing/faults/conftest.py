"""Two namespaces of one broker in its own process, a pair over them, and their faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.faults.switchboard import Switchboard
from tests.integration.pairing.faults.scene import AWAY, HOME, Scene
from tests.integration.sdk.conftest import brisk_clients, forgive_clients
from tests.support.broker_process import BrokerProcess

__all__ = ["brisk_clients"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forgive_clients(items, HERE)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Both namespaces in one process: every fault is of one of them."""
    data = tmp_path_factory.mktemp("pairing-faults") / "data"
    arguments = ("--namespace", f"{AWAY}:0")
    with BrokerProcess(data, namespace=HOME, arguments=arguments) as running:
        yield running
        assert running.is_alive, running.log()


@pytest.fixture
def faults(broker: BrokerProcess) -> Iterator[Switchboard]:
    """The faults of the primary; none is left on for the next test."""
    board = Switchboard(broker)
    yield board
    board.clear()


@pytest.fixture
def faults_away(broker: BrokerProcess) -> Iterator[Switchboard]:
    """The faults of the secondary."""
    board = Switchboard(BrokerProcess(None, namespace=AWAY).found(broker.announcement))
    yield board
    board.clear()


@pytest.fixture(params=["amqp", "servicebus"])
def driver(request: pytest.FixtureRequest) -> str:
    """Through the lean client, and through the official SDK."""
    return str(request.param)


@pytest.fixture
async def scene(broker: BrokerProcess, driver: str) -> AsyncIterator[Scene]:
    """A pair that diverts at the first failure and pings every second, with a queue of its own."""
    scene = Scene(broker, driver)
    await scene.open()
    yield scene
    await scene.close()
