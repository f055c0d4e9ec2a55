"""A backlog queue that refuses what the others take (P20): no caller pays for it twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.pairing.pairs import FakePair, OpenFakePair, OpenPair
from twinbus.aio import BrokeredMessage
from twinbus.errors import MessageRefused, MessageTooLarge
from twinbus.failover.backlog_rotation import RotationPolicy
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import NamespacePairFixture

DRIVERS: list[DriverName] = ["amqp", "servicebus"]
ZERO = "primary/x-servicebus-transfer/0"


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_queue_with_sessions_fails_no_send_and_leaves_the_rotation(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: DriverName
) -> None:
    """P20, P9: without Manage its properties are not known; the queue says it itself."""
    servicebus_pair.primary.queue("orders")
    away = servicebus_pair.secondary
    refusing = away.queue(ZERO, requires_session=True)
    others = [away.queue(f"primary/x-servicebus-transfer/{index}") for index in (1, 2)]
    pair = await open_pair(driver, manager=None, backlog_queue_count=3, enable_syphon=False)
    pair.primary.force_failover("orders")
    pair.primary.hold("orders")
    for number in range(4):
        client = pair.primary.create_queue_client("orders")
        client.sender._sender._affinity.queue = ZERO  # Each sender picks its queue for itself.
        await client.send(BrokeredMessage(b"%d" % number))
        await client.send_batch([BrokeredMessage(b"a"), BrokeredMessage(b"b")])
        await client.close()
    client = pair.primary.create_queue_client("orders")
    client.sender._sender._affinity.queue = ZERO
    await asyncio.gather(*(client.send(BrokeredMessage(b"many")) for _ in range(50)))
    assert refusing.active_message_count == 0
    assert sum(each.active_message_count for each in others) == 62
    assert pair.names.count("backlog-queue-withdrawn") >= 1
    (reason,) = {
        each.to_dict()["reason"] for each in pair.told if each.name == "backlog-queue-withdrawn"
    }
    assert "MessageRefused" in reason
    assert pair.primary.health("orders").withdrawn == {ZERO: reason}


@pytest.mark.parametrize("error", [MessageRefused("no session"), MessageTooLarge("256 KB")])
async def test_many_sends_at_once_do_not_ask_a_refusing_queue_one_by_one(
    open_fake_pair: OpenFakePair, error: Exception
) -> None:
    """P20, P25: a batch of 200 calls is refused, and their callers go on together."""
    pair = await open_fake_pair()
    refusing = pair.queues[0]
    pair.away.answer(refusing, error)
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    sender._sender._affinity.queue = refusing
    await asyncio.gather(*(sender.send(BrokeredMessage(b"%d" % n)) for n in range(200)))
    assert len(pair.backlog()) == 200
    assert pair.away.attempts.count(refusing) <= 10


async def test_a_message_that_every_queue_refuses_is_raised_and_withdraws_none(
    fake_pair: FakePair,
) -> None:
    """P13, P20: the first refusal is what the caller gets."""
    fake_pair.away.answer("*", MessageRefused("not this one"))
    fake_pair.primary.force_failover("orders")
    with pytest.raises(MessageRefused, match="not this one"):
        await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"bad"))
    assert len(fake_pair.away.attempts) == 2
    assert fake_pair.primary.health("orders").withdrawn == {}
    fake_pair.away.answer("*", None)
    await fake_pair.primary.create_message_sender("orders").send(BrokeredMessage(b"good"))
    assert len(fake_pair.backlog()) == 1


async def test_a_queue_that_answers_again_returns(open_fake_pair: OpenFakePair) -> None:
    """P20, P9: one send asks it after the pause."""
    pair = await open_fake_pair(
        backlog_queue_count=2, rotation=RotationPolicy(pause_s=0.1, pause_s_max=0.2)
    )
    for path in pair.queues:
        pair.away.messages(path)
    pair.away.answer(pair.queues[0], MessageRefused("no session"))
    pair.primary.force_failover("orders")
    for _ in range(10):
        await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"x"))
    assert set(pair.primary.health("orders").withdrawn) == {pair.queues[0]}
    pair.away.answer(pair.queues[0], None)
    await asyncio.sleep(0.3)
    await pair.primary.create_message_sender("orders").send(BrokeredMessage(b"x"))
    assert pair.primary.health("orders").withdrawn == {}
    assert "backlog-queue-reinstated" in pair.names
