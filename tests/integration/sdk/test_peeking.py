"""Peeking with the stock client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, receive, receive_one


async def test_peek_shows_messages_and_changes_nothing(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M3: a peeked message is neither locked nor counted as delivered."""
    await sdk.send(
        queue, [ServiceBusMessage(f"m{n}", application_properties={"n": n}) for n in range(5)]
    )
    receiver = sdk.receiver(queue)

    peeked = await receiver.peek_messages(10)

    assert bodies(peeked) == [f"m{n}" for n in range(5)]
    assert [message.sequence_number for message in peeked] == [1, 2, 3, 4, 5]
    assert [message.application_properties for message in peeked] == [{b"n": n} for n in range(5)]
    assert {message.state for message in peeked} == {ServiceBusMessageState.ACTIVE}
    assert {message.locked_until_utc for message in peeked} == {None}
    assert all(message.enqueued_time_utc for message in peeked)
    assert broker.queue(queue)["locked_message_count"] == 0
    with pytest.raises(ValueError, match="peeked"):
        await receiver.complete_message(peeked[0])
    received = await receive(receiver, 5)
    assert {message.delivery_count for message in received} == {0}


async def test_peek_goes_on_where_it_ended(sdk: Sdk, queue: str) -> None:
    """M3: each peek of a receiver continues behind the last message that it saw."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(7)])
    receiver = sdk.receiver(queue)

    pages = [bodies(await receiver.peek_messages(3)) for _ in range(4)]
    assert pages == [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m6"], []]


async def test_peek_begins_where_it_is_told_to(sdk: Sdk, queue: str) -> None:
    """M3: from a sequence number on, at most so many."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(7)])
    receiver = sdk.receiver(queue)

    assert bodies(await receiver.peek_messages(2, sequence_number=5)) == ["m4", "m5"]
    assert bodies(await receiver.peek_messages(9, sequence_number=7)) == ["m6"]
    assert await receiver.peek_messages(9, sequence_number=8) == []
    assert await receiver.peek_messages(9, sequence_number=2**62) == []


async def test_an_empty_queue_has_nothing_to_peek(sdk: Sdk, queue: str) -> None:
    """M3: that is an answer, not an error."""
    assert await sdk.receiver(queue).peek_messages(10) == []


async def test_peek_sees_locked_deferred_and_scheduled_messages(sdk: Sdk, queue: str) -> None:
    """M3: everything that is in the queue, with its state."""
    await sdk.send(queue, [ServiceBusMessage(name) for name in ("locked", "deferred", "gone")])
    receiver, sender = sdk.receiver(queue), sdk.sender(queue)
    _locked, deferred, gone = await receive(receiver, 3)
    await receiver.defer_message(deferred)
    await receiver.complete_message(gone)
    due = datetime.now(UTC) + timedelta(hours=1)
    await sender.schedule_messages(ServiceBusMessage("scheduled"), due)

    peeked = await sdk.receiver(queue).peek_messages(10)

    assert [(str(message), message.state) for message in peeked] == [
        ("locked", ServiceBusMessageState.ACTIVE),
        ("deferred", ServiceBusMessageState.DEFERRED),
        ("scheduled", ServiceBusMessageState.SCHEDULED),
    ]
    scheduled_at = peeked[2].scheduled_enqueue_time_utc
    assert scheduled_at is not None
    assert abs(scheduled_at - due) < timedelta(seconds=1)


async def test_dead_letters_can_be_peeked(sdk: Sdk, queue: str) -> None:
    """M3: the dead-letter queue is peeked like any other."""
    await sdk.send(queue, ServiceBusMessage("dead"))
    receiver = sdk.receiver(queue)
    await receiver.dead_letter_message(await receive_one(receiver), reason="why")

    (peeked,) = await sdk.dead_letters(queue).peek_messages(10)
    assert (str(peeked), peeked.dead_letter_reason) == ("dead", "why")


async def test_large_messages_are_peeked_a_part_at_a_time(sdk: Sdk, queue: str) -> None:
    """M3: an answer is bounded; the next peek goes on."""
    await sdk.send(queue, *(ServiceBusMessage(b"x" * 250_000, message_id=str(n)) for n in range(8)))
    receiver = sdk.receiver(queue)

    seen: list[str | None] = []
    while page := await receiver.peek_messages(8):
        seen += [message.message_id for message in page]
    assert seen == [str(n) for n in range(8)]
