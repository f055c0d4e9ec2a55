"""Receiving with the stock client: peek-lock, receive-and-delete, credit and waiting."""

from __future__ import annotations

import asyncio
import time

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    body,
    eventually,
    nothing_comes,
    opened,
    receive,
)


@pytest.mark.parametrize("prefetch_count", [0, 100])
async def test_a_locked_message_is_hidden_until_it_is_completed(
    sdk: Sdk, queue: str, broker: BrokerProcess, prefetch_count: int
) -> None:
    """M2: peek-lock, with and without messages fetched ahead."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(30)])
    receiver = sdk.receiver(queue, prefetch_count=prefetch_count)

    # When one receiver holds all messages
    held = await receive(receiver, 30)
    assert bodies(held) == [f"m{n}" for n in range(30)]
    assert broker.queue(queue)["locked_message_count"] == 30

    # Then another gets none of them, and they still count until they are completed
    assert await nothing_comes(sdk.receiver(queue))
    assert broker.queue(queue)["active_message_count"] == 30
    for message in held:
        await receiver.complete_message(message)
    assert broker.queue(queue)["active_message_count"] == 0
    assert broker.queue(queue)["size_in_bytes"] == 0


async def test_the_lock_token_is_the_delivery_tag(sdk: Sdk, queue: str) -> None:
    """M2: the token in the delivery annotations is the tag, read as a GUID."""
    # A message with a header of its own is written another way than a plain one.
    urgent = AmqpAnnotatedMessage(data_body=b"two", header=AmqpMessageHeader(priority=9))
    await sdk.send(queue, ServiceBusMessage("one"), urgent)
    first, second = await receive(sdk.receiver(queue), 2)

    for message in (first, second):
        annotations = message.raw_amqp_message.delivery_annotations
        assert annotations is not None
        assert annotations[b"x-opt-lock-token"] == message.lock_token
    assert first.lock_token != second.lock_token


async def test_waiting_for_a_message_ends_when_it_comes_or_the_time_is_over(
    sdk: Sdk, queue: str
) -> None:
    """M10: max_wait_time bounds a receive, and a message ends it at once."""
    receiver, sender = await opened(sdk.receiver(queue)), sdk.sender(queue)

    began_s = time.monotonic()
    assert await receiver.receive_messages(5, max_wait_time=1) == []
    assert 0.9 < time.monotonic() - began_s < 10

    waiting = asyncio.ensure_future(receiver.receive_messages(5, max_wait_time=60))
    await asyncio.sleep(0.3)
    began_s = time.monotonic()
    await sender.send_messages(ServiceBusMessage("at last"), timeout=SEND_TIMEOUT_S)
    assert bodies(await waiting) == ["at last"]
    assert time.monotonic() - began_s < 10


async def test_a_receive_takes_no_more_than_it_asked_for(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2: what nobody asked for is neither locked nor counted as delivered."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(10)])

    first = await receive(sdk.receiver(queue), 3)
    assert bodies(first) == ["m0", "m1", "m2"]
    assert broker.queue(queue)["locked_message_count"] == 3

    second = await receive(sdk.receiver(queue), 7)
    assert bodies(second) == [f"m{n}" for n in range(3, 10)]
    assert {message.delivery_count for message in second} == {0}


async def test_a_receiver_can_be_iterated(sdk: Sdk, queue: str) -> None:
    """M10: a for loop over a receiver ends when nothing came for max_wait_time."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(5)])
    receiver = await opened(sdk.receiver(queue, max_wait_time=2))

    seen = []
    async for message in receiver:
        seen.append(str(message))
        await receiver.complete_message(message)
    assert seen == [f"m{n}" for n in range(5)]


async def test_competing_receivers_share_a_queue(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M1: each message goes to one of the receivers, and every receiver gets some."""
    receivers = [await opened(sdk.receiver(queue)) for _ in range(3)]

    async def work(receiver: object) -> list[str]:
        done = []
        while messages := await receive(receiver, 10, timeout_s=4):
            for message in messages:
                await receiver.complete_message(message)  # type: ignore[attr-defined]
            done += bodies(messages)
        return done

    # Given three receivers that wait
    working = [asyncio.ensure_future(work(receiver)) for receiver in receivers]
    await asyncio.sleep(0.5)

    # When messages come
    sender = sdk.sender(queue)
    for first in range(0, 60, 10):
        batch = [ServiceBusMessage(str(n)) for n in range(first, first + 10)]
        await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)

    # Then they are shared, and nothing is lost or doubled
    shares = await asyncio.gather(*working)
    assert sorted(int(each) for share in shares for each in share) == list(range(60))
    assert all(shares), [len(share) for share in shares]
    assert broker.queue(queue)["active_message_count"] == 0


@pytest.mark.parametrize("prefetch_count", [0, 20])
async def test_receive_and_delete_takes_messages_at_once(
    sdk: Sdk, queue: str, broker: BrokerProcess, prefetch_count: int
) -> None:
    """M2: a message taken this way has no lock and is gone."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(20)])
    receiver = sdk.receiver(
        queue,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        prefetch_count=prefetch_count,
    )

    received = await receive(receiver, 20)

    assert bodies(received) == [f"m{n}" for n in range(20)]
    assert {message.locked_until_utc for message in received} == {None}
    assert {message.delivery_count for message in received} == {0}
    with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
        await receiver.complete_message(received[0])

    async def is_empty() -> bool:
        return bool(broker.queue(queue)["active_message_count"] == 0)

    assert await eventually(is_empty)
    assert await nothing_comes(sdk.receiver(queue))


async def test_receive_and_delete_leaves_what_it_did_not_ask_for(sdk: Sdk, queue: str) -> None:
    """M2: only messages that were asked for are deleted."""
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(5)])

    taken = await receive(sdk.receiver(queue, receive_mode="receiveanddelete"), 2)
    assert bodies(taken) == ["m0", "m1"]
    assert bodies(await receive(sdk.receiver(queue), 3)) == ["m2", "m3", "m4"]


async def test_messages_of_all_sizes_share_a_connection(sdk: Sdk, queue: str) -> None:
    """M2: sizes do not change what a receiver sees, nor the order."""
    sizes = [1, 200_000, 10, 100_000, 1]
    await sdk.send(queue, *(ServiceBusMessage(b"x" * size) for size in sizes))

    received = await receive(sdk.receiver(queue, prefetch_count=10), len(sizes))
    assert [len(body(message)) for message in received] == sizes
