"""Forwarding as the stock client sees it, and through kills, full disks and closed targets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.integration.durability.broker_thread import BrokerThread
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    body,
    eventually,
    nothing_comes,
    receive,
    receive_one,
)
from twinbus.broker import Broker, BrokerOptions, EntityStatus, NamespaceSpec, QueueDescription
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.namespace import forwarder as forwarding_module
from twinbus.broker.namespace import namespace as namespace_module
from twinbus.broker.storage.interface import Op, PutCounters
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.errors import ConfigurationError


def chain(broker: BrokerProcess, **properties: Any) -> tuple[str, str]:
    """A queue, and the target that it forwards to; the properties are the target's."""
    target = broker.fresh_queue(**properties)
    return broker.fresh_queue(forward_to=target), target


async def holds(broker: BrokerProcess, queue: str, name: str, count: int) -> bool:
    return broker.counts(queue)[name] == count


async def test_messages_go_on_with_everything_they_have(sdk: Sdk, broker: BrokerProcess) -> None:
    """M3: in order, with ids, properties, what is left of their time, and their first number."""
    last = broker.fresh_queue()
    middle = broker.fresh_queue(forward_to=last)
    first = broker.fresh_queue(forward_to=middle)
    message = ServiceBusMessage(
        "body",
        message_id="id-1",
        session_id="session",
        correlation_id="correlation",
        application_properties={"number": 7, b"bytes": b"x"},
        time_to_live=timedelta(hours=1),
    )
    await sdk.send(first, message, [ServiceBusMessage(str(n)) for n in range(50)])

    received = await receive(sdk.receiver(last), 51)
    assert bodies(received) == ["body", *map(str, range(50))]
    arrived = received[0]
    assert (arrived.message_id, arrived.session_id) == ("id-1", "session")
    assert arrived.correlation_id == "correlation"
    assert arrived.application_properties == {b"number": 7, b"bytes": b"x"}
    assert arrived.time_to_live == timedelta(hours=1)
    assert arrived.delivery_count == 0
    assert [each.enqueued_sequence_number for each in received] == list(range(1, 52))
    assert broker.counts(first)["active_message_count"] == 0
    assert broker.counts(middle)["active_message_count"] == 0


async def test_nobody_receives_from_a_queue_that_forwards(sdk: Sdk, broker: BrokerProcess) -> None:
    """M3: the refusal says where to go; the dead letters can be received."""
    source, target = chain(broker)
    with pytest.raises(ServiceBusError, match=target):
        await sdk.receiver(source).receive_messages(1, max_wait_time=5)
    assert await nothing_comes(sdk.dead_letters(source))


async def test_dead_letters_are_forwarded(sdk: Sdk, broker: BrokerProcess) -> None:
    """M3: with their reason and where they come from."""
    target = broker.fresh_queue()
    source = broker.fresh_queue(forward_dead_lettered_messages_to=target)
    await sdk.send(source, ServiceBusMessage("bad"), ServiceBusMessage("good"))
    receiver = sdk.receiver(source)
    bad = await receive_one(receiver)
    await receiver.dead_letter_message(bad, reason="because", error_description="it is")

    arrived = await receive_one(sdk.receiver(target))
    assert body(arrived) == b"bad"
    assert arrived.dead_letter_reason == "because"
    assert arrived.dead_letter_source == source
    assert bodies(await receive(receiver, 1)) == ["good"]
    with pytest.raises(ServiceBusError, match=target):
        await sdk.dead_letters(source).receive_messages(1, max_wait_time=5)


async def test_a_target_that_detects_duplicates_drops_them(sdk: Sdk, broker: BrokerProcess) -> None:
    """M3: of what is forwarded too."""
    source, target = chain(broker, requires_duplicate_detection=True)
    for _ in range(3):
        await sdk.send(source, *(ServiceBusMessage(n, message_id=n) for n in "abc"))
    assert await eventually(partial(holds, broker, source, "active_message_count", 0))
    assert bodies(await receive(sdk.receiver(target), 3)) == ["a", "b", "c"]
    assert await nothing_comes(sdk.receiver(target))


async def test_what_the_target_can_never_take_is_dead_lettered(
    sdk: Sdk, broker: BrokerProcess
) -> None:
    """M3: with the reason, and without standing in the way of others."""
    source, target = chain(broker, max_message_size_bytes=1_000)
    await sdk.send(source, ServiceBusMessage("x" * 2_000), ServiceBusMessage("small"))

    assert bodies(await receive(sdk.receiver(target), 1)) == ["small"]
    dead = await receive_one(sdk.dead_letters(source))
    assert dead.dead_letter_reason == "ForwardingFailed"
    assert target in (dead.dead_letter_error_description or "")


