"""Settling with the stock client: complete, abandon, defer, dead-letter."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageAlreadySettled, MessageNotFoundError

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, nothing_comes, receive, receive_one

NO_MESSAGE = {
    "active_message_count": 0,
    "deferred_message_count": 0,
    "dead_letter_message_count": 0,
    "locked_message_count": 0,
}


def counts(broker: BrokerProcess, queue: str) -> dict[str, int]:
    found = broker.queue(queue)
    return {name: found[name] for name in NO_MESSAGE}


async def test_a_completed_message_is_gone(sdk: Sdk, queue: str, broker: BrokerProcess) -> None:
    """M2: complete removes the message, once."""
    await sdk.send(queue, ServiceBusMessage("done"))
    receiver = sdk.receiver(queue)
    message = await receive_one(receiver)

    await receiver.complete_message(message)

    assert counts(broker, queue) == NO_MESSAGE
    assert await nothing_comes(receiver)
    with pytest.raises(MessageAlreadySettled):
        await receiver.complete_message(message)


async def test_messages_can_be_settled_in_any_order(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: each lock stands for itself."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(6)])
    receiver = sdk.receiver(queue)
    messages = await receive(receiver, 6)

    for index in (4, 0, 2):
        await receiver.complete_message(messages[index])
    for index in (5, 1, 3):
        await receiver.abandon_message(messages[index])

    again = await receive(receiver, 3)
    assert bodies(again) == ["m1", "m3", "m5"]
    assert [message.delivery_count for message in again] == [1, 1, 1]


async def test_an_abandoned_message_comes_again_and_is_counted(sdk: Sdk, queue: str) -> None:
    """M2: abandon hands the message out again, at its old place, with a delivery counted."""
    await sdk.send(queue, ServiceBusMessage("first"), ServiceBusMessage("second"))
    receiver = sdk.receiver(queue)
    tokens = set()

    for delivery_count in range(3):
        message = await receive_one(receiver)
        assert (str(message), message.delivery_count) == ("first", delivery_count)
        assert message.sequence_number == 1
        tokens.add(message.lock_token)
        await receiver.abandon_message(message)

    assert len(tokens) == 3
    assert bodies(await receive(receiver, 2)) == ["first", "second"]


async def test_too_many_deliveries_lead_to_the_dead_letter_queue(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: past MaxDeliveryCount the message is dead-lettered, and says why."""
    queue = make_queue(max_delivery_count=3)
    await sdk.send(queue, ServiceBusMessage("poison", application_properties={"kept": 1}))
    receiver = sdk.receiver(queue)

    for _ in range(3):
        await receiver.abandon_message(await receive_one(receiver))

    assert await nothing_comes(receiver)
    assert counts(broker, queue) == {**NO_MESSAGE, "dead_letter_message_count": 1}
    dead = await receive_one(sdk.dead_letters(queue))
    assert str(dead) == "poison"
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description
    assert dead.application_properties is not None
    assert dead.application_properties[b"kept"] == 1


