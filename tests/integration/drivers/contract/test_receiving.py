"""The contract of a Receiver."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.parcels import bodies, parcel
from twinbus.amqp.message.message import Message
from twinbus.drivers.interface import NEXT_SESSION, Driver, ReceiveMode, Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    EntityNotFound,
    MessageNotFound,
    MessageRefused,
    SessionCannotBeLocked,
)
from twinbus.testing import NamespaceFixture

SOON_S = 20.0
AT_ONCE_S = 0.2


async def fill(driver: Driver, path: str, count: int, **properties: str) -> None:
    sender = driver.sender(path)
    parcels = [parcel(b"%d" % number, **properties) for number in range(count)]
    await sender.send(parcels, timeout_s=SOON_S)
    await sender.close()


async def test_an_empty_queue_gives_nothing_after_the_wait(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    receiver = driver.receiver("orders")
    began = time.monotonic()
    assert await receiver.receive(5, wait_s=0.3) == []
    assert time.monotonic() - began >= 0.25


async def test_a_wait_ends_with_the_first_message(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given somebody who waits for a minute
    servicebus.queue("orders")
    receiver = driver.receiver("orders")
    waiting = asyncio.create_task(receiver.receive(100, wait_s=60))
    await asyncio.sleep(0.2)

    # When one message comes
    began = time.monotonic()
    await fill(driver, "orders", 1)

    # Then it is there long before the minute is over
    assert bodies(await waiting) == [b"0"]
    assert time.monotonic() - began < 30


async def test_no_more_come_than_were_asked_for(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    await fill(driver, "orders", 10)
    receiver = driver.receiver("orders")
    first = await receiver.receive(4, wait_s=SOON_S)
    second = await receiver.receive(100, wait_s=SOON_S)
    assert 1 <= len(first) <= 4
    assert bodies(first + second)[:5] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("prefetch", [0, 7])
async def test_everything_comes_once_and_completed_messages_are_gone(
    driver: Driver, servicebus: NamespaceFixture, prefetch: int
) -> None:
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 60)
    receiver = driver.receiver("orders", prefetch=prefetch)
    seen: list[bytes] = []
    while len(seen) < 60:
        messages = await receiver.receive(25, wait_s=SOON_S)
        assert await receiver.complete(messages, timeout_s=SOON_S) == []
        seen += bodies(messages)
    assert sorted(map(int, seen)) == list(range(60))
    assert queue.active_message_count == 0


async def test_an_abandoned_message_comes_again_and_counts(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders")
    await fill(driver, "orders", 1)
    receiver = driver.receiver("orders")
    [first] = await receiver.receive(1, wait_s=SOON_S)
    assert first.delivery_count == 0 and len(first.lock_token) == 16
    assert await receiver.abandon([first], timeout_s=SOON_S) == []
    [again] = await receiver.receive(1, wait_s=SOON_S)
    assert again.delivery_count == 1
    assert again.lock_token != first.lock_token


async def test_a_deferred_message_is_had_by_its_number(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given a message that was set aside
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 1)
    receiver = driver.receiver("orders")
    [message] = await receiver.receive(1, wait_s=SOON_S)
    assert await receiver.defer([message], timeout_s=SOON_S) == []
    assert await receiver.receive(1, wait_s=AT_ONCE_S) == []

    # When it is asked for by number
    numbers = [message.sequence_number]
    [found] = await receiver.receive_deferred(numbers, timeout_s=SOON_S)

    # Then it is locked, so that nobody else has it, and can be completed
    assert bodies([found]) == [b"0"]
    with pytest.raises(MessageNotFound):
        await receiver.receive_deferred(numbers, timeout_s=SOON_S)
    assert await receiver.complete([found], timeout_s=SOON_S) == []
    assert queue.deferred_message_count == 0


async def test_a_dead_letter_has_its_reason(driver: Driver, servicebus: NamespaceFixture) -> None:
    servicebus.queue("orders")
    await fill(driver, "orders", 1)
    receiver = driver.receiver("orders")
    messages = await receiver.receive(1, wait_s=SOON_S)
    lost = await receiver.dead_letter(
        messages, reason="no address", description="x-ms-path is missing", timeout_s=SOON_S
    )
    [dead] = await driver.receiver("orders/$DeadLetterQueue").receive(1, wait_s=SOON_S)
    told = Message.decode(dead.encoded).application_properties or {}
    assert lost == []
    assert told["DeadLetterReason"] == "no address"
    assert told["DeadLetterErrorDescription"] == "x-ms-path is missing"


async def test_lost_locks_are_returned_and_not_raised(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given four messages, two of which are completed already
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 4)
    receiver = driver.receiver("orders")
    messages = await receiver.receive(4, wait_s=SOON_S)
    assert await receiver.complete(messages[:2], timeout_s=SOON_S) == []

    # When all four are abandoned
    lost = await receiver.abandon(messages, timeout_s=SOON_S)

    # Then the two are named, and the others are back
    assert [each.sequence_number for each in lost] == [1, 2]
    assert queue.active_message_count == 2


async def test_a_renewed_lock_lasts_and_another_runs_out(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given two messages that are locked for a minute
    servicebus.queue("orders")
    await fill(driver, "orders", 2)
    receiver = driver.receiver("orders")
    kept, left = await receiver.receive(2, wait_s=SOON_S)

    # When one is renewed half way and a minute and a half has passed
    servicebus.advance(45)
    assert await receiver.renew([kept], timeout_s=SOON_S) == []
    servicebus.advance(45)

    # Then the other's lock is lost, for renewing and for completing
    assert await receiver.renew([kept, left], timeout_s=SOON_S) == [left]
    assert await receiver.complete([kept, left], timeout_s=SOON_S) == [left]


async def test_a_look_takes_nothing(driver: Driver, servicebus: NamespaceFixture) -> None:
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 5)
    receiver = driver.receiver("orders")
    seen = await receiver.peek(3, timeout_s=SOON_S)
    rest = await receiver.peek(10, from_sequence=4, timeout_s=SOON_S)
    assert bodies(seen + rest) == [b"0", b"1", b"2", b"3", b"4"]
    assert {each.lock_token for each in seen} == {b""}
    with pytest.raises(MessageRefused):
        await receiver.complete(seen[:1], timeout_s=SOON_S)
    assert await receiver.peek(10, from_sequence=99, timeout_s=SOON_S) == []
    assert queue.active_message_count == 5


async def test_receive_and_delete_leaves_nothing_behind(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 3)
    receiver = driver.receiver("orders", mode=ReceiveMode.RECEIVE_AND_DELETE)
    messages = await receiver.receive(3, wait_s=SOON_S)
    while len(messages) < 3:
        messages += await receiver.receive(3 - len(messages), wait_s=SOON_S)
    assert {each.lock_token for each in messages} == {b""}
    assert queue.active_message_count == 0


async def test_a_named_session_is_held_by_one(driver: Driver, servicebus: NamespaceFixture) -> None:
    servicebus.queue("orders", requires_session=True)
    await fill(driver, "orders", 2, group_id="red")
    await fill(driver, "orders", 2, group_id="blue")
    receiver = driver.receiver("orders", session="red")
    messages = await receiver.receive(2, wait_s=SOON_S)
    assert receiver.session_id == "red"
    assert {Message.decode(each.encoded).properties.group_id for each in messages} == {"red"}  # type: ignore[union-attr]
    with pytest.raises(SessionCannotBeLocked):
        await driver.receiver("orders", session="red").receive(1, wait_s=1)
    assert await receiver.renew(messages, timeout_s=SOON_S) == []
    assert await receiver.complete(messages, timeout_s=SOON_S) == []


async def test_the_next_session_is_one_that_is_free(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.queue("orders", requires_session=True)
    await fill(driver, "orders", 1, group_id="red")
    await fill(driver, "orders", 1, group_id="blue")
    receivers = [driver.receiver("orders", session=NEXT_SESSION) for _ in range(2)]
    for receiver in receivers:
        assert len(await receiver.receive(1, wait_s=SOON_S)) == 1
    assert {receiver.session_id for receiver in receivers} == {"red", "blue"}
    third = driver.receiver("orders", session=NEXT_SESSION)
    assert await third.receive(1, wait_s=0.5) == []


async def test_subscriptions_are_received_from(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    servicebus.subscription("news", "sport")
    await fill(driver, "news", 2)
    receiver = driver.receiver("news/Subscriptions/sport")
    messages = await receiver.receive(2, wait_s=SOON_S)
    assert await receiver.complete(messages, timeout_s=SOON_S) == []


async def test_an_unknown_queue_is_not_found(driver: Driver) -> None:
    with pytest.raises(EntityNotFound):
        await driver.receiver("nowhere").receive(1, wait_s=1)


async def test_what_nobody_was_given_goes_back_when_a_receiver_closes(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    # Given a receiver that fetched more than its caller took
    servicebus.queue("orders")
    await fill(driver, "orders", 10)
    receiver = driver.receiver("orders", prefetch=10)
    taken = await receiver.receive(1, wait_s=SOON_S)
    assert bodies(taken) == [b"0"]

    # When it closes
    await receiver.close()
    await receiver.close()

    # Then the others are there for the next one, as if they had never been out
    other = driver.receiver("orders")
    rest = await other.receive(9, wait_s=SOON_S)
    while len(rest) < 9:
        rest += await other.receive(9 - len(rest), wait_s=SOON_S)
    assert sorted(bodies(rest)) == [b"%d" % number for number in range(1, 10)]
    assert {each.delivery_count for each in rest} == {0}


async def test_a_message_is_settled_after_its_receiver_was_replaced(
    driver: Driver, servicebus: NamespaceFixture
) -> None:
    """M2: the lock token is what counts."""
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 3)
    receiver = driver.receiver("orders")
    messages = await receiver.receive(3, wait_s=SOON_S)
    await receiver.close()
    other = driver.receiver("orders")
    assert await other.complete(messages, timeout_s=SOON_S) == []
    assert queue.active_message_count == 0


@pytest.mark.parametrize("how", ["complete", "abandon", "defer", "dead_letter", "renew"])
async def test_a_message_is_settled_by_somebody_who_knows_its_token_only(
    driver: Driver, servicebus: NamespaceFixture, how: str
) -> None:
    """M2: what one process receives another one may settle, as a task of the syphon does."""
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 150)
    receiver, other = driver.receiver("orders"), driver.receiver("orders")
    messages = await all_of(receiver, 150)
    assert await receiver.complete(messages[70:71], timeout_s=SOON_S) == []

    # When the other one is handed all of them, without the driver's own way to find them
    handed = [each._replace(handle=None) for each in messages]
    more = {"reason": "why", "description": "so"} if how == "dead_letter" else {}
    lost = await getattr(other, how)(handed, timeout_s=SOON_S, **more)

    # Then it is told which one was lost, and the others are settled
    assert [each.sequence_number for each in lost] == [messages[70].sequence_number]
    counts = (queue.active_message_count, queue.deferred_message_count)
    counts += (queue.dead_letter_message_count,)
    assert (
        counts
        == {
            "complete": (0, 0, 0),
            "abandon": (149, 0, 0),
            "defer": (0, 149, 0),
            "dead_letter": (0, 0, 149),
            "renew": (149, 0, 0),
        }[how]
    )


@pytest.mark.parametrize("how", ["complete", "abandon", "defer"])
async def test_many_are_settled_in_any_order_and_the_lost_ones_named(
    driver: Driver, servicebus: NamespaceFixture, how: str
) -> None:
    """M2: those of one link, with gaps between them, and whoever settled some before."""
    queue = servicebus.queue("orders")
    await fill(driver, "orders", 300)
    receiver = driver.receiver("orders")
    messages = await all_of(receiver, 300)
    assert await receiver.complete(messages[100:110], timeout_s=SOON_S) == []
    chosen = [each for number, each in enumerate(messages) if number % 7][::-1]
    lost = await getattr(receiver, how)(chosen, timeout_s=SOON_S)
    numbers = {messages[each].sequence_number for each in range(100, 110) if each % 7}
    assert {each.sequence_number for each in lost} == numbers
    kept = sum(1 for number in range(300) if number % 7 == 0 and number not in range(100, 110))
    done = len(chosen) - len(lost)
    assert queue.active_message_count == kept + (done if how == "abandon" else 0)
    assert queue.deferred_message_count == (done if how == "defer" else 0)


async def all_of(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await receiver.receive(count - len(found), wait_s=SOON_S)
    return found
