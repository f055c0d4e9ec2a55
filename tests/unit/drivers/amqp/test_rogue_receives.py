"""Receiving from a service that does anything but behave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.support.parcels import bodies, parcel
from tests.unit.drivers.amqp.rogue import Rogue, Visit
from twinbus.amqp.codec.types import Array, Int, Symbol
from twinbus.amqp.delivery_states import Accepted, Error, Rejected
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.link import SenderLink
from twinbus.amqp.performatives import Disposition
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions
from twinbus.drivers.amqp.errors import CONDITIONS
from twinbus.drivers.interface import ReceiveMode
from twinbus.errors import (
    CommunicationError,
    EntityNotFound,
    LinkDetached,
    MessageRefused,
    OperationTimeout,
    ServiceError,
    ServiceInternalError,
)

SOON_S = 20.0


class Shop:
    """Hands out what it has as soon as a link is attached, whatever the credit is."""

    def __init__(self, rogue: Rogue, stock: list[bytes]) -> None:
        self.stock = stock
        self.links: list[SenderLink] = []
        rogue.on_attach = self.attached

    def attached(self, visit: Visit, link: Any) -> None:
        visit.accept(link)
        self.links.append(link)
        for number, payload in enumerate(self.stock):
            link.send(payload, number.to_bytes(16, "big"), settled=False)


async def test_a_message_that_is_none_is_delivered_with_zeros(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given bytes that are no message, between two messages without annotations
    good = parcel(b"good").encoded
    Shop(rogue, [good, b"\x00\x53\x99 nothing that AMQP knows", good])

    # When they are received
    messages = await driver.receiver("orders", prefetch=10).receive(3, wait_s=SOON_S)

    # Then all three are there: whoever receives them decides
    assert [message.sequence_number for message in messages] == [0, 0, 0]
    assert [message.lock_token[-1] for message in messages] == [0, 1, 2]
    assert bodies([messages[0], messages[2]]) == [b"good", b"good"]


async def test_a_flood_that_nobody_asked_for_ends_the_link(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given a service that sends all it has to somebody who asks for five
    Shop(rogue, [parcel(b"x").encoded] * 1_500)
    receiver = driver.receiver("orders")

    # When they ask again and again
    received = len(await receiver.receive(5, wait_s=1))
    await asyncio.sleep(0.2)
    rogue.on_attach = lambda _visit, link: link.refuse(AmqpError(Condition.NOT_FOUND, "gone"))
    for _ in range(4):
        with suppress(EntityNotFound):
            received += len(await receiver.receive(500, wait_s=0.1))

    # Then what came before the end is received, and no more
    assert 0 < received < 1_200
    assert not rogue.visits[0].is_over


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
async def test_a_refused_link_says_why(rogue: Rogue, driver: AmqpDriver, condition: str) -> None:
    rogue.on_attach = lambda _visit, link: link.refuse(AmqpError(condition, "because"))
    with pytest.raises(ServiceError) as caught:
        await driver.receiver("orders").receive(1, wait_s=SOON_S)
    assert type(caught.value) is CONDITIONS[condition]


async def test_a_link_that_goes_while_somebody_waits_is_replaced_once(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given a service that takes every link away after a moment
    links: list[Any] = []

    def attached(visit: Visit, link: Any) -> None:
        visit.accept(link)
        links.append(link)

        def detach() -> None:
            link.detach(AmqpError(Condition.LINK_DETACH_FORCED, "idle"))
            visit.flush()

        asyncio.get_running_loop().call_later(0.05, detach)

    rogue.on_attach = attached

    # When somebody waits, a second link is tried and its end is told
    with pytest.raises(LinkDetached):
        await driver.receiver("orders").receive(1, wait_s=SOON_S)
    assert len(links) == 2


async def test_a_timeout_that_the_service_answers_is_raised_as_it_is(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    """P18: OperationTimeout is a TimeoutError, too, and not the end of the caller's own time."""

    def answer(visit: Visit, asked: Any) -> None:
        told = {"statusCode": Int(408), "statusDescription": "too busy"}
        visit.reply(*asked, {**told, "errorCondition": Symbol(Condition.TIMEOUT)})

    rogue.on_request = answer
    with pytest.raises(OperationTimeout, match="too busy") as raised:
        await driver.receiver("orders").peek(1, timeout_s=SOON_S)
    assert raised.value.condition == Condition.TIMEOUT


