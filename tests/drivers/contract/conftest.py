"""One namespace for each test, and every driver in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.drivers.contract.drivers import DRIVERS
from twinbus.drivers.port import Driver
from twinbus.testing import Bus


@pytest.fixture(params=DRIVERS)
async def driver(request: pytest.FixtureRequest, servicebus: Bus) -> AsyncIterator[Driver]:
    opened = DRIVERS[request.param](servicebus.connection_string)
    yield opened
    await opened.close()


@pytest.fixture
def make_driver(request: pytest.FixtureRequest, driver: Driver) -> type[Driver]:
    """Another driver of the same kind, for another connection string."""
    made: type[Driver] = DRIVERS[request.node.callspec.params["driver"]]
    return made
