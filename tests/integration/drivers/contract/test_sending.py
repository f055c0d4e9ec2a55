"""The contract of a Sender."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.parcels import bodies, due_at, parcel
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker import EntityStatus
from twinbus.drivers.interface import Driver
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AuthenticationFailed,
    EntityDisabled,
    EntityNotFound,
    MessageNotFound,
    MessageTooLarge,
    ServiceError,
)
from twinbus.testing import NamespaceFixture

SOON_S = 20.0


async def test_a_message_arrives_byte_for_byte(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given a message with properties of many types
    servicebus.queue("orders")
    sent = Message(
        properties=Properties(message_id="m-1", subject="späť", content_type="text/plain"),
        application_properties={
            "whole": 7,
            "real": 1.5,
            "text": "žluť",
            "raw": b"\0\1",
            "no": None,
        },
        body=b"hello",
    ).encode()

    # When it is sent and received
    await driver.sender("orders").send([OutgoingMessage(sent)], timeout_s=SOON_S)
    [received] = await driver.receiver("orders").receive(5, wait_s=SOON_S)

    # Then what the service delivers ends with exactly those bytes
    assert received.encoded.endswith(sent)
    assert received.path == "orders"
    assert received.sequence_number == 1
    assert abs((received.enqueued_at_ms or 0) / 1000 - time.time()) < 300


async def test_several_parcels_are_one_batch_in_order(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    wanted = [b"%d" % number for number in range(50)]
    await driver.sender("orders").send([parcel(body) for body in wanted], timeout_s=SOON_S)
    receiver = driver.receiver("orders")
    received = await receiver.receive(50, wait_s=SOON_S)
    assert bodies(received) == wanted


async def test_a_batch_is_taken_as_a_whole_or_not_at_all(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given a batch with one message that no service takes: a ping that has a body
    queue = servicebus.queue("orders")
    bad = parcel(b"x", content_type="application/vnd.ms-servicebus-ping")

    # When it is sent
    with pytest.raises(ServiceError):
        await driver.sender("orders").send([parcel(b"good"), bad], timeout_s=SOON_S)

    # Then the good one is not there either
    assert queue.active_message_count == 0


async def test_many_tasks_may_send_at_once(driver: Driver, servicebus: NamespaceFixture) -> None:
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    await asyncio.gather(
        *(sender.send([parcel(b"%d" % number)], timeout_s=SOON_S) for number in range(60))
    )
    assert queue.active_message_count == 60
    received = await driver.receiver("orders").receive(60, wait_s=SOON_S)
    assert sorted(map(int, bodies(received))) == list(range(60))


async def test_attaching_tells_the_limit_and_sends_nothing(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    assert sender.facts is None
    facts = await sender.attach(timeout_s=SOON_S)
    assert facts.message_bytes_max == 262_144
    assert queue.active_message_count == 0
    assert sender.facts == facts


async def test_the_limit_is_remembered_when_the_service_is_gone(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """P13: it is asked for in an outage."""
    servicebus.queue("orders")
    sender = driver.sender("orders")
    await sender.send([parcel(b"one")], timeout_s=SOON_S)
    known = sender.facts
    assert known is not None and known.message_bytes_max == 262_144
    with servicebus.outage("refused"), pytest.raises(ServiceError):
        await sender.send([parcel(b"two")], timeout_s=SOON_S)
    assert sender.facts == known


async def test_a_message_above_the_limit_is_refused_and_the_next_is_taken(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    with pytest.raises(MessageTooLarge):
        await sender.send([parcel(bytes(300_000))], timeout_s=SOON_S)
    await sender.send([parcel(bytes(200_000))], timeout_s=SOON_S)
    assert queue.active_message_count == 1


async def test_an_unknown_queue_is_not_found(driver: Driver) -> None:
    sender = driver.sender("nowhere")
    with pytest.raises(EntityNotFound) as caught:
        await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert not caught.value.is_transient
    with pytest.raises(EntityNotFound):
        await sender.attach(timeout_s=SOON_S)


async def test_a_queue_that_takes_nothing_says_so(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders", status=EntityStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabled):
        await driver.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)


async def test_a_wrong_key_is_no_authentication_and_shows_no_secret(
    make_driver: type[Driver], servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    name, _, rest = servicebus.connection_string.partition("SharedAccessKey=")
    key = rest.partition(";")[0]
    wrong = "d3Jvbmc="
    other = make_driver(f"{name}SharedAccessKey={wrong}{rest[len(key) :]}")
    try:
        with pytest.raises(AuthenticationFailed) as caught:
            await other.sender("orders").send([parcel(b"x")], timeout_s=SOON_S)
        assert wrong not in str(caught.value) and key not in str(caught.value)
    finally:
        await other.close()


async def test_scheduled_messages_wait_and_can_be_taken_back(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given two messages for tomorrow
    queue = servicebus.queue("orders")
    sender = driver.sender("orders")
    tomorrow = due_at(int(time.time() * 1000) + 86_400_000)
    numbers = await sender.schedule(
        [
            parcel(b"a", annotations=tomorrow, message_id="a"),
            parcel(b"b", annotations=tomorrow, message_id="b"),
        ],
        timeout_s=SOON_S,
    )
    assert queue.scheduled_message_count == 2

    # When one is taken back, it is gone, and cannot be taken back again
    await sender.cancel_scheduled(numbers[:1], timeout_s=SOON_S)
    assert queue.scheduled_message_count == 1
    with pytest.raises(MessageNotFound):
        await sender.cancel_scheduled(numbers[:1], timeout_s=SOON_S)


async def test_a_sender_closes_twice_and_takes_nothing_afterwards(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    sender = driver.sender("orders")
    await sender.send([parcel(b"x")], timeout_s=SOON_S)
    await sender.close()
    await sender.close()
    with pytest.raises(ServiceError) as caught:
        await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert not caught.value.is_transient
    await driver.close()
    await driver.close()
