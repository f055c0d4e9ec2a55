"""Clients over real namespaces: what comes out, and how it is settled. Through both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode
from twinbus.errors import ConfigurationError, EntityNotFound, InvalidEntityPath, MessageLockLost
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import NamespaceFixture


@pytest.fixture(params=["amqp", "servicebus"])
async def factory(
    request: pytest.FixtureRequest, servicebus: NamespaceFixture
) -> AsyncIterator[MessagingFactory]:
    driver: DriverName = request.param
    async with MessagingFactory.from_connection_string(
        servicebus.connection_string, driver=driver, operation_timeout=20
    ) as opened:
        yield opened


async def test_a_message_comes_out_as_it_went_in(
    factory: MessagingFactory, servicebus: NamespaceFixture
) -> None:
    """M1: every field of the public model."""
    servicebus.queue("orders")
    sent = BrokeredMessage(
        b"body",
        message_id="one",
        correlation_id="two",
        subject="three",
        to="four",
        reply_to="five",
        content_type="text/plain",
        time_to_live=timedelta(hours=1),
        properties={"colour": "red", "count": 3},
    )
    async with factory.create_queue_client("Orders") as client:
        await client.send(sent)
        [peeked] = await client.peek()
        received = await client.receive(max_wait_time=10)
        assert received is not None and received.sequence_number == peeked.sequence_number
        for name in ("body", "message_id", "correlation_id", "subject", "to", "reply_to"):
            assert getattr(received, name) == getattr(sent, name)
        assert received.properties == sent.properties
        assert received.time_to_live == sent.time_to_live
        assert received.enqueued_time_utc is not None and received.lock_token is not None
        with pytest.raises(ConfigurationError):
            peeked.complete()
        await received.complete()
        assert await client.receive(max_wait_time=0.1) is None


async def test_every_way_to_settle(factory: MessagingFactory, servicebus: NamespaceFixture) -> None:
    """M2: by the client, or by the message itself."""
    queue = servicebus.queue("orders")
    client = factory.create_queue_client("orders")
    await client.send_batch([BrokeredMessage(str(index).encode()) for index in range(4)])
    first = await client.receive(max_wait_time=10)
    assert first is not None
    await client.abandon(first)
    again, *rest = await receive_all(client, 4)
    assert (again.body, again.delivery_count) == (b"0", 1)
    await client.renew_lock(again)
    await client.complete(again)
    with pytest.raises(MessageLockLost):
        await again.complete()
    deferred, dead, given_back = rest
    await client.defer(deferred)
    await dead.dead_letter(reason="broken", description="it is")
    await given_back.complete()
    assert deferred.sequence_number is not None
    [deferred] = await client.receive_deferred([deferred.sequence_number])
    await deferred.complete()
    letters = factory.create_message_receiver("orders/$DeadLetterQueue")
    letter = await letters.receive(max_wait_time=10)
    assert letter is not None and letter.dead_letter_reason == "broken"
    with pytest.raises(ConfigurationError, match=r"'orders'.* message\.complete"):
        await client.complete(letter)
    await letter.complete()
    assert queue.active_message_count == queue.dead_letter_message_count == 0


async def receive_all(client: object, count: int) -> list[BrokeredMessage]:
    found: list[BrokeredMessage] = []
    while len(found) < count:
        found += await client.receive_batch(count, max_wait_time=10)  # type: ignore[attr-defined]
        assert found
    return sorted(found, key=lambda message: message.body)


async def test_topics_subscriptions_and_sessions(
    factory: MessagingFactory, servicebus: NamespaceFixture
) -> None:
    """M1, M3: every subscription gets its copy; a session is held by one receiver."""
    servicebus.subscription("news", "all")
    servicebus.queue("talks", requires_session=True)
    await factory.create_topic_client("news").send(BrokeredMessage(b"one"))
    await factory.create_message_sender("talks").send(BrokeredMessage(b"two", session_id="s"))
    subscription = factory.create_subscription_client("news", "all")
    async for message in subscription:
        assert message.body == b"one"
        await message.complete()
        break
    talk = factory.create_message_receiver("talks", session=NEXT_SESSION)
    message = await talk.receive(max_wait_time=10)  # type: ignore[assignment]
    assert message is not None and talk.session_id == "s" == message.session_id
    await message.complete()


async def test_a_queue_client_schedules_batches_and_iterates(
    factory: MessagingFactory, servicebus: NamespaceFixture
) -> None:
    """M3: as its sender and its receiver do."""
    servicebus.queue("orders")
    at = datetime.now(UTC) + timedelta(hours=1)
    async with factory.create_queue_client("orders") as client:
        numbers = await client.schedule_batch(
            [BrokeredMessage(body, scheduled_enqueue_time_utc=at) for body in (b"1", b"2")]
        )
        assert len(numbers) == 2
        await client.cancel_scheduled_message(*numbers)
        await client.send(BrokeredMessage(b"now"))
        async for message in client:
            assert message.body == b"now"
            await message.complete()
            break
        assert client.session_id is None


async def test_receive_and_delete_needs_no_settling(
    factory: MessagingFactory, servicebus: NamespaceFixture
) -> None:
    """M2: what was handed out is gone."""
    queue = servicebus.queue("orders")
    client = factory.create_queue_client("orders", receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    await client.send(BrokeredMessage(b"one"))
    message = await client.receive(max_wait_time=10)
    assert message is not None and queue.active_message_count == 0
    with pytest.raises(ConfigurationError, match="lock"):
        message.complete()


async def test_schedules(factory: MessagingFactory, servicebus: NamespaceFixture) -> None:
    """M3: cancelled before their time."""
    queue = servicebus.queue("orders")
    client = factory.create_queue_client("orders")
    at = datetime.now(UTC) + timedelta(hours=1)
    number = await client.schedule_message(BrokeredMessage(b"one", scheduled_enqueue_time_utc=at))
    assert number > 0 and queue.scheduled_message_count == 1
    await client.cancel_scheduled_message(number)
    assert queue.scheduled_message_count == 0


async def test_what_is_not_there_is_said(factory: MessagingFactory) -> None:
    """P0: a typed error from the call that needs it; making a client touches no network."""
    client = factory.create_queue_client("nowhere")
    with pytest.raises(EntityNotFound):
        await client.send(BrokeredMessage(b""))
    with pytest.raises(EntityNotFound):
        await client.receive(max_wait_time=5)


@pytest.mark.parametrize("path", ["", "/", "a//b", "$cbs", "orders/$management", "../x", "ä"])
async def test_a_path_that_can_be_nobodys_is_refused(
    path: str, servicebus: NamespaceFixture
) -> None:
    """P0: before anything is contacted."""
    async with MessagingFactory.from_connection_string(
        servicebus.connection_string, driver="amqp"
    ) as factory:
        for make in (factory.create_message_receiver, factory.create_message_sender):
            with pytest.raises((InvalidEntityPath, ConfigurationError)):
                make(path)


async def test_a_receiver_that_is_closed_is_no_way_out(
    factory: MessagingFactory, servicebus: NamespaceFixture
) -> None:
    """L1: and closing it twice is fine."""
    servicebus.queue("orders")
    receiver = factory.create_message_receiver("orders")
    assert await receiver.receive_batch(10, max_wait_time=0.05) == []
    await asyncio.gather(receiver.close(), receiver.close())
    with pytest.raises(ConfigurationError, match="closed"):
        await receiver.receive()
    with pytest.raises(ConfigurationError, match="max_message_count"):
        await factory.create_message_receiver("orders").receive_batch(0)