async def test_credit_that_is_never_given_back_costs_the_link_and_not_the_caller(
    rogue: Rogue, driver: AmqpDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.drivers.amqp.receiver_endpoint.DRAIN_TIMEOUT_S", 0.2)
    rogue.keeps_credit = True
    receiver = driver.receiver("orders")
    links = Shop(rogue, []).links
    assert await receiver.receive(5, wait_s=0.1) == []
    assert await receiver.receive(5, wait_s=0.1) == []
    assert len(links) == 2


def answering(state: Any, *, at: int) -> Any:
    """Settles what the client settles, with ``state`` from the given delivery on."""

    def answer(_visit: Visit, event: Any) -> None:
        for number in range(event.first, event.last + 1):
            told = Accepted() if number < at else state
            event.session.send(Disposition(False, number, number, True, told))

    return answer


async def test_settling_names_what_was_lost_and_raises_what_went_wrong(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    # Given four messages
    Shop(rogue, [parcel(b"%d" % number).encoded for number in range(4)])
    receiver = driver.receiver("orders", prefetch=10)
    messages = await receiver.receive(4, wait_s=SOON_S)
    while len(messages) < 4:
        messages += await receiver.receive(4, wait_s=SOON_S)

    # When two locks are lost, these two are returned
    lost = Rejected(Error(Condition.MESSAGE_LOCK_LOST, "lost"))
    rogue.on_disposition = answering(lost, at=2)
    assert await receiver.complete(messages, timeout_s=SOON_S) == messages[2:]

    # When something else is wrong, it is raised
    rogue.on_disposition = answering(Rejected(Error(Condition.NOT_ALLOWED, "no")), at=2)
    with pytest.raises(MessageRefused):
        await receiver.complete(messages, timeout_s=SOON_S)

    # When nothing is answered, the time runs out
    rogue.on_disposition = None
    with pytest.raises(OperationTimeout):
        await receiver.complete(messages, timeout_s=0.2)


async def test_a_thousand_messages_are_settled_with_one_frame(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    Shop(rogue, [parcel(b"%d" % number).encoded for number in range(1_000)])
    receiver = driver.receiver("orders", prefetch=1_000)
    messages: list[Any] = []
    while len(messages) < 1_000:
        messages += await receiver.receive(1_000, wait_s=SOON_S)
    seen: list[tuple[int, int]] = []

    def answer(_visit: Visit, event: Any) -> None:
        seen.append((event.first, event.last))
        event.session.send(Disposition(False, event.first, event.last, True, Accepted()))

    rogue.on_disposition = answer
    assert await receiver.complete(messages, timeout_s=SOON_S) == []
    assert seen == [(0, 999)]


async def test_a_line_that_breaks_while_settling_is_ambiguous(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    Shop(rogue, [parcel(b"x").encoded])
    receiver = driver.receiver("orders", prefetch=1)
    messages = await receiver.receive(1, wait_s=SOON_S)
    rogue.on_disposition = lambda visit, _event: visit.hang_up()
    with pytest.raises(CommunicationError) as caught:
        await receiver.complete(messages, timeout_s=SOON_S)
    assert caught.value.is_ambiguous


async def test_what_was_deleted_on_receipt_cannot_be_settled(driver: AmqpDriver) -> None:
    receiver = driver.receiver("orders", mode=ReceiveMode.RECEIVE_AND_DELETE)
    with pytest.raises(MessageRefused):
        await receiver.complete([], timeout_s=SOON_S)


@pytest.mark.parametrize(
    ("told", "body"),
    [
        ({"statusCode": Int(200)}, {"messages": [{"message": 7}]}),
        ({"statusCode": Int(200)}, {"messages": ["no map"]}),
        ({"statusCode": Int(500), "statusDescription": "broken"}, None),
        ({"statusCode": "two hundred"}, {}),
        ({}, None),
    ],
)
async def test_an_answer_that_makes_no_sense_is_the_service_breaking(
    rogue: Rogue, driver: AmqpDriver, told: dict[str, Any], body: Any
) -> None:
    rogue.on_request = lambda visit, asked: visit.reply(*asked, told, body)
    with pytest.raises(ServiceInternalError):
        await driver.receiver("orders").peek(1, timeout_s=SOON_S)


async def test_a_schedule_without_numbers_is_the_service_breaking(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    numbers = Array.of(0x81, [1, 2, 3])
    rogue.on_request = lambda visit, asked: visit.reply(
        *asked, {"statusCode": Int(200)}, {"sequence-numbers": numbers}
    )
    with pytest.raises(ServiceInternalError):
        await driver.sender("orders").schedule([parcel(b"x")], timeout_s=SOON_S)


async def test_an_answer_that_is_no_message_ends_the_request(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    rogue.on_request = lambda visit, asked: visit.replies[asked[0]].send(
        b"\xff" * 9, b"r", settled=False
    )
    with pytest.raises(ServiceInternalError):
        await driver.receiver("orders").peek(1, timeout_s=SOON_S)


async def test_a_request_without_an_answer_ends_with_its_time(
    rogue: Rogue, driver: AmqpDriver
) -> None:
    with pytest.raises(OperationTimeout):
        await driver.receiver("orders").peek(1, timeout_s=0.2)


async def test_a_peer_without_a_heartbeat_is_gone(rogue: Rogue) -> None:
    # Given a client that expects a word every second, and a service that falls silent
    driver = rogue.driver(AmqpOptions(limits=AmqpLimits(idle_timeout_s=1.0)))
    receiver = driver.receiver("orders")
    waiting = asyncio.create_task(receiver.receive(1, wait_s=60))
    while not rogue.visits or rogue.visits[0].engine.link_count < 3:
        await asyncio.sleep(0.01)
    rogue.visits[0].is_mute = True

    # Then whoever waits goes on waiting on another connection, long before the minute is over
    async with asyncio.timeout(30):
        while len(rogue.visits) < 2:
            await asyncio.sleep(0.05)
    assert not waiting.done()
    await driver.close()
    with pytest.raises(ServiceError):
        await waiting
