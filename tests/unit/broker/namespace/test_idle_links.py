"""Links on which nothing happens are ended, if the operator asks for it, as Azure ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.virtual_time import VirtualLoop
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.drivers import credentials
from twinbus.drivers.amqp import AmqpDriver, token_refresh
from twinbus.encoding.brokered_message import encode_message
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import ConfigurationError
from twinbus.message import BrokeredMessage

IDLE_S = 600.0
Story = Callable[[AmqpDriver, RunningNamespace], Awaitable[None]]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    for module in (token_refresh, credentials):
        monkeypatch.setattr(module, "time", made.wall())
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def told(loop: VirtualLoop, story: Story, idle_detach_s: float | None = IDLE_S) -> None:
    async def play() -> None:
        options = BrokerOptions(admin_port=None, idle_detach_s=idle_detach_s)
        async with Broker(options, clock=loop) as broker:
            namespace = await broker.add_namespace(NamespaceSpec("dev", queues=["orders"]))
            loop.wait_while(lambda: not namespace.access.is_quiet)
            driver = AmqpDriver.from_connection_string(namespace.connection_string)
            await story(driver, namespace)
            await driver.close()

    loop.run_until_complete(asyncio.wait_for(play(), 30 * 86_400))


def parcel() -> OutgoingMessage:
    return OutgoingMessage(encode_message(BrokeredMessage(b"x")))


def links(namespace: RunningNamespace) -> int:
    """Links to the queue itself."""
    ends = [end for peer in namespace.access.peers for _link, end in peer.links_and_ends()]
    return sum(end.path == "orders" for end in ends)


def test_a_link_ends_ten_minutes_after_its_last_use(loop: VirtualLoop) -> None:
    """M10: no earlier, and not much later; the next send opens another one."""

    async def story(driver: AmqpDriver, namespace: RunningNamespace) -> None:
        sender = driver.sender("orders")
        for _ in range(4):
            await sender.send([parcel()], timeout_s=10)
            await asyncio.sleep(IDLE_S - 1)
            assert links(namespace) == 1, "it was used in time"
        await asyncio.sleep(IDLE_S / 10 + 2)
        assert links(namespace) == 0
        await sender.send([parcel()], timeout_s=10)
        assert links(namespace) == 1

    told(loop, story)


def test_a_settlement_is_a_use_of_a_link(loop: VirtualLoop) -> None:
    """M10: a receiver that works on messages, and asks for no others, keeps its link."""

    async def story(driver: AmqpDriver, namespace: RunningNamespace) -> None:
        sender, receiver = driver.sender("orders"), driver.receiver("orders")
        await sender.send([parcel(), parcel()], timeout_s=10)
        messages = await receiver.receive(2, wait_s=10)
        await asyncio.sleep(30)
        await sender.close()
        await receiver.complete(messages[:1], timeout_s=10)
        await asyncio.sleep(IDLE_S - 1)
        assert links(namespace) == 1
        await asyncio.sleep(IDLE_S / 10 + 2)
        assert links(namespace) == 0

    told(loop, story)


def test_without_the_option_no_link_ends(loop: VirtualLoop) -> None:
    """M10: a link stays for as long as its client wants it."""

    async def story(driver: AmqpDriver, namespace: RunningNamespace) -> None:
        await driver.sender("orders").send([parcel()], timeout_s=10)
        await asyncio.sleep(3 * IDLE_S)
        assert links(namespace) == 1

    told(loop, story, idle_detach_s=None)


@pytest.mark.parametrize("idle_detach_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused(idle_detach_s: float) -> None:
    with pytest.raises(ConfigurationError, match="Idle links"):
        BrokerOptions(idle_detach_s=idle_detach_s)