async def test_a_queue_with_sessions_can_be_a_target(sdk: Sdk, broker: BrokerProcess) -> None:
    """M3: for messages that have a session id; the others are dead-lettered."""
    source, target = chain(broker, requires_session=True)
    await sdk.send(
        source,
        ServiceBusMessage("lost child"),
        *(ServiceBusMessage(str(n), session_id="mine") for n in range(3)),
    )

    receiver = sdk.receiver(target, session_id="mine")
    assert bodies(await receive(receiver, 3)) == ["0", "1", "2"]
    dead = await receive_one(sdk.dead_letters(source))
    assert body(dead) == b"lost child"
    assert "session id" in (dead.dead_letter_error_description or "")


async def test_a_killed_broker_forwards_every_message_once(tmp_path: Path) -> None:
    """M3, M8: killed again and again in the middle of it; none is lost and none is doubled."""
    with BrokerProcess(tmp_path / "data") as broker:
        target = broker.fresh_queue()
        source = broker.fresh_queue(forward_to=target)
        sdk = Sdk("aio", broker.connection_string)
        acknowledged: list[int] = []
        for begin in (0, 20_000, 40_000):
            sending = asyncio.create_task(_send(sdk, source, begin, acknowledged))
            assert await eventually(partial(_has, broker, target, len(acknowledged) + 600))
            broker.kill()
            await sending
            await sdk.close()
            broker.restart()
            sdk = Sdk("aio", broker.connection_string)

        # Then everything acknowledged is in the target, and nothing twice
        assert await eventually(partial(holds, broker, source, "active_message_count", 0))
        count = broker.counts(target)["active_message_count"]
        found = [int(each) for each in await _drained(sdk, target, count)]
        assert len(set(found)) == len(found) == count
        assert set(acknowledged) <= set(found)
        await sdk.close()


async def _send(sdk: Sdk, queue: str, begin: int, acknowledged: list[int]) -> None:
    sender = sdk.sender(queue)
    try:
        for first in range(begin, begin + 20_000, 100):
            numbers = range(first, first + 100)
            await sender.send_messages(
                [ServiceBusMessage(str(number)) for number in numbers], timeout=SEND_TIMEOUT_S
            )
            acknowledged += numbers
    except ServiceBusError:
        return


async def _has(broker: BrokerProcess, queue: str, count: int) -> bool:
    return broker.counts(queue)["active_message_count"] >= count


async def _drained(sdk: Sdk, queue: str, count: int) -> list[str]:
    receiver = sdk.receiver(queue, receive_mode="receiveanddelete", prefetch_count=500)
    return bodies(await receive(receiver, count, timeout_s=60))


# -- the broker in this process: its targets come and go --------------------------------------


async def test_messages_wait_while_the_target_is_closed_full_or_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M3: they stay in the source, in order, and go on when it can."""
    monkeypatch.setattr(forwarding_module, "RETRY_S", 0.05)
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo"))
        target = QueueDescription(path="target", status=EntityStatus.DISABLED)
        await namespace.create_queue(target)
        source = await namespace.create_queue(QueueDescription(path="s", forward_to="target"))
        sdk = Sdk("aio", namespace.connection_string)

        # Closed
        await sdk.send("s", [ServiceBusMessage(str(n)) for n in range(3)])
        await asyncio.sleep(0.2)
        assert source.message_count == 3
        assert source.locked_count == 0
        # Open
        await namespace.update_queue(QueueDescription(path="target"))
        assert bodies(await receive(sdk.receiver("target"), 3)) == ["0", "1", "2"]
        # Gone, and with it the forward: a new one of that name is another queue (M14)
        await namespace.delete_queue("target")
        await sdk.send("s", [ServiceBusMessage(str(n)) for n in range(3)])
        await sdk.send("s", *(ServiceBusMessage(bytes(200_000)) for _ in range(6)))
        made = await namespace.create_queue(QueueDescription(path="target", max_size_mb=1))
        await asyncio.sleep(0.2)
        assert (made.message_count, source.message_count) == (0, 9)
        # Asked for again, and full after a part of it
        await namespace.update_queue(QueueDescription(path="s", forward_to="target"))
        assert await eventually(_is(lambda: made.message_count == 8))
        await asyncio.sleep(0.2)
        assert (made.message_count, source.message_count) == (8, 1)
        # There is room again
        receiver = sdk.receiver("target")
        for message in await receive(receiver, 8):
            await receiver.complete_message(message)
        assert await eventually(_is(lambda: source.message_count == 0))
        await sdk.close()


def _is(holds_now: Any) -> Any:
    async def ask() -> bool:
        return bool(holds_now())

    return ask


async def test_subscriptions_forward_to_queues_and_queues_to_topics() -> None:
    """M1, M3: a queue of one's own, fed by the subscriptions of several topics."""
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("mine",)))
        await namespace.create_topic(TopicDescription(path="news"))
        for name in ("a", "b"):
            await namespace.create_subscription(
                SubscriptionDescription(path=f"news/subscriptions/{name}", forward_to="mine")
            )
        await namespace.create_queue(QueueDescription(path="entrance", forward_to="news"))
        with pytest.raises(ConfigurationError, match="loop"):
            await namespace.update_queue(QueueDescription(path="mine", forward_to="entrance"))
        sdk = Sdk("aio", namespace.connection_string)
        await sdk.send("entrance", ServiceBusMessage("x"), ServiceBusMessage("y"))

        assert sorted(bodies(await receive(sdk.receiver("mine"), 4))) == ["x", "x", "y", "y"]
        await sdk.close()


