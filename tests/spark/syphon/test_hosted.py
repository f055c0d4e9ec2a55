"""enable_syphon=True: the query inside an application, and how both factories end (L1, L2)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.brokers import SparkPair
from tests.support.books import by_client, in_numbers, records_in
from tests.support.mover.brokers import Scene, until
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.errors import ConfigurationError, FactoryFaulted
from twinbus.pairing.client.driver_name import DriverName
from twinbus.spark.syphon.state_directory import StateDir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Hosting:
    """A pair whose syphon runs on the tests' Spark."""

    def __init__(
        self, spark: SparkSession, scene: Scene, directory: Path, driver: DriverName = "amqp"
    ) -> None:
        pair = scene.pair
        self.state = StateDir(directory / "state")
        self.books = directory / "books"
        self.primary, self.secondary = (
            MessagingFactory.from_connection_string(
                broker.connection_string, driver="amqp", metering=self.books, audit=True
            )
            for broker in (pair.primary, pair.secondary)
        )
        manager = NamespaceManager.from_connection_string(pair.secondary.connection_string)
        self.options = SendAvailabilityPairedNamespaceOptions(
            manager,
            self.secondary,
            len(scene.queues),
            enable_syphon=True,
            namespace_name=scene.name,
            syphon=SyphonHosting(spark=spark, state_dir=self.state.path, driver=driver),
        )

    async def begin(self) -> None:
        await self.primary.pair_namespace(self.options)
        await until(lambda: self.doing in ("waiting", "moving"), 60)

    @property
    def doing(self) -> str:
        status = self.state.status()
        return "" if status is None else status.doing

    @property
    def moved(self) -> int:
        status = self.state.status()
        return 0 if status is None else status.counts.get("moved", 0)


Host = Callable[..., Awaitable[Hosting]]


@pytest.fixture
async def host(spark: SparkSession, tmp_path: Path) -> AsyncIterator[Host]:
    async with AsyncExitStack() as stack:

        async def begun(scene: Scene, driver: DriverName = "amqp") -> Hosting:
            hosting = Hosting(spark, scene, tmp_path, driver)
            stack.push_async_callback(hosting.secondary.close)
            stack.push_async_callback(hosting.primary.close)
            await hosting.begin()
            return hosting

        yield begun


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_a_hosted_syphon_brings_a_diverted_message_home(
    host: Host, pair: SparkPair, driver: str
) -> None:
    """Y2, P8, C1: from the application's send to its own queue, by way of backlog and Spark, whose
    processes keep their books beside the application's; what they move is not audited again."""
    scene = Scene(pair)
    orders = scene.destination()
    hosting = await host(scene, driver)
    hosting.primary.force_failover(orders)
    sender = hosting.primary.create_message_sender(orders)
    for number in range(20):
        await sender.send(BrokeredMessage(b"order", message_id=f"m{number}"))
    assert hosting.primary.health(orders).messages_diverted == 20
    await until(lambda: hosting.moved >= 20, 60)
    ids = Counter(f"m{number}" for number in range(20))
    assert await scene.arrived(orders) == ids
    await hosting.primary.close()
    await hosting.secondary.close()
    assert in_numbers(by_client(hosting.books))[orders, "send"] == (20, 20)

    def of_backlog(operation: str) -> list[int]:
        counted = in_numbers(by_client(hosting.books))
        amounts = [counted.get((path, operation), (0, 0)) for path in scene.queues]
        return [sum(column) for column in zip(*amounts, strict=True)]

    assert of_backlog("send") == [20, 20]
    assert of_backlog("receive") == [20, 20], "Spark's processes wrote theirs before they ended"
    audit = records_in(hosting.books / scene.name, "audit")
    assert Counter(line["message_id"] for line in audit) == ids
    assert {line["via"] for line in audit} <= set(scene.queues)


async def test_closing_the_primary_ends_the_query_and_the_secondary(
    host: Host, pair: SparkPair, spark: SparkSession
) -> None:
    """L2: after the chunks under way, within 5 s; a session that was there before stays."""
    scene = Scene(pair)
    orders = scene.destination()
    hosting = await host(scene)
    await scene.fill(orders, [f"m{number}" for number in range(3_000)])
    await until(lambda: hosting.moved > 0 or scene.home(orders) > 0, 60)
    began_s = time.monotonic()
    await hosting.primary.close()
    assert time.monotonic() - began_s < 8
    assert not hosting.secondary.is_open and hosting.secondary.fault_reason is None
    assert hosting.doing == "stopped" and not spark.streams.active
    arrived = await scene.arrived(orders)
    assert max(arrived.values()) == 1, "what was under way has ended, and is not repeated"
    assert len(arrived) + scene.left() >= 3_000


async def test_a_secondary_that_closes_alone_faults_the_primary_after_five_seconds(
    host: Host, pair: SparkPair
) -> None:
    """L1: in real time."""
    hosting = await host(Scene(pair))
    began_s = time.monotonic()
    await hosting.secondary.close()
    await until(lambda: hosting.primary.fault_reason is not None, 30)
    assert 4.5 <= time.monotonic() - began_s <= 12
    with pytest.raises(FactoryFaulted):
        await hosting.primary.create_message_sender("orders").send(BrokeredMessage(b"one"))
    await until(lambda: hosting.doing == "stopped", 10)


async def test_a_fault_of_one_is_a_fault_of_both_at_once(host: Host, pair: SparkPair) -> None:
    """L1: sooner than the source."""
    hosting = await host(Scene(pair))
    async with asyncio.timeout(8):
        await hosting.secondary.fault("no more disk")
    assert "no more disk" in str(hosting.primary.fault_reason)


async def test_a_cluster_must_be_told_where_the_credentials_are(pair: SparkPair) -> None:
    """P1: said when the pair is made. A stand-in, because no cluster is needed to refuse it."""

    class Conf:
        def get(self, name: str, default: Any = None) -> Any:
            return {"spark.master": "spark://cluster:7077"}.get(name, default)

    class Elsewhere:
        conf = Conf()

    scene = Scene(pair)
    async with AsyncExitStack() as stack:
        hosting = Hosting(Elsewhere(), scene, pair.primary_file.parent)  # type: ignore[arg-type]
        stack.push_async_callback(hosting.secondary.close)
        stack.push_async_callback(hosting.primary.close)
        with pytest.raises(ConfigurationError, match="primary's credential"):
            await hosting.primary.pair_namespace(hosting.options)
        assert not hosting.primary.is_paired
