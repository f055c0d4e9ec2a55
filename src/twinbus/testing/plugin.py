"""Fixtures for pytest: ``servicebus``, ``servicebus_pair`` and ``servicebus_broker``.

pytest loads it through the entry point ``pytest11``. This module imports the broker only when a
test uses a fixture, so that it costs other tests nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from twinbus.testing.background_broker import BackgroundBroker
    from twinbus.testing.namespaces import NamespaceFixture, NamespacePairFixture


@pytest.fixture(scope="session")
def servicebus_broker() -> Iterator[BackgroundBroker]:
    """One broker for the whole run (with pytest-xdist: one for each worker)."""
    from twinbus.testing.background_broker import BackgroundBroker

    with BackgroundBroker() as broker:
        yield broker


@pytest.fixture
def servicebus(servicebus_broker: BackgroundBroker) -> Iterator[NamespaceFixture]:
    """A clean Service Bus namespace for one test."""
    bus = servicebus_broker.open_bus()
    yield bus
    bus.close()


@pytest.fixture
def servicebus_pair(servicebus_broker: BackgroundBroker) -> Iterator[NamespacePairFixture]:
    """Two clean namespaces for one test: ``.primary`` and ``.secondary``."""
    pair = servicebus_broker.open_pair()
    yield pair
    pair.close()
