"""Scheduled messages with the stock client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, nothing_comes, receive, receive_one

SOON = timedelta(seconds=2)
LATER = timedelta(hours=1)
# Times on the wire are whole milliseconds.
CLOCK_STEP = timedelta(milliseconds=1)


def after(delay: timedelta) -> datetime:
    return datetime.now(UTC) + delay


async def test_a_scheduled_message_is_hidden_until_its_time(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M3: it is in the queue, and nobody is handed it."""
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    await sender.schedule_messages(ServiceBusMessage("later"), after(LATER))

    assert broker.queue(queue)["scheduled_message_count"] == 1
    assert broker.queue(queue)["active_message_count"] == 0
    assert await nothing_comes(receiver)


async def test_a_scheduled_message_appears_at_its_time(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M3: not before; and then it has a new sequence number, as if it had been sent then."""
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    due = after(SOON)
    message = ServiceBusMessage("later", message_id="id", application_properties={"a": 1})

    (number,) = await sender.schedule_messages(message, due)

    received = await receive_one(receiver)
    assert datetime.now(UTC) >= due - CLOCK_STEP
    assert (str(received), received.message_id) == ("later", "id")
    assert received.application_properties == {b"a": 1}
    assert received.sequence_number is not None and received.sequence_number > number
    assert received.state is ServiceBusMessageState.ACTIVE
    assert received.enqueued_time_utc is not None
    assert received.enqueued_time_utc >= due - CLOCK_STEP
    assert broker.queue(queue)["scheduled_message_count"] == 0
    await receiver.complete_message(received)


async def test_a_list_is_scheduled_together(sdk: Sdk, queue: str) -> None:
    """M3: every message has a number of its own, in order."""
    sender = sdk.sender(queue)

    numbers = await sender.schedule_messages(
        [ServiceBusMessage(f"m{n}") for n in range(4)], after(SOON)
    )

    assert numbers == sorted(set(numbers)) and len(numbers) == 4
    assert bodies(await receive(sdk.receiver(queue), 4)) == [f"m{n}" for n in range(4)]


async def test_a_cancelled_message_is_gone(sdk: Sdk, queue: str, broker: BrokerProcess) -> None:
    """M3: one by its number, several by a list, or none at all when one is unknown."""
    sender = sdk.sender(queue)
    numbers = await sender.schedule_messages(
        [ServiceBusMessage(f"m{n}") for n in range(4)], after(LATER)
    )

    await sender.cancel_scheduled_messages(numbers[0])
    await sender.cancel_scheduled_messages(numbers[1:3])

    for unknown in (numbers[0], [numbers[3], 999]):
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(unknown)
    assert broker.queue(queue)["scheduled_message_count"] == 1
    (left,) = await sdk.receiver(queue).peek_messages(10)
    assert (str(left), left.sequence_number) == ("m3", numbers[3])


async def test_a_message_that_has_appeared_cannot_be_cancelled(sdk: Sdk, queue: str) -> None:
    """M3: its number as a scheduled message is history."""
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    (number,) = await sender.schedule_messages(ServiceBusMessage("here"), after(-LATER))
    await receive_one(receiver)

    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(number)


@pytest.mark.parametrize("as_batch", [False, True], ids=["single", "batch"])
async def test_a_send_can_carry_the_time(sdk: Sdk, queue: str, as_batch: bool) -> None:
    """M3: scheduled_enqueue_time_utc on a plain send schedules it, one by one in a batch too."""
    due = after(SOON)
    later = ServiceBusMessage("later", scheduled_enqueue_time_utc=due)
    now = ServiceBusMessage("now")

    await sdk.send(queue, *([[later, now]] if as_batch else [later, now]))

    now_received, later_received = await receive(sdk.receiver(queue), 2)
    assert [str(now_received), str(later_received)] == ["now", "later"]
    assert datetime.now(UTC) >= due - CLOCK_STEP
    assert later_received.enqueued_time_utc is not None
    assert later_received.enqueued_time_utc >= due - CLOCK_STEP


async def test_a_time_that_has_passed_means_now(sdk: Sdk, queue: str) -> None:
    """M3: such a message is visible at once, and still gets a number."""
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)

    (number,) = await sender.schedule_messages(ServiceBusMessage("past"), after(-LATER))
    assert number >= 1
    await sdk.send(queue, ServiceBusMessage("also", scheduled_enqueue_time_utc=after(-LATER)))

    assert sorted(bodies(await receive(receiver, 2))) == ["also", "past"]


async def test_the_time_to_live_begins_with_the_schedule(sdk: Sdk, queue: str) -> None:
    """M3: a message does not expire before it appears."""
    message = ServiceBusMessage(
        "brief", scheduled_enqueue_time_utc=after(SOON), time_to_live=timedelta(seconds=1)
    )
    await sdk.send(queue, message)

    assert str(await receive_one(sdk.receiver(queue))) == "brief"
