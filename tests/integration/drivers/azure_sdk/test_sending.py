"""The SDK's driver sends: many at once, cancelled, timed out, and after the link has gone."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.integration.drivers.azure_sdk.trouble import detached, fault
from twinbus.amqp.codec.types import Timestamp
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    CommunicationError,
    LinkDetached,
    MessageNotFound,
    MessageRefused,
    OperationTimeout,
    ServerBusy,
)
from twinbus.testing.namespaces import NamespaceFixture

TIMEOUT_S = 20.0
SHORT_S = 0.4


def native(text: str) -> OutgoingMessage:
    return OutgoingMessage(native=ServiceBusMessage(text, message_id=text))


def plain(text: str) -> OutgoingMessage:
    return OutgoingMessage(
        Message(properties=Properties(message_id=text), body=text.encode()).encode()
    )


async def bodies(driver: ServiceBusDriver, queue: str, count: int) -> list[str]:
    """What is in a queue, in its order."""
    receiver = driver.receiver(queue)
    found = await receiver.peek(count + 10, timeout_s=TIMEOUT_S)
    await receiver.close()
    return [bytes(Message.decode(each.encoded).body).decode() for each in found]


@pytest.mark.parametrize("make", [native, plain])
async def test_one_and_several_arrive_in_order(
    driver: ServiceBusDriver, queue: str, make: type[OutgoingMessage]
) -> None:
    sender = driver.sender(queue)
    await sender.send([make("a")], timeout_s=TIMEOUT_S)
    await sender.send([make("b"), make("c")], timeout_s=TIMEOUT_S)
    await sender.send([native("d"), plain("e")], timeout_s=TIMEOUT_S)
    await sender.send([], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 5) == list("abcde")


async def test_every_kind_of_message_that_the_sdk_has_is_sent(
    driver: ServiceBusDriver, queue: str
) -> None:
    """P0: as it is, alone or with others."""
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("b1"))
    batch.add_message(ServiceBusMessage("b2"))
    sections = OutgoingMessage(native=AmqpAnnotatedMessage(data_body=[b"s"]))
    sender = driver.sender(queue)
    await sender.send([OutgoingMessage(native=batch)], timeout_s=TIMEOUT_S)
    await sender.send([sections], timeout_s=TIMEOUT_S)
    await sender.send([OutgoingMessage(native=batch), sections, native("n")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 7) == ["b1", "b2", "s", "b1", "b2", "s", "n"]


async def test_many_tasks_share_a_sender(driver: ServiceBusDriver, queue: str) -> None:
    """P0: although the SDK's own sender repeats itself then; each message is there once."""
    sender = driver.sender(queue)
    names = [f"m{index}" for index in range(40)]
    await asyncio.gather(*(sender.send([native(name)], timeout_s=TIMEOUT_S) for name in names))
    assert sorted(await bodies(driver, queue, 40)) == sorted(names)


