"""Two brokers, a pair, an outage and a mover: what is missing afterwards is known by name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.brokers import secret_file
from tests.support.broker_process import BrokerProcess
from tests.support.pairing.pairs import eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.broker.storage.interface import DeleteChunks, PutCounters, Tombstone
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.cost.reconciliation import Difference, MessageStatus, Reconciliation
from twinbus.spark.connection_refs import NamespaceRef
from twinbus.spark.reconciliation.pipeline import Sources, reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWAY = "home/x-servicebus-transfer/0"


class Site:
    """Both brokers, and everything that is written down."""

    def __init__(self, directory: Path) -> None:
        audit = ("--audit",)
        self.directory = directory
        self.home = BrokerProcess(directory / "home", namespace="home", arguments=audit)
        self.spare = BrokerProcess(directory / "spare", namespace="spare", arguments=audit)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.home, self.spare:
            for broker in (self.home, self.spare):
                secret_file(self.directory / f"{broker.namespace}.connection", broker)
            yield

    @asynccontextmanager
    async def paired(self) -> AsyncIterator[MessagingFactory]:
        home, spare = (
            MessagingFactory.from_connection_string(
                broker.connection_string,
                driver="amqp",
                metering=self.directory / "client",
                audit=True,
            )
            for broker in (self.home, self.spare)
        )
        async with spare, home:
            options = SendAvailabilityPairedNamespaceOptions(
                NamespaceManager.from_connection_string(self.spare.connection_string),
                spare,
                backlog_queue_count=1,
                failover_interval=0,
                ping_primary_interval=1,
                journal=self.directory / "journal.jsonl",
            )
            await home.pair_namespace(options)
            yield home

    def bring_home(self) -> None:
        """The mover, as users run it."""
        command = [sys.executable, "-m", "twinbus", "syphon", "--local", "--once"]
        command += ["--receipts", str(self.directory / "receipts.jsonl"), "--output", "json"]
        environment = {
            **os.environ,
            "SERVICEBUS_CONNECTION_STRING": self.home.connection_string,
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": self.spare.connection_string,
        }
        told = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(told.stdout)["moved"] > 0

    def books(self, spark: SparkSession) -> Reconciliation:
        """What the logs say, and what the queues hold."""
        home, spare = (
            NamespaceRef.of_file(self.directory / f"{each.namespace}.connection")
            for each in (self.home, self.spare)
        )
        sources = Sources(
            primary_logs=self.directory / "home" / "metering",
            secondary_logs=self.directory / "spare" / "metering",
            client_logs=self.directory / "client",
            receipts=self.directory / "receipts.jsonl",
            journal=self.directory / "journal.jsonl",
            primary=home,
            secondary=spare,
        )
        return reconcile(spark, sources)

    def forget_last(self, queue: str) -> None:
        """Take the last message of a queue out of the file of the stopped primary."""
        (path,) = (self.directory / "home").rglob("*.db")
        store = SqliteStore(path)
        found = store.open()
        (queue_id,) = [each.queue_id for each in found.entities if each.path == queue]
        chunk = store.load_chunks(queue_id, 0, 1 << 20, 1_000)[-1].row
        last = chunk.first_seq + chunk.count - 1
        counters = found.counters[queue_id]
        removal = (
            DeleteChunks(queue_id, last, last)
            if chunk.count == 1
            else Tombstone(queue_id, last, last)
        )
        fewer = replace(counters, message_count=counters.message_count - 1)
        store.commit([removal, PutCounters(fewer)])
        store.close()


async def taken(factory: MessagingFactory, queue: str, count: int) -> None:
    """Receive and complete so many."""
    client = factory.create_queue_client(queue)
    for _ in range(count):
        message = await client.receive(max_wait_time=20)
        assert message is not None
        await message.complete()


def named(answer: Reconciliation) -> dict[str | None, Difference]:
    return {each.message_id: each for each in answer.differences}


async def test_what_is_dropped_by_hand_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """C3: an outage with kill -9; then a message is taken from the backlog behind the syphon's
    back, and another one from the store of a stopped broker. All others are accounted for."""
    site = Site(tmp_path)
    with site.running():
        site.home.create_queue("orders")
        site.home.create_topic("news", "one", "two")
        async with site.paired() as factory:
            orders, news = map(factory.create_message_sender, ("orders", "news"))

            def messages(word: str, count: int) -> list[BrokeredMessage]:
                return [BrokeredMessage(b"x", message_id=f"{word}{n}") for n in range(count)]

            await orders.send_batch(messages("early", 10))
            await news.send_batch(messages("news", 3))
            await asyncio.to_thread(site.home.kill)
            await orders.send_batch(messages("away", 10))
            await news.send_batch(messages("late", 2))
            await asyncio.to_thread(site.home.restart)
            await asyncio.to_thread(site.bring_home)
            await eventually(lambda: not factory.health("orders").is_diverted, "the way home")
            await orders.send(BrokeredMessage(b"x", message_id="after"))
            await taken(factory, "orders", 15)
            # Diverted once more, and somebody takes the message before the syphon does.
            factory.force_failover("orders")
            await orders.send(BrokeredMessage(b"x", message_id="robbed"))
            async with MessagingFactory.from_connection_string(
                site.spare.connection_string, driver="amqp"
            ) as thief:
                await taken(thief, AWAY, 1)
        await asyncio.to_thread(site.home.stop)
        site.forget_last("orders")
        site.home.restart()

        books = await asyncio.to_thread(site.books, spark)

    assert books.verdict == "Reconciliation of home failed: of 27 sent, 2 missing."
    of_news, of_orders = books.entities
    assert {status: count for status, count in of_orders.statuses.items() if count} == {
        MessageStatus.DELIVERED: 15,
        MessageStatus.WAITING: 5,
        MessageStatus.MISSING: 2,
    }
    assert of_news.statuses[MessageStatus.WAITING] == of_news.sent == 5
    assert all(each.outages for each in books.entities)
    found = named(books)
    assert found["robbed"].trace.endswith("no receipt; never stored on the primary")
    assert f"stored in {AWAY} as 13" in found["robbed"].trace
    (lost,) = [each for each in books.differences if each.message_id != "robbed"]
    assert "no longer there" in lost.trace
