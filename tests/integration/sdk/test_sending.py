"""Sending with the stock client: one, many, batches, and the limits of size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.performatives import TransferFrame
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    body,
    receive,
    receive_one,
    unwrapped,
)

MESSAGE_SIZE_BYTES_MAX = 262_144
# What the client adds for a message of more than 255 bytes in a batch.
BATCH_ENTRY_BYTES = 8


def message_of_size(size_bytes: int) -> ServiceBusMessage:
    """A message that takes exactly that many bytes on the wire, everything included."""
    filler = b"x" * (size_bytes - 1_000)
    rest = size_bytes - encoded_size(ServiceBusMessage(filler, message_id="exact"))
    return ServiceBusMessage(filler + b"x" * rest, message_id="exact")


def encoded_size(message: ServiceBusMessage) -> int:
    batch = ServiceBusMessageBatch()
    before = batch.size_in_bytes
    batch.add_message(message)
    return batch.size_in_bytes - before - BATCH_ENTRY_BYTES


async def test_a_message_waits_for_its_receiver(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M1: a send succeeds although no receiver runs."""
    # Given nobody who receives
    # When a message is sent
    await sdk.send(queue, ServiceBusMessage("hello"))

    # Then it is in the queue, and a receiver that comes later gets it
    assert broker.queue(queue)["active_message_count"] == 1
    received = await receive_one(sdk.receiver(queue))
    assert str(received) == "hello"
    assert received.sequence_number == 1
    assert received.delivery_count == 0


async def test_a_list_arrives_complete_and_in_order(sdk: Sdk, queue: str) -> None:
    """M3: a list of messages is one batch."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(25)])

    received = await receive(sdk.receiver(queue), 25)
    assert bodies(received) == [f"m{n}" for n in range(25)]
    assert [message.sequence_number for message in received] == list(range(1, 26))


async def test_a_batch_takes_what_a_message_may_weigh_and_not_more(sdk: Sdk, queue: str) -> None:
    """M3, M10: the broker tells the client how large a batch may be."""
    # Given a batch, made for the size that the broker announced
    sender = sdk.sender(queue)
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == MESSAGE_SIZE_BYTES_MAX

    # When it holds as many messages of 20 KB as fit
    filled = 13
    for number in range(filled):
        batch.add_message(ServiceBusMessage(b"x" * 20_000, message_id=str(number)))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 20_000))
    await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)

    # Then all that was added arrives
    received = await receive(sdk.receiver(queue), filled)
    assert [message.message_id for message in received] == [str(n) for n in range(filled)]


async def test_a_batch_may_be_made_smaller(sdk: Sdk, queue: str) -> None:
    """M10: a batch of the caller's size is sent like any other."""
    sender = sdk.sender(queue)
    batch = await sender.create_message_batch(max_size_in_bytes=1_000)
    batch.add_message(ServiceBusMessage("fits"))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage("x" * 1_000))
    await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)

    assert bodies(await receive(sdk.receiver(queue), 1)) == ["fits"]


async def test_a_body_comes_back_as_it_was_sent(sdk: Sdk, queue: str) -> None:
    """M1: bodies are bytes, and nobody changes them."""
    contents = [b"", b"x", b"\x00\xff" * 1_000]
    messages = [ServiceBusMessage(content) for content in contents]
    await sdk.send(queue, *messages, messages)

    received = await receive(sdk.receiver(queue), 6)
    assert [body(message) for message in received] == contents + contents


async def test_a_message_may_have_no_body_at_all(sdk: Sdk, queue: str) -> None:
    """M10: ServiceBusMessage(None) goes out without a body section and comes back so."""
    nothing = ServiceBusMessage(None, subject="only a subject")
    await sdk.send(queue, nothing, [nothing])

    receiver = sdk.receiver(queue)
    first, second = await receive(receiver, 2)
    assert first.body is None and second.body is None
    assert first.subject == "only a subject"

    # And it can be dead-lettered, which writes a reason into it
    await receiver.dead_letter_message(first, reason="nothing in it")
    dead = await receive_one(sdk.dead_letters(queue))
    assert dead.body is None
    assert (dead.subject, dead.dead_letter_reason) == ("only a subject", "nothing in it")


async def test_the_largest_message_is_taken_and_one_byte_more_is_not(sdk: Sdk, queue: str) -> None:
    """M3: 256 KB is the limit for a message, and it includes everything."""
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    largest = message_of_size(MESSAGE_SIZE_BYTES_MAX)

    # When one byte too many is sent, then the client is told which limit it met
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(
            message_of_size(MESSAGE_SIZE_BYTES_MAX + 1), timeout=SEND_TIMEOUT_S
        )

    # And the same sender can send the largest message
    await sender.send_messages(largest, timeout=SEND_TIMEOUT_S)
    received = await receive_one(receiver)
    assert body(received) == body(largest)
    assert received.sequence_number == 1
    await receiver.complete_message(received)


