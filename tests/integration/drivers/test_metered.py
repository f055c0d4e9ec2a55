"""What a metered driver counts is what the namespace counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.books import Total, Totals, by_broker, by_client, in_numbers
from tests.support.parcels import due_at, parcel
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.interface import Driver
from twinbus.drivers.metered import MeteredDriver
from twinbus.encoding.envelope import ping
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.metering.client_meter import ClientMeter
from twinbus.testing import NamespaceFixture

DRIVERS: dict[str, Callable[[str], Driver]] = {
    "amqp": AmqpDriver.from_connection_string,
    "servicebus": ServiceBusDriver.from_connection_string,
}
NOTHING = Total(0, 0, 0)


class Metered:
    """A metered driver of a test, and both sides' books."""

    def __init__(self, bus: NamespaceFixture, driver: Driver, directory: Path) -> None:
        self._bus = bus
        self._directory = directory
        self.books = ClientMeter(directory, name=bus.name, other_name="other")
        self.driver = MeteredDriver(driver, self.books)

    async def by_client(self) -> Totals:
        """From its lines; ends the driver and its books."""
        await self.driver.close()
        await asyncio.to_thread(self.books.close)
        return by_client(self._directory)

    def by_broker(self) -> Totals:
        return by_broker(self._bus)


@pytest.fixture(params=DRIVERS)
async def metered(
    request: pytest.FixtureRequest, servicebus: NamespaceFixture, tmp_path: Path
) -> AsyncIterator[Metered]:
    made = Metered(servicebus, DRIVERS[request.param](servicebus.connection_string), tmp_path)
    yield made
    await made.driver.close()
    made.books.close()


async def test_both_sides_count_the_same(metered: Metered, servicebus: NamespaceFixture) -> None:
    """C1: sends, pings, receives, those that find nothing, peeks, settlements, management."""
    servicebus.queue("orders")
    driver = metered.driver
    sender, receiver = driver.sender("orders"), driver.receiver("orders")
    await sender.send([parcel(b"one", message_id="one")], timeout_s=10)
    await sender.send([parcel(b"n%d" % n) for n in range(5)], timeout_s=10)
    await sender.send([parcel(b"x" * 100_000)], timeout_s=10)
    await sender.send([OutgoingMessage(ping("p1"))], timeout_s=10)
    found: list[Any] = []
    while len(found) < 7:
        found += await receiver.receive(10, wait_s=5)
    assert len(await receiver.peek(10, timeout_s=10)) == 7
    await receiver.renew(found[:1], timeout_s=10)
    await receiver.complete(found[:3], timeout_s=10)
    await receiver.defer(found[3:4], timeout_s=10)
    await receiver.dead_letter(found[4:5], reason="r", description="d", timeout_s=10)
    await receiver.complete(found[5:], timeout_s=10)
    again = await receiver.receive_deferred([found[3].sequence_number], timeout_s=10)
    await receiver.complete(again, timeout_s=10)
    for _ in range(2):
        assert await receiver.receive(1, wait_s=0.1) == []
    dead = driver.receiver("orders/$DeadLetterQueue")
    await dead.complete(await dead.receive(1, wait_s=5), timeout_s=10)

    told = metered.by_broker()
    counted = await metered.by_client()
    told.pop(("orders", "empty-receive"), None)  # See below.
    assert counted.pop(("orders", "empty-receive")).units == 2
    assert in_numbers(counted) == in_numbers(told)
    for key, amount in counted.items():
        assert abs(amount.bytes - told[key].bytes) < 200 * amount.messages + 1, key
    assert counted["orders", "send"].units == 8
    assert counted["orders", "ping"].units == 1
    assert counted["orders/$deadletterqueue", "receive"].messages == 1


async def test_what_failed_is_not_counted(metered: Metered, servicebus: NamespaceFixture) -> None:
    """C1: what was refused or never answered is in nobody's books."""
    servicebus.queue("orders")
    with pytest.raises(EntityNotFound):
        await metered.driver.sender("nowhere").send([parcel(b"a")], timeout_s=5)
    with servicebus.outage("throttled"), pytest.raises(ServiceError):
        await metered.driver.sender("orders").send([parcel(b"a")], timeout_s=5)
    await metered.driver.sender("orders").attach(timeout_s=5)
    told = metered.by_broker()
    assert await metered.by_client() == told == {}


async def test_trouble_with_the_books_is_none_of_the_calls(
    metered: Metered,
    servicebus: NamespaceFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C1: what the namespace answered is the answer; one sentence tells of the trouble."""
    servicebus.queue("orders")

    def broken(*_given: object, **_chosen: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("sent", "received", "settled", "add_request"):
        monkeypatch.setattr(metered.books, name, broken)
    sender, receiver = metered.driver.sender("orders"), metered.driver.receiver("orders")
    await sender.send([parcel(b"a")], timeout_s=10)
    in_an_hour = parcel(b"later", annotations=due_at(int(time.time() * 1000) + 3_600_000))
    numbers = await sender.schedule([in_an_hour], timeout_s=10)
    await sender.cancel_scheduled(numbers, timeout_s=10)
    found = await receiver.receive(1, wait_s=10)
    assert len(found) == 1
    await receiver.renew(found, timeout_s=10)
    assert len(await receiver.peek(1, timeout_s=10)) == 1
    assert await receiver.complete(found, timeout_s=10) == []
    assert await receiver.receive(1, wait_s=0.05) == []
    waiting = asyncio.create_task(receiver.receive(1, wait_s=60))
    await asyncio.sleep(0.05)
    waiting.cancel()
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    assert caplog.text.count("can't start new thread") == 1


async def test_each_receive_that_finds_nothing_is_counted(
    metered: Metered, servicebus: NamespaceFixture
) -> None:
    """C1, Y3: also one that is given up, such as the long polls of a syphon that stops."""
    servicebus.queue("orders")
    receiver = metered.driver.receiver("orders")
    assert await receiver.receive(1, wait_s=0.1) == []
    waiting = asyncio.create_task(receiver.receive(1, wait_s=60))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await receiver.close()
    # The SDK does not give its credit back between two receives, so that both share one grant.
    grants = 1 if isinstance(metered.driver.inner, ServiceBusDriver) else 2
    async with asyncio.timeout(5):
        while metered.by_broker().get(("orders", "empty-receive"), NOTHING).units < grants:
            await asyncio.sleep(0.01)
    assert (await metered.by_client())["orders", "empty-receive"].units == 2
    assert metered.by_broker()["orders", "empty-receive"].units == grants


async def test_waiting_with_prefetch_costs_nothing_more(
    metered: Metered, servicebus: NamespaceFixture
) -> None:
    """C1: the credit stays with the link."""
    servicebus.queue("orders")
    receiver = metered.driver.receiver("orders", prefetch=10)
    for _ in range(3):
        assert await receiver.receive(1, wait_s=0.05) == []
    told = metered.by_broker()
    assert await metered.by_client() == told == {}


async def test_scheduling_is_sending_and_cancelling_is_management(
    metered: Metered, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    sender = metered.driver.sender("orders")
    in_an_hour = parcel(b"later", annotations=due_at(int(time.time() * 1000) + 3_600_000))
    numbers = await sender.schedule([in_an_hour], timeout_s=10)
    await sender.cancel_scheduled(numbers, timeout_s=10)
    told = metered.by_broker()
    counted = await metered.by_client()
    assert in_numbers(counted) == in_numbers(told)
    assert {key[1] for key in counted} == {"send", "management"}