async def test_a_deferred_message_waits_for_its_sequence_number(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: a deferred message is received by its number only."""
    await sdk.send(queue, ServiceBusMessage("later"), ServiceBusMessage("now"))
    receiver = sdk.receiver(queue)
    later, now = await receive(receiver, 2)
    await receiver.complete_message(now)

    # When it is put aside, then nobody is handed it
    await receiver.defer_message(later)
    assert await nothing_comes(receiver)
    assert counts(broker, queue) == {**NO_MESSAGE, "deferred_message_count": 1}

    # And it comes, under a lock, to whoever knows its number
    (message,) = await receiver.receive_deferred_messages(later.sequence_number)
    assert str(message) == "later"
    # Putting it aside was a decision, not a failed attempt
    assert message.delivery_count == 0
    assert message.lock_token is not None
    assert message.state is ServiceBusMessageState.DEFERRED
    with pytest.raises(MessageNotFoundError):
        await sdk.receiver(queue).receive_deferred_messages([later.sequence_number])
    await receiver.complete_message(message)
    assert counts(broker, queue) == NO_MESSAGE


async def test_an_abandoned_deferred_message_stays_deferred(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: it goes back to where it was."""
    await sdk.send(queue, ServiceBusMessage("aside"))
    receiver = sdk.receiver(queue)
    await receiver.defer_message(await receive_one(receiver))

    (message,) = await receiver.receive_deferred_messages([1])
    before = message.delivery_count
    await receiver.abandon_message(message)

    assert await nothing_comes(receiver)
    (message,) = await receiver.receive_deferred_messages([1])
    assert message.delivery_count == before + 1
    await receiver.dead_letter_message(message, reason="enough")
    assert counts(broker, queue) == {**NO_MESSAGE, "dead_letter_message_count": 1}


async def test_deferred_messages_can_be_taken_and_deleted(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: receive-and-delete works for deferred messages too."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(3)])
    receiver = sdk.receiver(queue)
    for message in await receive(receiver, 3):
        await receiver.defer_message(message)

    taker = sdk.receiver(queue, receive_mode="receiveanddelete")
    assert bodies(await taker.receive_deferred_messages([3, 1])) == ["m2", "m0"]
    assert counts(broker, queue) == {**NO_MESSAGE, "deferred_message_count": 1}
    with pytest.raises(MessageNotFoundError):
        await taker.receive_deferred_messages([1, 2])
    assert bodies(await taker.receive_deferred_messages([2])) == ["m1"]
    assert counts(broker, queue) == NO_MESSAGE


async def test_a_number_that_is_not_deferred_is_not_found(sdk: Sdk, queue: str) -> None:
    """M2: neither a message that waits in the queue nor one that never was."""
    await sdk.send(queue, ServiceBusMessage("active"))
    receiver = sdk.receiver(queue)

    for numbers in ([1], [77], [-1]):
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(numbers)
    assert bodies(await receive(receiver, 1)) == ["active"]


async def test_a_dead_lettered_message_says_why_and_where_from(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: reason, description, source and the message itself."""
    await sdk.send(
        queue,
        ServiceBusMessage("bad", message_id="id", application_properties={"kept": "yes"}),
        ServiceBusMessage("worse"),
        ServiceBusMessage("worst"),
    )
    receiver = sdk.receiver(queue)
    bad, worse, worst = await receive(receiver, 3)

    await receiver.dead_letter_message(bad, reason="why", error_description="because")
    await receiver.dead_letter_message(worse)
    await receiver.dead_letter_message(worst, reason="only a reason")

    assert counts(broker, queue) == {**NO_MESSAGE, "dead_letter_message_count": 3}
    dead = sdk.dead_letters(queue)
    first, second, third = await receive(dead, 3)
    assert (str(first), first.message_id) == ("bad", "id")
    assert (first.dead_letter_reason, first.dead_letter_error_description) == ("why", "because")
    assert first.dead_letter_source == queue
    assert first.application_properties is not None
    assert first.application_properties[b"kept"] == b"yes"
    assert first.enqueued_sequence_number == 1
    assert (second.dead_letter_reason, second.dead_letter_error_description) == (None, None)
    assert third.dead_letter_reason == "only a reason"


async def test_a_dead_letter_queue_is_settled_like_any_other(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: lock, abandon, defer and complete work there; nothing leaves it by itself."""
    await sdk.send(queue, ServiceBusMessage("dead"))
    receiver = sdk.receiver(queue)
    await receiver.dead_letter_message(await receive_one(receiver), reason="r")

    dead = sdk.dead_letters(queue)
    # Far more often than MaxDeliveryCount: there is nowhere else to go
    for delivery_count in range(12):
        message = await receive_one(dead)
        assert message.delivery_count == delivery_count
        await dead.abandon_message(message)
    message = await receive_one(dead)
    await dead.defer_message(message)
    assert await nothing_comes(dead)
    (message,) = await dead.receive_deferred_messages([message.sequence_number])
    await dead.complete_message(message)

    assert counts(broker, queue) == NO_MESSAGE
