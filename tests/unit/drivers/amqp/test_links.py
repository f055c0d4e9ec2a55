"""Links between calls: quiet lines, credit, and what is left behind."""

from __future__ import annotations

import asyncio
import time

from tests.support.parcels import bodies, parcel
from tests.unit.drivers.amqp.rogue import Rogue, Visit
from tests.unit.drivers.amqp.test_rogue_receives import Shop
from twinbus.amqp.delivery_states import Released
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.amqp.receiver_endpoint import Settlement, group_ranges
from twinbus.testing import NamespaceFixture

SOON_S = 20.0


async def test_a_line_that_went_while_the_loop_was_busy_is_replaced_without_a_word(
    servicebus: NamespaceFixture,
) -> None:
    """The goodbye lies unread in the socket: it is heard before bytes leave."""
    queue = servicebus.queue("orders")
    driver = AmqpDriver.from_connection_string(servicebus.connection_string)
    sender, receiver = driver.sender("orders"), driver.receiver("orders")
    await sender.send([parcel(b"1")], timeout_s=SOON_S)
    assert len(await receiver.receive(1, wait_s=SOON_S)) == 1
    with servicebus.outage("reset"):
        time.sleep(0.7)
    await sender.send([parcel(b"2")], timeout_s=SOON_S)
    with servicebus.outage("reset"):
        time.sleep(0.7)
    assert len(await receiver.receive(1, wait_s=SOON_S)) == 1
    assert queue.active_message_count == 2
    await driver.close()


async def test_no_credit_is_outstanding_between_calls(rogue: Rogue, driver: AmqpDriver) -> None:
    links = Shop(rogue, []).links
    receiver = driver.receiver("orders")
    assert await receiver.receive(50, wait_s=0.1) == []
    assert links[0].credit == 0
    waiting = asyncio.create_task(receiver.receive(50, wait_s=SOON_S))
    await asyncio.sleep(0.1)
    assert links[0].credit == 50
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0.1)
    assert links[0].credit == 0
    assert len(links) == 1


async def test_a_long_wait_is_one_grant_of_credit(rogue: Rogue, driver: AmqpDriver) -> None:
    """Y3: an idle receiver costs one receive for each wait."""
    links = Shop(rogue, []).links
    grants: list[int] = []
    receiver = driver.receiver("orders")
    waiting = asyncio.create_task(receiver.receive(10, wait_s=900))
    for _ in range(10):
        await asyncio.sleep(0.03)
        grants.append(links[0].credit if links else -1)
    links[0].send(parcel(b"x").encoded, b"0" * 16, settled=False)
    rogue.visits[0].flush()
    assert bodies(await waiting) == [b"x"]
    assert set(grants[3:]) == {10}


async def test_a_receiver_that_closes_releases_what_nobody_was_given(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    released: list[tuple[int, int, bool]] = []

    def on_disposition(_visit: Visit, event: object) -> None:
        if isinstance(getattr(event, "state", None), Released):
            released.append((event.first, event.last, event.settled))  # type: ignore[attr-defined]

    rogue.on_disposition = on_disposition
    Shop(rogue, [parcel(b"x").encoded] * 5)
    receiver = driver.receiver("orders", prefetch=5)
    assert len(await receiver.receive(2, wait_s=SOON_S)) == 2
    await receiver.close()
    await asyncio.sleep(0.1)
    assert released == [(2, 4, True)]


def test_ids_become_as_few_ranges_as_possible() -> None:
    assert group_ranges([]) == []
    assert group_ranges([5]) == [(5, 5)]
    assert group_ranges([3, 1, 2]) == [(1, 3)]
    assert group_ranges([7, 1, 2, 9, 8, 2]) == [(1, 2), (7, 9)]


async def test_answers_may_come_in_any_pieces() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    settlement = Settlement(range(10, 20), future)
    assert settlement.take_answered(0, 11) == {10, 11}
    assert settlement.take_answered(15, 0) == {15}
    assert settlement.take_answered(12, 0x7FFFFFFF) == {12, 13, 14, 16, 17, 18, 19}
    assert settlement.take_answered(0, 0x7FFFFFFF) == set()