async def test_the_sdks_sender_is_never_used_by_two_at_once(
    driver: ServiceBusDriver, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: neither while the first opens the link nor afterwards."""
    sending = ServiceBusSender.send_messages
    inside: set[object] = set()

    async def alone(sdk: ServiceBusSender, message: Any, **options: Any) -> None:
        assert not inside, "two at once"
        inside.add(message)
        try:
            await sending(sdk, message, **options)
        finally:
            inside.clear()

    monkeypatch.setattr(ServiceBusSender, "send_messages", alone)
    sender = driver.sender(queue)
    for _ in range(2):
        sends = (sender.send([native(f"m{index}")], timeout_s=TIMEOUT_S) for index in range(5))
        await asyncio.gather(*sends)


async def test_a_message_at_the_limit_goes_as_bytes(driver: ServiceBusDriver, queue: str) -> None:
    """P13: the envelope around it takes nothing away from it."""
    sender = driver.sender(queue)
    limit = (await sender.attach(timeout_s=TIMEOUT_S)).message_bytes_max
    overhead = len(Message(body=b"x" * 1000).encode()) - 1000
    encoded = Message(body=b"x" * (limit - overhead)).encode()
    assert len(encoded) == limit
    await sender.send([OutgoingMessage(encoded)], timeout_s=TIMEOUT_S)


async def test_a_cancelled_send_leaves_the_sender_usable(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P0: the one that was cancelled may have arrived, the others have, once each."""
    sender = driver.sender(queue)
    await sender.send([native("before")], timeout_s=TIMEOUT_S)
    with fault(servicebus, "cannot-send", how="timeout"):
        pending = asyncio.create_task(sender.send([native("lost")], timeout_s=TIMEOUT_S))
        behind = asyncio.create_task(sender.send([native("behind")], timeout_s=TIMEOUT_S))
        await asyncio.sleep(SHORT_S)
        assert not pending.done()
    used = sender._link
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    # An answer to it may still come, and belongs to nobody.
    assert used is not None and used.is_dropped
    await behind
    await sender.send([native("after")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 4) == ["before", "behind", "after"]


async def test_cancelling_one_that_waits_for_its_turn_disturbs_nobody(
    driver: ServiceBusDriver, queue: str
) -> None:
    sender = driver.sender(queue)
    first = asyncio.create_task(sender.send([native("first")], timeout_s=TIMEOUT_S))
    second = asyncio.create_task(sender.send([native("second")], timeout_s=TIMEOUT_S))
    await asyncio.sleep(0)
    second.cancel()
    await first
    assert await bodies(driver, queue, 1) == ["first"]


async def test_no_send_outlives_its_time(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """F6: whether the service is silent about a message or about everything."""
    sender = driver.sender(queue)
    for kind, how in (("cannot-send", "timeout"), ("cannot-contact", "black-hole")):
        await sender.send([native(f"before {how}")], timeout_s=TIMEOUT_S)
        began_s = time.monotonic()
        with fault(servicebus, kind, how=how), pytest.raises(OperationTimeout) as raised:
            await sender.send([native("lost")], timeout_s=SHORT_S)
        assert time.monotonic() - began_s < SHORT_S + 5
        assert raised.value.is_ambiguous and raised.value.path == queue
    await sender.send([native("after")], timeout_s=TIMEOUT_S)


async def test_waiting_for_a_turn_counts_too(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """F6: behind one that is stuck."""
    sender = driver.sender(queue)
    with fault(servicebus, "cannot-send", how="timeout"):
        stuck = asyncio.create_task(sender.send([native("stuck")], timeout_s=4 * SHORT_S))
        await asyncio.sleep(0)
        with pytest.raises(OperationTimeout):
            await sender.send([native("waits")], timeout_s=SHORT_S)
        with pytest.raises(OperationTimeout):
            await stuck


async def test_an_idle_link_that_was_taken_away_is_no_error(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P0: it is opened again, and the message is there once."""
    sender = driver.sender(queue)
    await sender.send([native("before")], timeout_s=TIMEOUT_S)
    for index in range(3):
        await detached(servicebus)
        await sender.send([native(f"after {index}")], timeout_s=TIMEOUT_S)
    expected = ["before", "after 0", "after 1", "after 2"]
    assert await bodies(driver, queue, 4) == expected


async def test_an_idle_connection_that_was_lost_is_no_error(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P0: once the service can be reached again."""
    sender = driver.sender(queue)
    await sender.send([native("before")], timeout_s=TIMEOUT_S)
    with servicebus.outage("reset"):
        await asyncio.sleep(0.05)
    await sender.send([native("after")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 2) == ["before", "after"]


async def test_a_link_taken_while_a_send_is_pending_is_told(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P7: nobody knows whether that message was taken, so it is not sent again here."""
    sender = driver.sender(queue)
    await sender.send([native("before")], timeout_s=TIMEOUT_S)
    began_s = time.monotonic()
    with (
        fault(servicebus, "cannot-send", how="detach"),
        pytest.raises(LinkDetached) as raised,
    ):
        await sender.send([native("lost")], timeout_s=TIMEOUT_S)
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert raised.value.is_ambiguous and raised.value.is_transient
    await sender.send([native("after")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 2) == ["before", "after"]


async def test_nothing_is_tried_twice_here(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """F6: all retries are those of the layer above."""
    sender = driver.sender(queue)
    with servicebus.outage("throttled"):
        began_s = time.monotonic()
        with pytest.raises(ServerBusy) as raised:
            await sender.send([native("refused")], timeout_s=TIMEOUT_S)
        assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert raised.value.retry_after_s >= 10 and not raised.value.is_ambiguous
    await sender.send([native("after")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 1) == ["after"]


async def test_scheduled_messages_keep_their_times_and_can_be_taken_back(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P12: each has its own time, of its own type."""
    far = datetime.now(UTC) + timedelta(hours=1)
    as_bytes = Message(
        message_annotations={
            "x-opt-scheduled-enqueue-time": Timestamp(int(far.timestamp() * 1000) + 60_000)
        },
        body=b"later",
    ).encode()
    message = ServiceBusMessage("soon", scheduled_enqueue_time_utc=far)
    sender = driver.sender(queue)
    numbers = await sender.schedule(
        [OutgoingMessage(native=message), OutgoingMessage(as_bytes)], timeout_s=TIMEOUT_S
    )
    assert len(set(numbers)) == 2
    assert servicebus.machine(queue).scheduled_count == 2
    await sender.cancel_scheduled(numbers[:1], timeout_s=TIMEOUT_S)
    assert servicebus.machine(queue).scheduled_count == 1
    with pytest.raises(MessageNotFound):
        await sender.cancel_scheduled(numbers[:1], timeout_s=TIMEOUT_S)
    await sender.cancel_scheduled(numbers[1:], timeout_s=TIMEOUT_S)
    assert await sender.schedule([], timeout_s=TIMEOUT_S) == []


async def test_scheduling_survives_an_idle_link_that_was_taken_away(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """P0: the links of $management too."""
    far = datetime.now(UTC) + timedelta(hours=1)
    parcel = OutgoingMessage(native=ServiceBusMessage("x", scheduled_enqueue_time_utc=far))
    sender = driver.sender(queue)
    await sender.schedule([parcel], timeout_s=TIMEOUT_S)
    await detached(servicebus)
    await sender.schedule([parcel], timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage("x", application_properties={"odd": object()}),  # type: ignore[dict-item]
        ServiceBusMessage("x", application_properties={"huge": 2**70}),
    ],
)
async def test_a_message_that_cannot_be_encoded_is_the_callers(
    driver: ServiceBusDriver, queue: str, message: ServiceBusMessage
) -> None:
    """P7: a bad argument is no outage."""
    sender = driver.sender(queue)
    for parcels in (
        [OutgoingMessage(native=message)],
        [OutgoingMessage(native=message), native("x")],
    ):
        with pytest.raises(MessageRefused):
            await sender.send(parcels, timeout_s=TIMEOUT_S)
    await sender.send([native("after")], timeout_s=TIMEOUT_S)
    assert await bodies(driver, queue, 1) == ["after"]


async def test_a_closed_sender_says_so(driver: ServiceBusDriver, queue: str) -> None:
    sender = driver.sender(queue)
    await sender.send([native("a")], timeout_s=TIMEOUT_S)
    await sender.close()
    await sender.close()
    with pytest.raises(CommunicationError):
        await sender.send([native("b")], timeout_s=TIMEOUT_S)
    await driver.close()
    await driver.close()
    with pytest.raises(CommunicationError):
        driver.sender(queue)
