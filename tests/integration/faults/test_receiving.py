"""Receiving and settling meet a fault, as the stock client sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
)

from tests.integration.faults.switchboard import PATIENCE_S, Switchboard, drained, patience_s
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    eventually,
    opened,
    receive,
    receive_one,
)

VALUES = [f"value {n}" for n in range(4)]


@pytest.fixture
async def filled(sdk: Sdk, queue: str) -> str:
    """A queue with four messages."""
    messages = [ServiceBusMessage(value) for value in VALUES]
    await sdk.sender(queue).send_messages(messages, timeout=SEND_TIMEOUT_S)
    return queue


@pytest.mark.parametrize(
    ("options", "on_open_link", "on_new_link"),
    [
        ({}, ServiceBusError, ServiceBusError),
        ({"how": "timeout"}, None, OperationTimeoutError),
        ({"how": "detach"}, ServiceBusConnectionError, ServiceBusConnectionError),
    ],
    ids=["error", "timeout", "detach"],
)
async def test_what_a_receiver_sees(
    options: dict[str, Any],
    on_open_link: type[Exception] | None,
    on_new_link: type[Exception],
    sdk: Sdk,
    broker: BrokerProcess,
    faults: Switchboard,
    filled: str,
) -> None:
    """F1: nothing can be received, sends go on, and afterwards every message is there once."""
    receiver = sdk.receiver(filled)
    held = await receive_one(receiver)
    with faults.on("cannot-receive", filled, **options):
        await sdk.send(filled, ServiceBusMessage("sent meanwhile"))
        if on_open_link is None:
            assert await receiver.receive_messages(1, max_wait_time=PATIENCE_S) == []
        else:
            with pytest.raises(on_open_link):
                await receiver.receive_messages(1, max_wait_time=SEND_TIMEOUT_S)
        with pytest.raises(on_new_link):
            await sdk.receiver(filled).receive_messages(1, max_wait_time=patience_s(on_new_link))
        await opened(sdk.receiver("bystander"))
        await receiver.close()

    rest = await drained(sdk, broker, filled)
    assert sorted([*bodies([held]), *rest]) == sorted([*VALUES, "sent meanwhile"])


@pytest.mark.parametrize("applied", [0, 1], ids=["not-applied", "applied"])
async def test_a_settlement_whose_answer_is_lost(
    applied: int, sdk: Sdk, broker: BrokerProcess, faults: Switchboard, filled: str
) -> None:
    """F1, F4: applied or not, the client cannot know; a message comes again, none is lost."""
    receiver = sdk.receiver(filled)
    messages = await receive(receiver, len(VALUES))
    with faults.on("lost-disposition", filled, how="reset", applied_probability=applied):
        with pytest.raises(ServiceBusConnectionError):
            await receiver.complete_message(messages[0])
        assert faults.list()[0]["hit_count"] == 1

    left = len(VALUES) - applied
    assert await eventually(lambda: _has_count(broker, filled, left))
    faults.add("lock-loss", filled)
    assert sorted(await drained(sdk, broker, filled)) == VALUES[applied:]


@pytest.mark.parametrize("sdk", ["aio"], indirect=True)
async def test_a_settlement_that_is_never_answered(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, filled: str
) -> None:
    """F1: the client waits; only the aio one can be told to stop waiting."""
    receiver = sdk.receiver(filled)
    message = await receive_one(receiver)
    with faults.on("lost-disposition", filled, applied_probability=1), pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.complete_message(message), PATIENCE_S)
    assert await eventually(lambda: _has_count(broker, filled, len(VALUES) - 1))


async def test_locks_that_are_lost_bring_their_messages_back(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, filled: str
) -> None:
    """F4: the late settlement is refused, and every message is received again, counted."""
    receiver = sdk.receiver(filled)
    first = await receive(receiver, len(VALUES))
    faults.add("lock-loss", filled)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first[0])
    again = await receive(sdk.receiver(filled), len(VALUES))
    assert sorted(bodies(again)) == VALUES
    assert {message.delivery_count for message in again} == {1}


async def test_session_locks_are_lost_with_the_rest(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard
) -> None:
    """F4: sessions may be lost; whoever accepts one again gets its messages again."""
    queue = broker.fresh_queue(requires_session=True)
    await sdk.send(queue, ServiceBusMessage("in hand", session_id="one"))
    receiver = sdk.receiver(queue, session_id="one")
    message = await receive_one(receiver)
    faults.add("lock-loss", queue)
    with pytest.raises((SessionLockLostError, MessageLockLostError)):
        await receiver.complete_message(message)
    again = await receive_one(sdk.receiver(queue, session_id="one"))
    assert bodies([again]) == ["in hand"]
    assert again.delivery_count == 1


async def test_a_subscription_fails_while_its_topic_and_its_sister_work(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard
) -> None:
    """F1: per entity, also of a topic."""
    topic = broker.fresh_topic("one", "two")
    client = sdk.client()
    with faults.on("cannot-receive", f"{topic}/subscriptions/one"):
        sender = sdk._kept(client.get_topic_sender(topic))
        await sender.send_messages(ServiceBusMessage("both"), timeout=SEND_TIMEOUT_S)
        failing = sdk._kept(client.get_subscription_receiver(topic, "one"))
        with pytest.raises(ServiceBusError):
            await failing.receive_messages(1, max_wait_time=SEND_TIMEOUT_S)
        working = sdk._kept(client.get_subscription_receiver(topic, "two"))
        assert bodies([await receive_one(working)]) == ["both"]
    with faults.on("cannot-send", topic), pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("neither"), timeout=SEND_TIMEOUT_S)
    again = sdk._kept(client.get_subscription_receiver(topic, "one"))
    assert bodies([await receive_one(again)]) == ["both"]


async def test_links_that_are_detached_at_a_rate(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, filled: str
) -> None:
    """F1: detached by force again and again; what was not settled comes again in the end."""
    received: list[str] = []
    with faults.on("detach", filled, rate_per_s=2):
        receiver = sdk.receiver(filled)
        with pytest.raises(ServiceBusConnectionError):
            await _receive_for_ever(receiver, received)
        assert faults.list()[0]["hit_count"] >= 1
    faults.add("lock-loss", filled)
    assert sorted(await drained(sdk, broker, filled)) == VALUES
    assert set(received) <= set(VALUES)


async def test_a_disk_that_is_full_refuses_and_goes_on(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, filled: str
) -> None:
    """M8, F1: nothing acknowledged is lost; administration hears of it too."""
    receiver = sdk.receiver(filled)
    with faults.on("disk-full"):
        message = await receive_one(receiver)
        with pytest.raises(ServiceBusError):
            await receiver.complete_message(message)
        status, answer = broker.http(
            "PUT",
            f"/namespaces/{broker.namespace}/queues/no-room",
            {},
            token=broker.token(port=broker.admin_port),
            headers={"Host": f"localhost:{broker.admin_port}"},
        )
        assert (status, "full" in answer["error"]) == (503, True)
    await asyncio.sleep(0)
    faults.add("lock-loss", filled)
    rest = await drained(sdk, broker, filled)
    # The settlement was refused; like every unanswered one it may be applied all the same.
    assert set(VALUES) - set(rest) <= set(bodies([message]))


async def _receive_for_ever(receiver: Any, received: list[str]) -> None:
    while True:
        received += bodies(await receiver.receive_messages(1, max_wait_time=SEND_TIMEOUT_S))


async def _has_count(broker: BrokerProcess, queue: str, count: int) -> bool:
    return bool(broker.queue(queue)["active_message_count"] == count)
