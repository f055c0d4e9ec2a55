"""Duplicate detection as the stock client sees it, and through a kill -9."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.integration.durability.broker_thread import BrokerThread
from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    eventually,
    nothing_comes,
    receive,
)
from twinbus.broker import QueueDescription
from twinbus.broker.namespace import namespace as namespace_module


def named(message_id: str, body: str = "body") -> ServiceBusMessage:
    return ServiceBusMessage(body, message_id=message_id)


async def test_a_repeat_within_the_window_is_accepted_and_dropped(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """M3: alone, inside a batch, and after the original was completed."""
    queue = make_queue(requires_duplicate_detection=True)
    await sdk.send(queue, named("1", "first"), named("1", "again"), [named("2"), named("2")])
    receiver = sdk.receiver(queue)
    received = await receive(receiver, 2)
    assert bodies(received) == ["first", "body"]
    for message in received:
        await receiver.complete_message(message)

    await sdk.send(queue, named("1", "after it was completed"), ServiceBusMessage("no id"))
    assert bodies(await receive(receiver, 1)) == ["no id"]


async def test_an_id_may_come_again_after_the_window(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M3: a window of one second."""
    queue = make_queue(requires_duplicate_detection=True, duplicate_detection_window_ms=1_000)
    await sdk.send(queue, named("1", "first"))
    await asyncio.sleep(1.1)
    await sdk.send(queue, named("1", "later"))

    assert bodies(await receive(sdk.receiver(queue), 2)) == ["first", "later"]


async def test_a_scheduled_message_is_a_duplicate_too(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M3: it counts when it is scheduled; the dropped one has no sequence number."""
    queue = make_queue(requires_duplicate_detection=True)
    sender = sdk.sender(queue)
    due = datetime.now(UTC) + timedelta(hours=1)
    (first,) = await sender.schedule_messages(named("1"), due)
    numbers = await sender.schedule_messages([named("1"), named("2")], due)
    await sdk.send(queue, named("1"), named("2"))

    assert first > 0 and numbers == [0, first + 1]
    assert await nothing_comes(sdk.receiver(queue))


async def test_a_killed_broker_forgets_no_id_and_no_message(tmp_path: Path) -> None:
    """M3, M8: whoever is not sure sends again; every message is there exactly once."""
    properties = {"requires_duplicate_detection": True}
    with BrokerProcess(tmp_path / "data") as broker:
        queue = broker.fresh_queue(**properties)
        # Given a sender that is cut off by kill -9 in the middle of its work, twice
        acknowledged = 0
        for _ in range(2):
            sdk = Sdk("aio", broker.connection_string)
            sending = asyncio.create_task(_send_all(sdk, queue, acknowledged))
            assert await eventually(partial(_has, broker, queue, acknowledged + 40))
            broker.kill()
            acknowledged = await sending
            await sdk.close()
            broker.restart()

        # When everything is sent again, some of it for the third time
        sdk = Sdk("aio", broker.connection_string)
        for first in range(0, acknowledged + 50, 50):
            await sdk.send(queue, [named(f"id-{n}", str(n)) for n in range(first, first + 50)])

        # Then every message is there once
        count = broker.counts(queue)["active_message_count"]
        assert count >= acknowledged
        found = bodies(await receive(sdk.receiver(queue, prefetch_count=100), count))
        assert sorted(map(int, found)) == list(range(count))
        await sdk.close()


async def _send_all(sdk: Sdk, queue: str, first: int) -> int:
    """Send until the broker is gone; how many were acknowledged."""
    sender = sdk.sender(queue)
    number = first
    try:
        while True:
            await sender.send_messages(named(f"id-{number}", str(number)), timeout=SEND_TIMEOUT_S)
            number += 1
    except ServiceBusError:
        return number


async def _has(broker: BrokerProcess, queue: str, count: int) -> bool:
    return broker.counts(queue)["active_message_count"] >= count


def test_a_full_disk_forgets_the_ids_of_what_it_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: the refused message and its duplicate are refused, the next attempt is stored."""
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 0.05)
    with BrokerThread(tmp_path / "data", monkeypatch) as broker:
        description = QueueDescription(path="once", requires_duplicate_detection=True)
        queue = broker.run(lambda: broker.namespace.create_queue(description))
        broker.store.is_full = True
        broker.run(lambda: _refused(broker.namespace.connection_string))
        assert queue.message_count == 0
        broker.store.is_full = False
        broker.run(lambda: _taken(broker.namespace.connection_string))
        assert queue.message_count == 1


async def _refused(connection_string: str) -> None:
    sdk = Sdk("aio", connection_string)
    senders = [sdk.sender("once") for _ in range(3)]
    for sender in senders:
        with pytest.raises(ServiceBusError):
            await sender.send_messages(named("1", "refused"), timeout=SEND_TIMEOUT_S)
    await sdk.close()


async def _taken(connection_string: str) -> None:
    sdk = Sdk("aio", connection_string)
    await sdk.send("once", named("1", "stored"), named("1", "again"))
    await sdk.close()


async def test_a_topic_detects_duplicates_for_all_its_subscriptions(tmp_path: Path) -> None:
    """M1, M3: each of them gets one, also when it is sent again after a kill -9."""
    with BrokerProcess(tmp_path / "data") as broker:
        topic = broker.fresh_topic("a", "b", requires_duplicate_detection=True)
        for _ in range(2):
            sdk = Sdk("aio", broker.connection_string)
            await sdk.publish(topic, named("1", "first"), [named("1"), named("2", "second")])
            await sdk.close()
            broker.kill()
            broker.restart()

        sdk = Sdk("aio", broker.connection_string)
        for name in ("a", "b"):
            receiver = sdk.subscription(topic, name)
            assert bodies(await receive(receiver, 2)) == ["first", "second"]
            assert await nothing_comes(receiver)
        await sdk.close()
