"""What a call leaves behind when nobody waits for it any more."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.parcels import parcel
from tests.unit.drivers.amqp import rogue as rogue_module
from tests.unit.drivers.amqp.rogue import Rogue
from twinbus.amqp.limits import AmqpLimits
from twinbus.drivers.amqp import AmqpDriver
from twinbus.errors import CommunicationError, OperationTimeout

SOON_S = 20.0


async def until_over(rogue: Rogue, index: int) -> None:
    async with asyncio.timeout(SOON_S):
        while not rogue.visits[index].is_over:
            await asyncio.sleep(0.01)


async def test_a_send_that_our_own_close_overtakes_is_in_doubt(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    """Its bytes leave with the goodbye, so nobody may be told that they did not."""
    sender = driver.sender("orders")
    await sender.send([parcel(b"first")], timeout_s=SOON_S)
    sending = asyncio.create_task(sender.send([parcel(b"second")], timeout_s=SOON_S))
    await asyncio.sleep(0)
    await sender.close()
    with pytest.raises(CommunicationError) as caught:
        await sending
    async with asyncio.timeout(SOON_S):
        while len(rogue.taken) < 2:
            await asyncio.sleep(0.01)
    assert caught.value.is_ambiguous and not caught.value.is_transient


async def test_messages_that_nobody_waits_for_are_not_kept(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    """A service that takes nothing for hours must not fill our memory."""
    rogue.credit = 0
    sender = driver.sender("orders")
    for _ in range(3):
        with pytest.raises(OperationTimeout) as caught:
            await sender.send([parcel(b"x" * 1_000)], timeout_s=0.1)
        assert not caught.value.is_ambiguous
    assert sender._end is not None and not sender._end._waiting


async def test_questions_that_nobody_waits_for_are_not_asked_later(
    rogue: Rogue, driver: AmqpDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rogue_module, "NODE_CREDIT", 1)
    receiver = driver.receiver("orders")
    for _ in range(2):
        with pytest.raises(OperationTimeout):
            await receiver.peek(1, timeout_s=0.2)
    [pooled] = driver._pool._connections
    assert not pooled._nodes["orders"]._waiting


async def test_a_line_that_was_replaced_is_closed_when_its_last_send_has_given_up(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    sender = driver.sender("orders")
    await sender.send([parcel(b"first")], timeout_s=SOON_S)
    rogue.visits[0].is_mute = True
    patient = asyncio.create_task(sender.send([parcel(b"x")], timeout_s=1.0))
    with pytest.raises(OperationTimeout):
        await sender.send([parcel(b"x")], timeout_s=0.2)
    # The next one has a new line, beside the one on which somebody still waits
    await sender.send([parcel(b"x")], timeout_s=SOON_S)
    assert len(rogue.visits) == 2 and not rogue.visits[0].is_over
    with pytest.raises(OperationTimeout):
        await patient
    await until_over(rogue, 0)


async def test_a_cancelled_close_lets_go_of_the_line(rogue: Rogue, driver: AmqpDriver) -> None:
    rogue.keeps_credit = True
    receiver = driver.receiver("orders", prefetch=10)
    assert await receiver.receive(1, wait_s=0.05) == []
    closing = asyncio.create_task(driver.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until_over(rogue, 0)


async def test_a_service_with_too_few_channels_is_not_connected_to_over_and_over(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.limits = AmqpLimits(channel_max=0)
    with pytest.raises(CommunicationError, match="session"):
        await driver.sender("orders").send([parcel(b"x")], timeout_s=3)
    assert len(rogue.visits) <= 2
