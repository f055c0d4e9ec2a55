"""One broker in a process of its own for all these tests, with a port for TLS alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sdk.conftest import forgive_clients
from tests.support.broker_process import BrokerProcess

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forgive_clients(items, HERE)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("doors") / "data"
    arguments = ("--tls-port", "demo:0", "--namespace", "other:0")
    with BrokerProcess(data, queues=("orders",), arguments=arguments) as running:
        yield running
        assert running.is_alive, running.log()
        assert "Traceback" not in running.log()


@pytest.fixture
def ca_path(broker: BrokerProcess) -> str:
    assert broker.ca_path is not None
    return broker.ca_path
