"""What a queue refuses, and the exception that the stock client makes of it."""

from __future__ import annotations

import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    RECEIVE_TIMEOUT_S,
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    nothing_comes,
    receive,
    receive_one,
)
from twinbus.broker import Broker, EntityStatus, NamespaceSpec, QueueDescription

AT_ONCE_S = 10.0
"""Far less than what the client's own retries would take on top, on a busy machine."""


async def test_a_queue_that_does_not_exist_is_not_found_at_once(sdk: Sdk, queue: str) -> None:
    """M10: for sending, receiving, peeking and scheduling alike; the client does not retry."""
    missing = f"{queue}-not"
    patient = sdk.client(retry_total=3)
    began_s = time.monotonic()

    with pytest.raises(MessagingEntityNotFoundError):
        await sdk.sender(missing, client=patient).send_messages(
            ServiceBusMessage("lost"), timeout=SEND_TIMEOUT_S
        )
    with pytest.raises(MessagingEntityNotFoundError):
        await sdk.receiver(missing, client=patient).receive_messages(
            max_wait_time=RECEIVE_TIMEOUT_S
        )
    with pytest.raises(MessagingEntityNotFoundError):
        await sdk.dead_letters(missing, client=patient).peek_messages()
    assert time.monotonic() - began_s < AT_ONCE_S


async def test_names_do_not_care_about_case(sdk: Sdk, queue: str) -> None:
    """M10: a queue is found however its name is written."""
    await sdk.send(queue.upper(), ServiceBusMessage("found"))
    assert bodies(await receive(sdk.receiver(queue), 1)) == ["found"]


async def test_a_deleted_queue_is_gone_for_its_clients(sdk: Sdk, broker: BrokerProcess) -> None:
    """M10: also for those that were connected."""
    queue = broker.fresh_queue()
    sender = sdk.sender(queue)
    await sender.send_messages(ServiceBusMessage("one"), timeout=SEND_TIMEOUT_S)

    broker.delete_queue(queue)

    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("two"), timeout=SEND_TIMEOUT_S)
    with pytest.raises(MessagingEntityNotFoundError):
        await sdk.send(queue, ServiceBusMessage("three"))


async def test_a_full_queue_takes_messages_again_when_there_is_room(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M3: MaxSizeInMegabytes is a limit with an error of its own."""
    queue = make_queue(max_size_mb=1)
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    large = ServiceBusMessage(b"x" * 200_000)

    # Given a queue that is full
    for _ in range(5):
        await sender.send_messages(large, timeout=SEND_TIMEOUT_S)
    for message in (large, [large]):
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(message, timeout=SEND_TIMEOUT_S)
    assert broker.queue(queue)["active_message_count"] == 5

    # When something leaves it
    for message in await receive(receiver, 2):
        await receiver.complete_message(message)

    # Then the same sender can send
    await sender.send_messages(large, timeout=SEND_TIMEOUT_S)
    assert broker.queue(queue)["active_message_count"] == 4


@pytest.mark.parametrize("status", ["SendDisabled", "ReceiveDisabled", "Disabled"])
async def test_a_closed_door_is_told_as_such(sdk: Sdk, make_queue: MakeQueue, status: str) -> None:
    """M3: entity status says who may pass, and the other direction is not affected."""
    queue = make_queue(status=status)

    if status == "ReceiveDisabled":
        await sdk.send(queue, ServiceBusMessage("in"))
    else:
        with pytest.raises(MessagingEntityDisabledError):
            await sdk.send(queue, ServiceBusMessage("in"))
    receiver = sdk.receiver(queue)
    if status == "SendDisabled":
        assert await nothing_comes(receiver)
    else:
        with pytest.raises(MessagingEntityDisabledError):
            await receiver.receive_messages(max_wait_time=RECEIVE_TIMEOUT_S)


async def test_a_door_can_be_closed_and_opened_while_clients_are_connected() -> None:
    """M3: a change of status holds for links that exist, in both directions."""
    async with Broker() as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("doors",)))
        sdk = Sdk("aio", namespace.connection_string)
        sender, receiver = sdk.sender("doors"), sdk.receiver("doors")
        await sender.send_messages(ServiceBusMessage("before"), timeout=SEND_TIMEOUT_S)
        await receiver.complete_message(await receive_one(receiver))

        await namespace.update_queue(
            QueueDescription(path="doors", status=EntityStatus.SEND_DISABLED)
        )
        with pytest.raises(MessagingEntityDisabledError):
            await sender.send_messages(ServiceBusMessage("shut"), timeout=SEND_TIMEOUT_S)

        await namespace.update_queue(
            QueueDescription(path="doors", status=EntityStatus.RECEIVE_DISABLED)
        )
        await sender.send_messages(ServiceBusMessage("waits"), timeout=SEND_TIMEOUT_S)
        with pytest.raises(ServiceBusError):
            await receiver.receive_messages(max_wait_time=RECEIVE_TIMEOUT_S)

        await namespace.update_queue(QueueDescription(path="doors"))
        assert str(await receive_one(sdk.receiver("doors"))) == "waits"
        await sdk.close()


async def test_ids_of_more_than_128_characters_are_refused(sdk: Sdk, queue: str) -> None:
    """M10: the client checks its own; what slips through is refused by the broker."""
    with pytest.raises(ValueError, match="128"):
        ServiceBusMessage("x", message_id="i" * 129)
    message = ServiceBusMessage("x")
    assert message.raw_amqp_message.properties is not None
    message.raw_amqp_message.properties.message_id = "i" * 129
    with pytest.raises(ServiceBusError):
        await sdk.send(queue, message)


async def test_a_dead_letter_queue_cannot_be_sent_to(sdk: Sdk, queue: str) -> None:
    """M2: only the broker moves messages there."""
    with pytest.raises(ServiceBusError):
        await sdk.send(f"{queue}/$DeadLetterQueue", ServiceBusMessage("no"))


async def test_a_session_receiver_is_refused_on_a_queue_without_sessions(
    sdk: Sdk, queue: str
) -> None:
    """M3: a client that asks for a session is not given messages without."""
    with pytest.raises(ServiceBusError):
        await sdk.receiver(queue, session_id="s").receive_messages(max_wait_time=RECEIVE_TIMEOUT_S)
