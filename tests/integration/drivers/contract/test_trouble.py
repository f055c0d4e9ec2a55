"""The contract in bad weather: deadlines, outages, cancellation, links that were taken away."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.parcels import bodies, parcel
from twinbus.drivers.interface import Driver
from twinbus.errors import (
    CommunicationError,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)
from twinbus.testing import NamespaceFixture

SOON_S = 20.0


async def test_a_namespace_that_refuses_is_no_communication(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """F5: refused."""
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    with servicebus.outage("refused"), pytest.raises(CommunicationError) as caught:
        await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert caught.value.is_transient and not caught.value.is_ambiguous
    await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert queue.active_message_count == 1


async def test_an_open_link_survives_an_outage_without_an_error_afterwards(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    await sender.send([parcel(b"1")], timeout_s=SOON_S)
    with servicebus.outage("refused"):
        await asyncio.sleep(0.1)
    await sender.send([parcel(b"2")], timeout_s=SOON_S)
    assert queue.active_message_count == 2


async def test_a_black_hole_ends_with_the_deadline(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """F5: black hole. No call outlives its time."""
    servicebus.queue("orders")
    used, fresh = driver.sender("orders"), driver.sender("orders")
    await used.send([parcel(b"1")], timeout_s=SOON_S)
    with servicebus.outage("black-hole"):
        for sender in (used, fresh):
            began = time.monotonic()
            with pytest.raises(ServiceError) as caught:
                await sender.send([parcel(b"2")], timeout_s=0.7)
            assert isinstance(caught.value, OperationTimeout | CommunicationError)
            assert time.monotonic() - began < 10
    await used.send([parcel(b"3")], timeout_s=SOON_S)
    await fresh.send([parcel(b"4")], timeout_s=SOON_S)


async def test_a_throttled_send_is_busy(driver: Driver, servicebus: NamespaceFixture) -> None:
    """F2: refused before anything was stored."""
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    with servicebus.outage("throttled"), pytest.raises(ServerBusy) as caught:
        await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert caught.value.retry_after_s == 10
    assert queue.active_message_count == 0
    await sender.send([parcel(b"x")], timeout_s=SOON_S)


async def test_a_service_that_breaks_is_an_internal_error(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """F1: cannot send."""
    servicebus.queue("orders")
    with servicebus.outage("cannot-send", entity="orders"), pytest.raises(ServiceInternalError):
        await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)


async def test_a_send_without_an_answer_times_out_and_may_have_been_stored(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """F4: a timed-out send may or may not have been stored."""
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    await sender.attach(timeout_s=SOON_S)
    with (
        servicebus.outage("cannot-send", how="timeout", applied_probability=1.0),
        pytest.raises(OperationTimeout) as caught,
    ):
        await sender.send([parcel(b"x")], timeout_s=0.6)
    assert caught.value.is_ambiguous
    assert queue.active_message_count == 1
    await sender.send([parcel(b"y")], timeout_s=SOON_S)


async def test_an_idle_link_that_was_taken_away_is_no_error(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    sender, receiver = driver.sender("orders"), driver.receiver("orders")
    await sender.send([parcel(b"1")], timeout_s=SOON_S)
    messages = await receiver.receive(1, wait_s=SOON_S)
    with servicebus.outage("detach"):
        await asyncio.sleep(0.1)
    await sender.send([parcel(b"2")], timeout_s=SOON_S)
    assert await receiver.complete(messages, timeout_s=SOON_S) == []
    assert bodies(await receiver.receive(1, wait_s=SOON_S)) == [b"2"]
    assert queue.active_message_count == 1


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_cancelled_send_leaves_the_sender_usable(
    driver: Driver, servicebus: NamespaceFixture, is_open: bool
) -> None:
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    if is_open:
        await sender.attach(timeout_s=SOON_S)
    with servicebus.outage("cannot-send", how="timeout"):
        sending = asyncio.create_task(sender.send([parcel(b"1")], timeout_s=SOON_S))
        await asyncio.sleep(0.3)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    await sender.send([parcel(b"2")], timeout_s=SOON_S)
    assert queue.active_message_count == 1


async def test_a_cancelled_receive_loses_no_message(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    receiver = driver.receiver("orders")
    waiting = asyncio.create_task(receiver.receive(10, wait_s=60))
    await asyncio.sleep(0.3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
    assert bodies(await receiver.receive(10, wait_s=SOON_S)) == [b"x"]


async def test_closing_ends_every_call_that_waits(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """L1: every waiting call ends with a typed error."""
    servicebus.queue("orders")
    receiver = driver.receiver("orders")
    waiting = asyncio.create_task(receiver.receive(10, wait_s=60))
    await asyncio.sleep(0.3)
    await driver.close()
    async with asyncio.timeout(10):
        result = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(result[0], ServiceError) or result == [[]]


async def test_what_was_closed_here_says_nothing_about_the_message(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """Y4: a mover whose own driver closes must not take its messages for poison."""
    queue = servicebus.queue("orders")
    sender, receiver = driver.sender("orders"), driver.receiver("orders")
    await sender.send([parcel(b"x")], timeout_s=SOON_S)
    await sender.close()
    await receiver.close()
    with pytest.raises(CommunicationError) as caught:
        await sender.send([parcel(b"y")], timeout_s=SOON_S)
    assert not caught.value.is_transient and not caught.value.is_ambiguous
    with pytest.raises(CommunicationError):
        await receiver.receive(1, wait_s=0.1)
    assert queue.active_message_count == 1
