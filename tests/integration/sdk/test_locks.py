"""Locks as the stock client meets them: renewal, expiry, other connections, detach."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    Sdk,
    bodies,
    eventually,
    nothing_comes,
    opened,
    receive,
    receive_one,
    unwrapped,
)

SHORT_LOCK_MS = 1_000
LONG_LOCK_MS = 300_000


def with_a_slow_clock(message: ServiceBusReceivedMessage) -> ServiceBusReceivedMessage:
    """Keep the client from looking at the time itself, so that the broker has to answer."""
    message._expiry = datetime.now(UTC) + timedelta(hours=1)
    return message


async def settle_by_token(receiver: Any, how: str, token: Any) -> None:
    """What the client does when it cannot use the link a message came on."""
    await receiver._settle_message_via_mgmt_link(how, [token])


async def test_a_lock_that_runs_out_hands_the_message_to_others(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: the lock lasts as long as the queue says, and its end counts as a delivery."""
    queue = make_queue(lock_duration_ms=SHORT_LOCK_MS)
    await sdk.send(queue, ServiceBusMessage("slow"))
    receiver = sdk.receiver(queue)
    held = await receive_one(receiver)
    assert held.locked_until_utc is not None
    assert held.locked_until_utc - datetime.now(UTC) <= timedelta(milliseconds=SHORT_LOCK_MS)

    again = await receive_one(sdk.receiver(queue))
    assert (str(again), again.delivery_count) == ("slow", 1)
    assert again.lock_token != held.lock_token

    # A late settlement with the old lock is refused, whatever the client's clock says
    for settle in (
        receiver.complete_message,
        receiver.abandon_message,
        receiver.defer_message,
        receiver.dead_letter_message,
        receiver.renew_message_lock,
    ):
        with pytest.raises(MessageLockLostError):
            await settle(with_a_slow_clock(held))
    assert broker.queue(queue)["dead_letter_message_count"] == 0


async def test_a_renewed_lock_lasts_longer(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: renewing a lock starts its time again, for that message only."""
    queue = make_queue(lock_duration_ms=2_000)
    await sdk.send(queue, [ServiceBusMessage("kept"), ServiceBusMessage("let go")])
    receiver = sdk.receiver(queue)
    kept, _let_go = await receive(receiver, 2)
    first_end = kept.locked_until_utc
    assert first_end is not None

    # When one of two locks is renewed past the end of the first
    renewed_end = first_end
    while datetime.now(UTC) < first_end + timedelta(seconds=1):
        renewed_end = await receiver.renew_message_lock(kept)
        assert abs(renewed_end - datetime.now(UTC)) < timedelta(seconds=2.5)
        assert kept.locked_until_utc == renewed_end
        await asyncio.sleep(0.3)
    assert renewed_end > first_end

    # Then only the other message is handed out again
    again = await receive_one(sdk.receiver(queue))
    assert str(again) == "let go"
    await receiver.complete_message(kept)
    assert broker.queue(queue)["active_message_count"] == 1


async def test_expired_locks_count_towards_the_dead_letter_queue(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """M2: a message that nobody settles is dead-lettered after MaxDeliveryCount."""
    queue = make_queue(lock_duration_ms=SHORT_LOCK_MS, max_delivery_count=2)
    await sdk.send(queue, ServiceBusMessage("stuck"))

    assert [(await receive_one(sdk.receiver(queue))).delivery_count for _ in range(2)] == [0, 1]

    dead = await receive_one(sdk.dead_letters(queue))
    assert (str(dead), dead.dead_letter_reason) == ("stuck", "MaxDeliveryCountExceeded")


async def test_whoever_has_the_token_may_settle(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: the token counts, also through management from another connection; once."""
    queue = make_queue(lock_duration_ms=LONG_LOCK_MS)
    ways = ["completed", "abandoned", "defered", "suspended"]
    await sdk.send(queue, [ServiceBusMessage(how) for how in ways])
    receiver, other = sdk.receiver(queue), await opened(sdk.receiver(queue))
    held = await receive(receiver, len(ways))

    for message in held:
        await settle_by_token(other, str(message), message.lock_token)

    found = broker.counts(queue)
    assert found["locked_message_count"] == 0
    assert found["active_message_count"] == 1
    assert found["deferred_message_count"] == 1
    assert found["dead_letter_message_count"] == 1
    # A token settles at most once: neither there nor on the link it came on
    for message in held:
        with pytest.raises(MessageLockLostError):
            await settle_by_token(other, str(message), message.lock_token)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
    assert broker.counts(queue) == found


async def test_a_lost_link_does_not_lose_the_lock(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: the client settles through management when the link is gone."""
    queue = make_queue(lock_duration_ms=LONG_LOCK_MS)
    await sdk.send(queue, [ServiceBusMessage("done"), ServiceBusMessage("bad")])
    receiver = sdk.receiver(queue)
    done, bad = await receive(receiver, 2)

    # When the link is detached under the receiver, and only the link
    detached = unwrapped(receiver)._handler._link.detach()
    if detached is not None:
        await detached

    # Then its messages can still be settled
    await receiver.complete_message(done)
    await receiver.dead_letter_message(bad, reason="bad", error_description="very")
    assert broker.queue(queue)["active_message_count"] == 0
    dead = await receive_one(sdk.dead_letters(queue))
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("bad", "very")


async def test_locks_outlive_the_receiver(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: a receiver that closes leaves what it received locked, until the locks run out."""
    queue = make_queue(lock_duration_ms=2_000)
    await sdk.send(queue, ServiceBusMessage("held"))
    receiver = sdk.receiver(queue)
    await receive_one(receiver)

    await receiver.close()

    assert broker.queue(queue)["locked_message_count"] == 1
    other = sdk.receiver(queue)
    assert await nothing_comes(other)
    again = await receive_one(other)
    assert (str(again), again.delivery_count) == ("held", 1)


async def test_what_was_only_fetched_ahead_goes_back_uncounted(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2: a closing receiver gives back what its caller never saw, in order."""
    queue = make_queue(lock_duration_ms=LONG_LOCK_MS)
    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(20)])
    receiver = sdk.receiver(queue, prefetch_count=20)
    seen = await receive(receiver, 5)

    async def fetched_ahead() -> bool:
        return bool(broker.queue(queue)["locked_message_count"] == 20)

    assert await eventually(fetched_ahead)

    await receiver.close()

    rest = await receive(sdk.receiver(queue), 15)
    assert bodies(seen) + bodies(rest) == [f"m{n}" for n in range(20)]
    assert {message.delivery_count for message in rest} == {0}
    assert broker.queue(queue)["locked_message_count"] == 20


async def test_messages_pushed_between_two_receives_are_not_lost(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """M2: without prefetch the client releases what comes while nobody asks; it comes again."""
    queue = make_queue(lock_duration_ms=LONG_LOCK_MS)
    receiver = sdk.receiver(queue)
    # Credit for nine messages stays open after this
    await sdk.send(queue, ServiceBusMessage("m0"))
    seen = bodies(await receiver.receive_messages(10, max_wait_time=10))

    await sdk.send(queue, [ServiceBusMessage(f"m{n}") for n in range(1, 6)])
    await asyncio.sleep(0.3)

    again = await receive(receiver, 5)
    assert seen + bodies(again) == [f"m{n}" for n in range(6)]
    assert {message.delivery_count for message in again} == {0}
