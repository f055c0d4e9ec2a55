"""What the stock client finds again after the broker stopped or was killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageLockLostError

from tests.integration.sdk.test_locks import LONG_LOCK_MS, settle_by_token
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, body, receive, receive_one

QUEUE = "orders"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, which it may end."""
    with BrokerProcess(tmp_path / "data") as running:
        running.create_queue(QUEUE, lock_duration_ms=LONG_LOCK_MS)
        yield running


@pytest.fixture(params=["sync", "aio"])
async def own_sdk(request: pytest.FixtureRequest, own_broker: BrokerProcess) -> AsyncIterator[Sdk]:
    opened = Sdk(request.param, own_broker.connection_string)
    yield opened
    await opened.close()


def restart(broker: BrokerProcess, how: str) -> None:
    if how == "kill":
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.restart()


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_everything_but_locks_is_there_after_a_restart(
    own_sdk: Sdk, own_broker: BrokerProcess, how: str
) -> None:
    """M2, M8: messages, numbers, delivery counts, deferred, scheduled, dead-lettered."""
    sdk, broker = own_sdk, own_broker
    sender, receiver = sdk.sender(QUEUE), sdk.receiver(QUEUE)
    names = ["tried twice", "deferred", "completed", "dead", "locked", "waiting"]
    await sender.send_messages([ServiceBusMessage(n) for n in names], timeout=SEND_TIMEOUT_S)
    for _ in range(2):
        await receiver.abandon_message(await receive_one(receiver))
    tried, deferred, completed, dead, locked = await receive(receiver, 5)
    await receiver.abandon_message(tried)
    await receiver.defer_message(deferred)
    await receiver.complete_message(completed)
    await receiver.dead_letter_message(dead, reason="why", error_description="because")
    due = datetime.now(UTC) + timedelta(hours=1)
    (scheduled,) = await sender.schedule_messages(ServiceBusMessage("scheduled"), due)
    before = broker.counts(QUEUE)

    # When the broker ends, with or without warning, and comes back
    restart(broker, how)

    # Then all is as it was, except that nobody holds a lock
    assert broker.counts(QUEUE) == {**before, "locked_message_count": 0}
    again = sdk.receiver(QUEUE)
    waiting = await receive(again, 3)
    assert [(str(m), m.sequence_number, m.delivery_count) for m in waiting] == [
        ("tried twice", 1, 3),
        ("locked", 5, 0),
        ("waiting", 6, 0),
    ]
    (found,) = await again.receive_deferred_messages([deferred.sequence_number])
    assert str(found) == "deferred"
    (found,) = await sdk.dead_letters(QUEUE).receive_messages(1, max_wait_time=10)
    assert (str(found), found.dead_letter_reason) == ("dead", "why")
    states = {str(m): m.state for m in await again.peek_messages(10)}
    assert states["scheduled"] is ServiceBusMessageState.SCHEDULED
    # The old lock is worth nothing, and an old number is never given again
    with pytest.raises(MessageLockLostError):
        await settle_by_token(again, "completed", locked.lock_token)
    await sdk.send(QUEUE, ServiceBusMessage("new"))
    assert (await receive_one(again)).sequence_number > scheduled


async def test_a_scheduled_message_appears_after_a_restart(
    own_sdk: Sdk, own_broker: BrokerProcess
) -> None:
    """M3, M8: also when its time came while the broker was away."""
    due = datetime.now(UTC) + timedelta(seconds=1)
    await own_sdk.send(QUEUE, ServiceBusMessage("on time", scheduled_enqueue_time_utc=due))

    restart(own_broker, "kill")

    assert str(await receive_one(own_sdk.receiver(QUEUE))) == "on time"


async def test_connected_clients_go_on_after_a_restart(
    own_sdk: Sdk, own_broker: BrokerProcess
) -> None:
    """M10: with its own retries on, a client needs no help to find the broker again."""
    client = own_sdk.client(retry_total=5)
    sender = own_sdk.sender(QUEUE, client=client)
    receiver = own_sdk.receiver(QUEUE, client=client)
    await sender.send_messages(ServiceBusMessage("before"), timeout=SEND_TIMEOUT_S)
    await receiver.complete_message(await receive_one(receiver))

    restart(own_broker, "kill")

    await sender.send_messages(ServiceBusMessage("after"), timeout=60)
    received = await receive_one(receiver)
    assert str(received) == "after"
    await receiver.complete_message(received)
    assert own_broker.queue(QUEUE)["active_message_count"] == 0


async def test_large_and_small_messages_survive_a_kill(
    own_sdk: Sdk, own_broker: BrokerProcess
) -> None:
    """M8: every byte of an acknowledged message, properties included."""
    contents = [bytes([n]) * size for n, size in enumerate([0, 1, 1_000, 250_000, 70_000])]
    messages = [
        ServiceBusMessage(content, application_properties={"n": n}, subject=f"s{n}")
        for n, content in enumerate(contents)
    ]
    await own_sdk.send(QUEUE, *messages)

    restart(own_broker, "kill")

    received = await receive(own_sdk.receiver(QUEUE), len(contents))
    assert [body(message) for message in received] == contents
    assert [message.subject for message in received] == [f"s{n}" for n in range(5)]
    assert [message.application_properties for message in received] == [{b"n": n} for n in range(5)]
