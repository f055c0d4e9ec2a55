"""One broker in a process of its own, with two namespaces, and its faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.switchboard import Switchboard
from tests.integration.sdk.conftest import brisk_clients, forgive_clients, sdk
from tests.support.broker_process import BrokerProcess

__all__ = ["brisk_clients", "sdk"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forgive_clients(items, HERE)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("faults") / "data"
    arguments = ("--namespace", "second:0")
    with BrokerProcess(data, queues=("bystander",), arguments=arguments) as running:
        yield running
        assert running.is_alive, running.log()
        assert "Traceback" not in running.log()


@pytest.fixture
def faults(broker: BrokerProcess) -> Iterator[Switchboard]:
    """Switches faults on; none is left on for the next test."""
    board = Switchboard(broker)
    yield board
    board.clear()


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    return broker.fresh_queue(lock_duration_ms=300_000)
