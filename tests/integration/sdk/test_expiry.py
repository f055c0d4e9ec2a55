"""Time to live, as the stock client sets and sees it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, eventually, nothing_comes, receive, receive_one

SHORT = timedelta(milliseconds=600)
SHORT_MS = 600


async def until_expired(broker: BrokerProcess, queue: str, left: int = 0) -> None:
    """Wait for the broker to have removed what expired, without anybody receiving."""

    async def has_expired() -> bool:
        return bool(broker.queue(queue)["active_message_count"] == left)

    assert await eventually(has_expired)


async def test_an_expired_message_goes_away(sdk: Sdk, queue: str, broker: BrokerProcess) -> None:
    """M3: a message is not handed out after its time to live, and leaves the others alone."""
    await sdk.send(
        queue,
        [
            ServiceBusMessage("brief", time_to_live=SHORT),
            ServiceBusMessage("lasting", time_to_live=timedelta(hours=1)),
            ServiceBusMessage("brief too", time_to_live=SHORT),
            ServiceBusMessage("for ever"),
        ],
    )

    await until_expired(broker, queue, left=2)

    receiver = sdk.receiver(queue)
    assert bodies(await receive(receiver, 2)) == ["lasting", "for ever"]
    assert await nothing_comes(receiver)
    assert broker.queue(queue)["dead_letter_message_count"] == 0


async def test_an_expired_message_can_go_to_the_dead_letter_queue(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M3: EnableDeadLetteringOnMessageExpiration keeps it, and says why."""
    queue = make_queue(dead_lettering_on_expiration=True)
    await sdk.send(queue, ServiceBusMessage("brief", message_id="id", time_to_live=SHORT))

    await until_expired(broker, queue)

    dead = await receive_one(sdk.dead_letters(queue))
    assert (str(dead), dead.message_id) == ("brief", "id")
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.dead_letter_error_description
    assert dead.dead_letter_source == queue
    # There it does not expire again
    await asyncio.sleep(1)
    assert broker.queue(queue)["dead_letter_message_count"] == 1


async def test_a_queue_has_a_time_to_live_of_its_own(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M3: DefaultMessageTimeToLive holds for every message; its own can only be shorter."""
    queue = make_queue(default_ttl_ms=3_600_000, dead_lettering_on_expiration=True)
    await sdk.send(
        queue,
        ServiceBusMessage("as the queue says"),
        ServiceBusMessage("longer", time_to_live=timedelta(days=1)),
        ServiceBusMessage("shorter", time_to_live=timedelta(minutes=1)),
        ServiceBusMessage("brief", time_to_live=SHORT),
    )

    received = await receive(sdk.receiver(queue), 3)
    assert [message.time_to_live for message in received] == [
        timedelta(hours=1),
        timedelta(hours=1),
        timedelta(minutes=1),
    ]
    await until_expired(broker, queue, left=3)
    assert str(await receive_one(sdk.dead_letters(queue))) == "brief"


async def test_the_default_expires_messages_without_one(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M3: a message that says nothing lives as long as the queue says."""
    queue = make_queue(default_ttl_ms=SHORT_MS)
    await sdk.send(queue, [ServiceBusMessage("a"), ServiceBusMessage("b")], ServiceBusMessage("c"))

    await until_expired(broker, queue)
    assert await nothing_comes(sdk.receiver(queue))


async def test_a_locked_message_can_be_completed_past_its_time(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2, M3: expiry does not take a message from under a lock."""
    await sdk.send(queue, ServiceBusMessage("held", time_to_live=timedelta(seconds=1)))
    receiver = sdk.receiver(queue)
    held = await receive_one(receiver)

    await asyncio.sleep(1.5)

    assert broker.queue(queue)["locked_message_count"] == 1
    assert broker.queue(queue)["active_message_count"] == 1
    await receiver.complete_message(held)
    assert broker.queue(queue)["active_message_count"] == 0


async def test_a_long_time_to_live_is_kept(sdk: Sdk, queue: str) -> None:
    """M3: 49 days are the most that the client can say."""
    await sdk.send(queue, ServiceBusMessage("patient", time_to_live=timedelta(days=49)))

    received = await receive_one(sdk.receiver(queue))
    assert received.time_to_live == timedelta(days=49)
    assert received.expires_at_utc is not None and received.enqueued_time_utc is not None
    assert received.expires_at_utc - received.enqueued_time_utc == timedelta(days=49)
