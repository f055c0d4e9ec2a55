"""Auto-delete on idle: who goes, who stays, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, eventually, nothing_comes
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec, QueueDescription
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.common.clock import AdjustableClock
from twinbus.errors import ConfigurationError

IDLE_S = 300
IDLE_MS = IDLE_S * 1_000


class World:
    """A broker whose clock the test moves."""

    def __init__(self, clock: AdjustableClock, namespace: RunningNamespace) -> None:
        self._clock = clock
        self.namespace = namespace
        self.sdk = Sdk("aio", namespace.connection_string)

    async def passes(self, seconds: float) -> None:
        """Time goes by, and whoever set a timer notices."""
        self._clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0.005)

    def has(self, path: str) -> bool:
        return self.namespace.has_entity(path)

    async def make(self, path: str = "temp", **properties: Any) -> None:
        await self.namespace.create_queue(
            QueueDescription(path=path, auto_delete_on_idle_ms=IDLE_MS, **properties)
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = AdjustableClock()
    async with Broker(BrokerOptions(), clock=clock) as broker:
        made = World(clock, await broker.add_namespace(NamespaceSpec("demo", queues=("stays",))))
        yield made
        await made.sdk.close()


async def test_an_idle_queue_goes_and_others_stay(world: World) -> None:
    """M3: with everything in it, when its time is over and not before."""
    await world.make()
    await world.passes(IDLE_S - 5)
    assert world.has("temp")
    await world.passes(10)
    assert await eventually(_says(lambda: not world.has("temp")))
    await world.passes(IDLE_S * 10)
    assert world.has("stays")


def _says(holds: Callable[[], bool]) -> Callable[[], Any]:
    async def ask() -> bool:
        return holds()

    return ask


@pytest.mark.parametrize("kind", ["sender", "receiver", "dead_letters"])
async def test_a_queue_with_an_open_link_never_goes(world: World, kind: str) -> None:
    """M3: however long nothing happens on it; its time starts when the link is closed."""
    await world.make()
    opened = getattr(world.sdk, kind)("temp")
    if kind == "sender":
        await opened.send_messages(ServiceBusMessage("x"), timeout=20)
    else:
        assert await nothing_comes(opened)
    for _ in range(5):
        await world.passes(IDLE_S)
    assert world.has("temp")

    await world.sdk.close()
    await world.passes(IDLE_S - 5)
    await world.passes(IDLE_S - 5)
    assert await eventually(_says(lambda: _gone_after(world, IDLE_S)))


def _gone_after(world: World, seconds: float) -> bool:
    world._clock.advance(seconds)
    return not world.has("temp")


async def test_a_short_visit_starts_the_time_anew(world: World) -> None:
    """M3: a send, a peek or a change between two looks is not overlooked."""
    await world.make()
    for _ in range(4):
        await world.passes(IDLE_S - 10)
        await world.sdk.send("temp", ServiceBusMessage("still here"))
        await world.sdk.close()
    await world.passes(IDLE_S - 10)
    assert world.has("temp")
    changed = QueueDescription(path="temp", auto_delete_on_idle_ms=IDLE_MS, max_delivery_count=3)
    await world.namespace.update_queue(changed)
    await world.passes(IDLE_S - 10)
    assert world.has("temp")
    # Nobody wants it to go any more
    await world.namespace.update_queue(QueueDescription(path="temp"))
    await world.passes(IDLE_S * 5)
    assert world.has("temp")


async def test_a_queue_with_scheduled_messages_stays(world: World) -> None:
    """M3: somebody counts on it."""
    await world.make()
    later = datetime.now(UTC) + timedelta(hours=10)
    await world.sdk.sender("temp").schedule_messages(ServiceBusMessage("later"), later)
    await world.sdk.close()
    for _ in range(5):
        await world.passes(IDLE_S)
    assert world.has("temp")


async def test_a_subscription_goes_although_messages_keep_coming(world: World) -> None:
    """M3: what nobody receives is no use; and its topic lives on with its publisher."""
    namespace = world.namespace
    await namespace.create_topic(TopicDescription(path="news", auto_delete_on_idle_ms=IDLE_MS))
    for name, idle_ms in (("gone", IDLE_MS), ("kept", None)):
        path = f"news/subscriptions/{name}"
        await namespace.create_subscription(
            SubscriptionDescription(path=path, auto_delete_on_idle_ms=idle_ms)
        )
    sender = world.sdk.client().get_topic_sender("news")
    for _ in range(4):
        await sender.send_messages(ServiceBusMessage("news"), timeout=20)
        await world.passes(IDLE_S / 2)
    assert await eventually(_says(lambda: not world.has("news/subscriptions/gone")))
    assert world.has("news/subscriptions/kept")
    await sender.close()
    await world.sdk.close()

    # An idle topic takes its subscriptions with it
    for _ in range(3):
        await world.passes(IDLE_S)
    assert await eventually(_says(lambda: not world.has("news")))
    assert not world.has("news/subscriptions/kept")


async def test_a_neighbour_with_a_longer_name_keeps_nobody_alive(world: World) -> None:
    """M3: a link to "temp/other" is no link to "temp"."""
    await world.make()
    await world.namespace.create_queue("temp/other")
    await world.sdk.send("temp/other", ServiceBusMessage("x"))
    await world.passes(IDLE_S + 1)
    assert await eventually(_says(lambda: not world.has("temp")))


async def test_through_restarts(sdk: Sdk, tmp_path: Path) -> None:
    """M3: the time starts anew; a client that comes too late is told that there is no queue."""
    with BrokerProcess(tmp_path / "data", arguments=("--adjustable-clock",)) as broker:
        name = broker.fresh_queue(auto_delete_on_idle_ms=IDLE_MS)
        broker.admin("POST", "/clock/advance", {"seconds": IDLE_S - 60})
        broker.kill()
        broker.restart()
        broker.admin("POST", "/clock/advance", {"seconds": IDLE_S - 60})
        assert name in _names(broker)

        broker.admin("POST", "/clock/advance", {"seconds": 61})
        assert await eventually(_says(lambda: name not in _names(broker)))
        late = Sdk(sdk.flavour, broker.connection_string)
        with pytest.raises(ServiceBusError):
            await late.send(name, ServiceBusMessage("too late"))
        await late.close()
        broker.kill()
        broker.restart()
        assert name not in _names(broker)


def _names(broker: BrokerProcess) -> list[str]:
    return [each["path"] for each in broker.admin("GET", "/namespaces/demo/queues")]


@pytest.mark.parametrize("idle_ms", [0, -1, 999, 1.5, True, "5", 10**18])
def test_an_odd_time_is_refused(idle_ms: Any) -> None:
    """M5: with a sentence."""
    with pytest.raises(ConfigurationError, match="auto_delete_on_idle_ms"):
        QueueDescription(path="q", auto_delete_on_idle_ms=idle_ms)
