"""Pairs for tests: over namespaces in memory that do as told, and over real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest

from tests.support.pairing.fake_namespace import FakeNamespace
from twinbus.aio import (
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.pairing.client.factory_options import DriverName, FactoryOptions
from twinbus.pairing.events import EventRecord
from twinbus.testing import NamespacePairFixture

PATIENCE_S = 20.0
"""How long a test waits for what must happen: it does so in a moment on a quiet machine."""

OpenPair = Callable[..., Awaitable["Paired"]]


class Paired:
    """Two factories that are paired, and what a test wants to know of them."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        options: SendAvailabilityPairedNamespaceOptions,
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.told: list[EventRecord] = []
        primary.on_event(self.told.append)

    @property
    def names(self) -> list[str]:
        """The names of all events so far."""
        return [each.name for each in self.told]

    async def until(self, is_so: Callable[[], bool], what: str = "it") -> None:
        await eventually(is_so, what)

    async def until_told(self, name: str) -> None:
        await eventually(lambda: name in self.names, f"{name} after {self.names}")


async def eventually(is_so: Callable[[], bool], what: str = "it") -> None:
    """Wait until it is so."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"waited in vain for {what}")


class FakePair(Paired):
    """A pair over two namespaces in memory."""

    home: FakeNamespace
    away: FakeNamespace

    def backlog(self) -> list[bytes]:
        """What waits in all backlog queues."""
        return [each for path in self.queues for each in self.away.messages(path)]

    @property
    def queues(self) -> list[str]:
        count = self.options.backlog_queue_count
        return [f"contoso/x-servicebus-transfer/{index}" for index in range(count)]


class OpenFakePair(Protocol):
    async def __call__(
        self, *, home: FakeNamespace | None = None, is_paired: bool = True, **options: Any
    ) -> FakePair: ...


@pytest.fixture
async def open_fake_pair() -> AsyncIterator[OpenFakePair]:
    """Makes pairs over fakes: failover at once, pings far apart, no retries, unless told."""
    async with AsyncExitStack() as stack:

        async def open_one(
            *,
            home: FakeNamespace | None = None,
            is_paired: bool = True,
            retry_total: int = 0,
            **chosen: Any,
        ) -> FakePair:
            here, there = home or FakeNamespace("contoso"), FakeNamespace("fabrikam")
            primary = MessagingFactory.from_driver(
                here, retry_total=retry_total, retry_backoff_factor=0
            )
            secondary = MessagingFactory.from_driver(there)
            stack.push_async_callback(secondary.close)
            stack.push_async_callback(primary.close)
            chosen = {"backlog_queue_count": 3, "failover_interval": 0, **chosen}
            chosen = {"syphon": SyphonHosting("local"), **chosen}
            options = SendAvailabilityPairedNamespaceOptions(None, secondary, **chosen)
            pair = FakePair(primary, secondary, options)
            pair.home, pair.away = here, there
            if is_paired:
                await primary.pair_namespace(options)
            return pair

        yield open_one


@pytest.fixture
async def fake_pair(open_fake_pair: OpenFakePair) -> FakePair:
    return await open_fake_pair()


@pytest.fixture
async def open_pair(servicebus_pair: NamespacePairFixture) -> AsyncIterator[OpenPair]:
    """Pairs the test's two namespaces, through the driver of that name."""
    async with AsyncExitStack() as stack:

        async def open_one(
            driver: DriverName = "amqp",
            books: FactoryOptions | None = None,
            books_away: FactoryOptions | None = None,
            before: Callable[[MessagingFactory], Awaitable[None]] | None = None,
            **chosen: Any,
        ) -> Paired:
            home, away = (
                MessagingFactory.from_connection_string(
                    bus.connection_string, **{"driver": driver, **(kept or {})}
                )
                for bus, kept in (
                    (servicebus_pair.primary, books),
                    (servicebus_pair.secondary, books_away),
                )
            )
            stack.push_async_callback(away.close)
            stack.push_async_callback(home.close)
            manager = chosen.pop(
                "manager",
                NamespaceManager.from_connection_string(
                    servicebus_pair.secondary.connection_string
                ),
            )
            chosen = {
                "backlog_queue_count": 2,
                "failover_interval": 0,
                "ping_primary_interval": 1,
                **chosen,
            }
            chosen = {"syphon": SyphonHosting("local"), **chosen}
            options = SendAvailabilityPairedNamespaceOptions(manager, away, **chosen)
            pair = Paired(home, away, options)
            if before is not None:
                await before(away)
            await home.pair_namespace(options)
            return pair

        yield open_one
