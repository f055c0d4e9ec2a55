"""One broker in a process of its own for all these tests, and the stock client twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest

from tests.integration.sdk_administration.clients import Administration
from tests.support.broker_process import BrokerProcess

FreshName = Callable[..., str]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("sdk_admin") / "data") as running:
        yield running
        assert running.is_alive, running.log()
        assert "Traceback" not in running.log()


@pytest.fixture(params=["sync", "aio"])
async def admin(
    request: pytest.FixtureRequest, broker: BrokerProcess
) -> AsyncIterator[Administration]:
    """The stock client, once sync and once aio."""
    opened = Administration(request.param, broker)
    yield opened
    await opened.close()


@pytest.fixture
def fresh() -> FreshName:
    """Names that nobody else uses."""

    def name(kind: str = "queue") -> str:
        return f"{kind}-{uuid4().hex[:12]}"

    return name