async def test_a_queue_that_begins_to_forward_sends_its_receivers_away() -> None:
    """M3: and stops doing so when it is told to."""
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("s", "target")))
        sdk = Sdk("aio", namespace.connection_string)
        receiver = sdk.receiver("s")
        assert await nothing_comes(receiver)
        await namespace.update_queue(QueueDescription(path="s", forward_to="target"))
        with pytest.raises(ServiceBusError):
            await receiver.receive_messages(1, max_wait_time=5)
        await sdk.send("s", ServiceBusMessage("on"))
        assert bodies(await receive(sdk.receiver("target"), 1)) == ["on"]

        await namespace.update_queue(QueueDescription(path="s"))
        await sdk.send("s", ServiceBusMessage("here"))
        assert bodies(await receive(sdk.receiver("s"), 1)) == ["here"]
        await sdk.close()


def test_a_full_disk_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: both ends of a move are refused together, and tried again together."""
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 0.05)
    with BrokerThread(tmp_path / "data", monkeypatch) as broker:
        namespace = broker.namespace
        closed = QueueDescription(path="orders", status=EntityStatus.SEND_DISABLED)
        broker.run(lambda: namespace.update_queue(closed))
        forwarding = QueueDescription(path="s", forward_to="orders")
        source = broker.run(lambda: namespace.create_queue(forwarding))
        broker.run(lambda: _sent(namespace.connection_string, 1_500))
        assert source.message_count == 1_500

        # When the target opens as the disk becomes full
        async def open_and_fill() -> None:
            await namespace.update_queue(QueueDescription(path="orders"))
            broker.store.is_full = True

        broker.run(open_and_fill)
        broker.run(lambda: eventually(_is(lambda: broker.store.refusals >= 3)))
        broker.store.is_full = False

        # Then all of it arrives, once
        target = namespace.queue("orders")
        assert target is not None
        broker.run(lambda: eventually(_is(lambda: target.message_count == 1_500)))
        assert (source.message_count, source.byte_count) == (0, 0)
        assert broker.run(lambda: _numbers(namespace.connection_string)) == list(range(1_500))


async def _sent(connection_string: str, count: int) -> None:
    sdk = Sdk("aio", connection_string)
    for first in range(0, count, 100):
        await sdk.send("s", [ServiceBusMessage(str(first + n)) for n in range(100)])
    await sdk.close()


async def _numbers(connection_string: str) -> list[int]:
    sdk = Sdk("aio", connection_string)
    found = await _drained(sdk, "orders", 1_500)
    await sdk.close()
    return sorted(map(int, found))


async def test_a_message_leaves_and_arrives_in_one_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M8: whatever transaction is the last one, every message is in exactly one place."""
    commits: list[dict[int, int]] = []
    commit = MemoryStore.commit

    def recorded(store: MemoryStore, ops: Sequence[Op]) -> None:
        commit(store, ops)
        books = [op.counters for op in ops if isinstance(op, PutCounters)]
        commits.append({each.queue_id: each.message_count for each in books})

    monkeypatch.setattr(MemoryStore, "commit", recorded)
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("target",)))
        target = namespace.queue("target")
        source = await namespace.create_queue(QueueDescription(path="s", forward_to="target"))
        assert target is not None
        sdk = Sdk("aio", namespace.connection_string)
        for _ in range(30):
            await sdk.send("s", [ServiceBusMessage(str(n)) for n in range(50)])
        assert await eventually(_is(lambda: target.message_count == 1_500))
        await sdk.close()

    stored = {source.queue_id: 0, target.queue_id: 0}
    total = 0
    for books in commits:
        stored.update({key: count for key, count in books.items() if key in stored})
        # Sends add to the sum; nothing ever takes from it.
        assert sum(stored.values()) >= total
        total = sum(stored.values())
    assert total == 1_500
