"""The whole way over real sockets: outage, backlog, ping, home again. Through both drivers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.pairing.pairs import OpenPair, eventually
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    QueueClient,
    SendAvailabilityPairedNamespaceOptions,
    SyphonHosting,
)
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.pairing.client.driver_name import DriverName
from twinbus.pairing.events import read_journal
from twinbus.testing import NamespacePairFixture

DRIVERS: list[DriverName] = ["amqp", "servicebus"]


async def drained(client: QueueClient, count: int) -> list[bytes]:
    """The bodies of so many messages, each completed; and then there are no more."""
    found: list[bytes] = []
    while len(found) < count:
        message = await client.receive(max_wait_time=20)
        assert message is not None, f"{len(found)} of {count} came home"
        found.append(message.body)
        await message.complete()
    assert await client.receive(max_wait_time=0.2) is None
    return sorted(found)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_messages_of_an_outage_come_home(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: DriverName
) -> None:
    """P10, P11, L2: nothing fails, the entity is restored, the syphon brings everything back."""
    servicebus_pair.primary.queue("orders")
    pair = await open_pair(driver, enable_syphon=True)
    client = pair.primary.create_queue_client("orders")
    await client.send(BrokeredMessage(b"0 before"))
    with servicebus_pair.outage("refused"):
        await client.send(BrokeredMessage(b"1 found it"))
        await client.send_batch([BrokeredMessage(b"2 in"), BrokeredMessage(b"3 a batch")])
        assert pair.primary.health("orders").is_diverted
    await pair.until_told("restored")
    await client.send(BrokeredMessage(b"4 after"))
    assert await drained(client, 5) == [
        b"0 before", b"1 found it", b"2 in", b"3 a batch", b"4 after"
    ]  # fmt: skip
    await pair.primary.close()
    assert not pair.secondary.is_open


async def test_dead_letters_of_a_hosted_syphon_are_an_event(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """Y4, P16: not only a receipt that nobody reads."""
    pair = await open_pair("amqp", enable_syphon=True)
    queue = f"{servicebus_pair.primary.name}/x-servicebus-transfer/0"
    sender = pair.secondary.create_message_sender(queue)
    await sender.send(BrokeredMessage(b"nobody knows where to"))
    await pair.until_told("dead-lettered")


@pytest.mark.parametrize("driver", DRIVERS)
async def test_pairing_makes_the_backlog_queues(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: DriverName
) -> None:
    """P4: named after the primary, which is asked for its name on this machine."""
    pair = await open_pair(driver, backlog_queue_count=3)
    name = servicebus_pair.primary.name
    for index in range(3):
        path = f"{name}/x-servicebus-transfer/{index}"
        assert servicebus_pair.secondary.machine(path).active_count == 0
    assert pair.options.backlog_queue_count == 3


@pytest.mark.parametrize("how", ["cannot-send", "reset", "black-hole"])
async def test_other_kinds_of_trouble_divert_too(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, how: str
) -> None:
    """P7, P10: whatever keeps the primary from taking messages."""
    servicebus_pair.primary.queue("orders")
    pair = await open_pair("amqp")
    client = pair.primary.create_queue_client("orders")
    await client.send(BrokeredMessage(b"0"))
    with servicebus_pair.outage(how):
        await client.send(BrokeredMessage(b"1"), timeout=4)
        assert pair.primary.health("orders").messages_diverted == 1
    # Bytes that a black hole has swallowed may come out of it: that was told.
    assert "possible-duplicate" in pair.names or how == "reset"


async def test_an_error_of_the_caller_is_the_same_paired_and_unpaired(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """P0: pairing hides nothing."""
    pair = await open_pair("amqp")
    with pytest.raises(EntityNotFound):
        await pair.primary.create_message_sender("nowhere").send(BrokeredMessage(b""))
    assert not pair.primary.health("nowhere").is_diverted


async def test_a_primary_without_sessions_and_one_with_are_pinged(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture
) -> None:
    """P11, M7: a ping carries a session id, so both take it, and nobody ever receives one."""
    servicebus_pair.primary.queue("plain")
    servicebus_pair.primary.queue("talks", requires_session=True)
    pair = await open_pair("amqp")
    with servicebus_pair.outage("refused"):
        for path in ("plain", "talks"):
            sender = pair.primary.create_message_sender(path)
            await sender.send(BrokeredMessage(b"one", session_id="s"))
    await eventually(lambda: pair.names.count("restored") == 2, f"{pair.names}")
    for path in ("plain", "talks"):
        assert servicebus_pair.primary.machine(path).active_count == 0


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_primary_is_killed_under_load(tmp_path: Path, driver: DriverName) -> None:
    """P10, Y1: kill -9 with many sends under way: none fails, and every one comes home, through
    the library that the hosted syphon was given."""
    home = BrokerProcess(tmp_path / "home", namespace="home", queues=("orders",))
    away = BrokerProcess(tmp_path / "away", namespace="away")
    with home, away:
        async with (
            MessagingFactory.from_connection_string(
                home.connection_string, driver="amqp"
            ) as primary,
            MessagingFactory.from_connection_string(
                away.connection_string, driver="amqp"
            ) as secondary,
        ):
            manager = NamespaceManager.from_connection_string(away.connection_string)
            journal = tmp_path / "journal.jsonl"
            options = SendAvailabilityPairedNamespaceOptions(
                manager,
                secondary,
                2,
                0,
                True,
                syphon=SyphonHosting("local", driver=driver),
                ping_primary_interval=1,
                journal=journal,
            )
            await primary.pair_namespace(options)
            sent = await load(primary, home)
            found = await at_least(primary.create_queue_client("orders"), set(sent))
            assert found == set(sent)
            uses_sdk = isinstance(secondary.mover_driver(), ServiceBusDriver)
            assert uses_sdk is (driver == "servicebus")
    names = [each.name for each in read_journal(journal)]
    assert "diverted" in names and "restored" in names and names[-1] == "factory-closed"


async def load(primary: MessagingFactory, home: BrokerProcess) -> list[bytes]:
    """Send 200 messages from four senders; the broker dies in the middle, and comes back."""
    sent: list[bytes] = []

    async def send(name: int) -> None:
        sender = primary.create_message_sender("orders")
        for index in range(50):
            body = f"{name}-{index}".encode()
            await sender.send(BrokeredMessage(body))
            sent.append(body)

    async def strike() -> None:
        await eventually(lambda: len(sent) >= 40, "some sends")
        await asyncio.to_thread(home.kill)
        await eventually(lambda: len(sent) == 200, f"all sends after {len(sent)}")
        await asyncio.to_thread(home.restart)

    await asyncio.gather(*map(send, range(4)), strike())
    return sent


async def at_least(client: QueueClient, wanted: set[bytes]) -> set[bytes]:
    """Receive until all of them were there; an unclear send may be there twice."""
    found: set[bytes] = set()
    async with asyncio.timeout(60):
        while not found >= wanted:
            try:
                messages = await client.receive_batch(100, max_wait_time=1)
            except ServiceError:  # The broker is coming back.
                await asyncio.sleep(0.2)
                continue
            for message in messages:
                found.add(message.body)
                await message.complete()
    return found
