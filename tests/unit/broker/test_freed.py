"""What is gone is freed at once, and does not wait for the garbage collector.

The collector looks at old objects once in a hundred million allocations. A tenant that creates and
deletes subscriptions, or clients that leave after an hour, would fill the memory until then.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.adversarial.test_rights import token_of
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import Accepted
from twinbus.broker.access.rules import Claim
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.engine.descriptions import SubscriptionDescription
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace

FREED_WITHIN_S = 5.0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def serving() -> AsyncIterator[RunningNamespace]:
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        namespace.add_rule("app", Claim.SEND | Claim.LISTEN)
        yield namespace


async def all_freed(watched: dict[str, weakref.ref[object]]) -> None:
    deadline = time.monotonic() + FREED_WITHIN_S
    while any(each() is not None for each in watched.values()):
        left = [name for name, each in watched.items() if each() is not None]
        assert time.monotonic() < deadline, f"still in memory: {', '.join(left)}"
        await asyncio.sleep(0.02)


async def test_a_deleted_queue_is_freed() -> None:
    """M13"""
    async with serving() as namespace:
        queue = await namespace.create_queue("short-lived")
        assert queue.dead_letters is not None
        watched = {"queue": weakref.ref(queue), "dead letters": weakref.ref(queue.dead_letters)}
        await namespace.delete_queue("short-lived")
        del queue
        await all_freed(watched)


@pytest.mark.parametrize("has_messages", [False, True], ids=["empty", "with messages"])
async def test_a_deleted_topic_is_freed_with_its_subscriptions(has_messages: bool) -> None:
    """M13"""
    async with serving() as namespace:
        topic = await namespace.create_topic("news")
        first = await namespace.create_subscription(
            SubscriptionDescription(path="news/subscriptions/first")
        )
        second = await namespace.create_subscription(
            SubscriptionDescription(path="news/subscriptions/second")
        )
        if has_messages:
            await asyncio.to_thread(send_one, namespace, "news")
        watched = {
            "topic": weakref.ref(topic),
            "first": weakref.ref(first),
            "second": weakref.ref(second),
            "dead letters": weakref.ref(second.dead_letters),
        }
        del first
        await namespace.delete_subscription("news", "first")
        await all_freed({"first": watched["first"]})
        del topic, second
        await namespace.delete_topic("news")
        await all_freed(watched)


def send_one(namespace: RunningNamespace, entity: str) -> None:
    with connected(namespace.port, token_of(namespace)) as client:
        sender = client.attach_sender(entity)
        assert client.send(sender, Message(body=b"x").encode()) == Accepted()


def idle(_client: WireClient) -> None:
    """It has shown a token, and nothing else."""


def sends(client: WireClient) -> None:
    sender = client.attach_sender("orders")
    assert client.send(sender, Message(body=b"x").encode()) == Accepted()


def delivered(client: WireClient) -> int:
    link = client.attach_receiver("orders")
    link.grant(1)
    event = client.wait_for(DeliveryReceived, lambda seen: seen.link is link)
    return int(event.delivery_id)


def receives(client: WireClient) -> None:
    sends(client)
    client.complete(delivered(client))


def holds_a_lock(client: WireClient) -> None:
    sends(client)
    delivered(client)


def asks(client: WireClient) -> None:
    client.manage("orders", "com.microsoft:peek-message", {})


@pytest.mark.parametrize("use", [idle, sends, receives, holds_a_lock, asks])
async def test_a_connection_that_has_left_is_freed(use: Callable[[WireClient], None]) -> None:
    """M13"""
    async with serving() as namespace:
        client = await asyncio.to_thread(connected, namespace.port, token_of(namespace))
        with client:
            await asyncio.to_thread(use, client)
            (peer,) = namespace.access.peers
            watched = {"peer": weakref.ref(peer), "connection": weakref.ref(peer.connection)}
            del peer
        await all_freed(watched)