async def test_a_received_message_can_be_sent_on(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M1: what the broker wrote into a message does not follow it into its next life."""
    await sdk.send(queue, ServiceBusMessage("again", message_id="same"))
    receiver = sdk.receiver(queue)
    first = await receive_one(receiver)
    await receiver.abandon_message(first)
    first = await receive_one(receiver)
    await receiver.complete_message(first)

    await sdk.send(queue, first)
    second = await receive_one(receiver)
    assert (str(second), second.message_id) == ("again", "same")
    assert (second.sequence_number, second.delivery_count) == (2, 0)
    assert second.lock_token != first.lock_token
    await receiver.complete_message(second)
    assert broker.queue(queue)["active_message_count"] == 0


def repeat_transfers(sender: Any) -> None:
    """Make the client write every transfer twice under one delivery id.

    The aio client does so by itself now and then, when tasks share a sender.
    """
    connection = unwrapped(sender)._handler._connection
    write = connection._process_outgoing_frame

    def twice(channel: int, frame: Any) -> Any:
        written = write(channel, frame)
        if isinstance(frame, TransferFrame):
            return in_turn(written, write(channel, frame)) if written else write(channel, frame)
        return written

    async def in_turn(first: Any, second: Any) -> None:
        await first
        await second

    connection._process_outgoing_frame = twice


async def test_a_repeated_transfer_is_stored_once(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M10: the same delivery again is answered again, and that is all."""
    sender = sdk.sender(queue)
    await sender.send_messages(ServiceBusMessage("0"), timeout=SEND_TIMEOUT_S)

    repeat_transfers(sender)
    for number in range(1, 6):
        await sender.send_messages(ServiceBusMessage(str(number)), timeout=SEND_TIMEOUT_S)

    assert broker.queue(queue)["active_message_count"] == 6
    assert bodies(await receive(sdk.receiver(queue), 6)) == [str(n) for n in range(6)]


async def test_concurrent_sends_on_one_aio_sender_store_every_message_once(
    broker: BrokerProcess, queue: str
) -> None:
    """M10: the aio client is not made for tasks that share a sender; no message suffers."""
    sdk = Sdk("aio", broker.connection_string)
    sender = sdk.sender(queue)
    await sender.send_messages(ServiceBusMessage("0"), timeout=SEND_TIMEOUT_S)

    sends = [
        sender.send_messages(ServiceBusMessage(str(n)), timeout=SEND_TIMEOUT_S)
        for n in range(1, 41)
    ]
    outcomes = await asyncio.gather(*sends, return_exceptions=True)

    assert [each for each in outcomes if each is not None] == []
    received = await receive(sdk.receiver(queue, receive_mode="receiveanddelete"), 41)
    assert sorted(map(int, bodies(received))) == list(range(41))
    assert broker.queue(queue)["active_message_count"] == 0
    await sdk.close()


async def test_an_idle_client_goes_on(broker: BrokerProcess, queue: str) -> None:
    """M10: clients that were silent for a while, longer than their keep-alive, still work."""
    flavours = [Sdk(flavour, broker.connection_string) for flavour in ("sync", "aio")]
    senders = [sdk.sender(queue) for sdk in flavours]
    receivers = [sdk.receiver(queue) for sdk in flavours]
    for sender, receiver in zip(senders, receivers, strict=True):
        await sender.send_messages(ServiceBusMessage("before"), timeout=SEND_TIMEOUT_S)
        await receiver.complete_message(await receive_one(receiver))

    # The client pumps an idle receiver every 5 s.
    await asyncio.sleep(6)

    for sender, receiver in zip(senders, receivers, strict=True):
        await sender.send_messages(ServiceBusMessage("after"), timeout=SEND_TIMEOUT_S)
        received = await receive_one(receiver)
        assert str(received) == "after"
        await receiver.complete_message(received)
    await asyncio.gather(*(sdk.close() for sdk in flavours))


async def test_five_thousand_messages_arrive_in_order_and_none_twice(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M1, M2: a volume of batches comes out as it went in."""
    count, batch_count = 5_000, 500
    sender = sdk.sender(queue)
    for first in range(0, count, batch_count):
        batch = [ServiceBusMessage(str(n)) for n in range(first, first + batch_count)]
        await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)

    receiver = sdk.receiver(queue, prefetch_count=500, receive_mode="receiveanddelete")
    received = await receive(receiver, count, timeout_s=60)

    assert [int(str(message)) for message in received] == list(range(count))
    assert [message.sequence_number for message in received] == list(range(1, count + 1))
    assert broker.queue(queue)["active_message_count"] == 0
