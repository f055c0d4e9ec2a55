"""One namespace for each test, and every driver in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.drivers.contract.drivers import DRIVERS
from twinbus.common.clock import AdjustableClock
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.drivers.interface import Driver
from twinbus.testing import NamespaceFixture
from twinbus.testing.background_broker import BackgroundBroker


@pytest.fixture
def servicebus(
    request: pytest.FixtureRequest, servicebus_broker: BackgroundBroker
) -> Iterator[NamespaceFixture]:
    """A clean namespace: of the tests' broker, or embedded for the driver of that name."""
    if request.node.callspec.params.get("driver") != "embedded":
        bus = servicebus_broker.open_bus()
        yield bus
        bus.close()
        return
    with EmbeddedNamespace("test", clock=AdjustableClock()) as spool:
        yield NamespaceFixture(spool._thread, spool._broker, spool._running)  # type: ignore[arg-type]


@pytest.fixture(params=DRIVERS)
async def driver(
    request: pytest.FixtureRequest, servicebus: NamespaceFixture
) -> AsyncIterator[Driver]:
    opened = DRIVERS[request.param](servicebus.connection_string)
    yield opened
    await opened.close()


@pytest.fixture
def make_driver(request: pytest.FixtureRequest, driver: Driver) -> type[Driver]:
    """Another driver of the same kind, for another connection string."""
    made: type[Driver] = DRIVERS[request.node.callspec.params["driver"]]
    return made
