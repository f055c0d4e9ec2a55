"""Sessions as the stock client meets them: accept, hold, renew, state, order, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, AutoLockRenewer, ServiceBusMessage
from azure.servicebus.aio import AutoLockRenewer as AioAutoLockRenewer
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.integration.sdk.conftest import MakeQueue
from tests.integration.sdk.test_pings import ping
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    InThreads,
    Sdk,
    bodies,
    eventually,
    nothing_comes,
    opened,
    receive,
    receive_one,
    unwrapped,
)

LONG_LOCK_MS = 300_000
SHORT_LOCK_MS = 1_000


def in_session(session: str | None, *names: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(name, session_id=session) for name in names]


def session_of(receiver: Any) -> Any:
    """The session of a receiver, in the aio shape."""
    session = unwrapped(receiver).session
    return InThreads(session) if isinstance(receiver, InThreads) else session


def with_a_slow_clock(receiver: Any) -> None:
    """Keep the client from deciding by itself that its session is lost."""
    unwrapped(receiver).session._locked_until_utc = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    """A queue with sessions that nobody else uses."""
    return make_queue(requires_session=True, lock_duration_ms=LONG_LOCK_MS)


# -- accepting --------------------------------------------------------------------------------


async def test_a_receiver_gets_its_session_in_order_and_nothing_else(sdk: Sdk, queue: str) -> None:
    """M3: accept by id."""
    await sdk.send(queue, *in_session("a", "a1"), *in_session("b", "b1"), *in_session("a", "a2"))

    receiver = sdk.receiver(queue, session_id="a")
    got = await receive(receiver, 2)

    assert bodies(got) == ["a1", "a2"]
    assert {message.session_id for message in got} == {"a"}
    assert [message.sequence_number for message in got] == [1, 3]
    left_s = (session_of(receiver).locked_until_utc - datetime.now(UTC)).total_seconds()
    assert 240 < left_s <= 301
    for message in got:
        await receiver.complete_message(message)
    assert await nothing_comes(receiver)
    # What is sent while the session is held comes too
    await sdk.send(queue, *in_session("a", "a3"), *in_session("b", "b2"))
    assert bodies(await receive(receiver, 1)) == ["a3"]


async def test_the_next_session_is_the_one_that_has_waited_longest(sdk: Sdk, queue: str) -> None:
    """M3: accept next."""
    await sdk.send(queue, *in_session("first", "1"), *in_session("second", "2"))

    one = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    two = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    got = [*await receive(one, 1), *await receive(two, 1)]

    assert [(message.session_id, str(message)) for message in got] == [
        ("first", "1"),
        ("second", "2"),
    ]
    assert session_of(one).session_id == "first"


async def test_a_waiting_receiver_gets_a_session_when_messages_come(sdk: Sdk, queue: str) -> None:
    """M3: accept next waits for a session with messages."""
    receiver = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20)
    waiting = asyncio.create_task(receive(receiver, 1))
    await asyncio.sleep(0.5)
    assert not waiting.done()

    await sdk.send(queue, *in_session("late", "hello"))

    assert bodies(await waiting) == ["hello"]


async def test_without_a_session_in_time_the_receiver_is_told_so(sdk: Sdk, queue: str) -> None:
    """M3: the client's own time limit is kept."""
    receiver = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        await receiver.receive_messages(1)


async def test_a_session_has_one_holder(sdk: Sdk, queue: str) -> None:
    """M3: and it is free again when the holder closes, with what it had in hand, uncounted."""
    await sdk.send(queue, *in_session("a", "a1", "a2"))
    holder = sdk.receiver(queue, session_id="a")
    assert bodies(await receive(holder, 2)) == ["a1", "a2"]

    with pytest.raises(SessionCannotBeLockedError):
        await sdk.receiver(queue, session_id="a").receive_messages(1, max_wait_time=5)

    await holder.close()
    again = await receive(sdk.receiver(queue, session_id="a"), 2)
    assert [(str(message), message.delivery_count) for message in again] == [("a1", 0), ("a2", 0)]


async def test_a_session_can_be_held_before_it_has_messages(sdk: Sdk, queue: str) -> None:
    """M3: also the one with the empty name."""
    for session in ("early", ""):
        receiver = await opened(sdk.receiver(queue, session_id=session))
        await sdk.send(queue, *in_session(session, "hello"))
        got = await receive_one(receiver)
        assert (str(got), got.session_id) == ("hello", session)
        await receiver.complete_message(got)


async def test_sessions_and_plain_queues_do_not_mix(
    sdk: Sdk, queue: str, make_queue: MakeQueue
) -> None:
    """M3: the wrong kind of send or receive is refused, and nothing is stored."""
    plain = make_queue()
    with pytest.raises(ServiceBusError, match="group-id"):
        await sdk.send(queue, ServiceBusMessage("lost?"))
    with pytest.raises(ServiceBusError, match="requires sessions"):
        await sdk.receiver(queue).receive_messages(1, max_wait_time=5)
    with pytest.raises(ServiceBusError, match="has no sessions"):
        await sdk.receiver(plain, session_id="a").receive_messages(1, max_wait_time=5)
    # A plain queue takes a message with a session id like any other
    await sdk.send(plain, *in_session("a", "kept"))
    assert bodies(await receive(sdk.receiver(plain), 1)) == ["kept"]


# -- holding ----------------------------------------------------------------------------------


async def test_a_renewed_session_is_kept(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M3: renewal begins the lock's time anew, and messages live as long as the session."""
    queue = make_queue(requires_session=True, lock_duration_ms=2_000)
    await sdk.send(queue, *in_session("a", "a1"))
    receiver = sdk.receiver(queue, session_id="a")
    message = await receive_one(receiver)
    session = session_of(receiver)
    first_end = session.locked_until_utc

    while datetime.now(UTC) < first_end + timedelta(seconds=1):
        renewed_end = await session.renew_lock()
        assert session.locked_until_utc == renewed_end
        await asyncio.sleep(0.2)

    await receiver.complete_message(message)
    assert renewed_end > first_end


async def test_the_renewer_of_the_client_keeps_a_session(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M3, M10: AutoLockRenewer, which looks once a second and renews when half of it is over."""
    queue = make_queue(requires_session=True, lock_duration_ms=5_000)
    await sdk.send(queue, *in_session("a", "a1"))
    renewer = AutoLockRenewer() if sdk.flavour == "sync" else AioAutoLockRenewer()
    receiver = sdk.receiver(queue, session_id="a", auto_lock_renewer=renewer)
    message = await receive_one(receiver)
    await asyncio.sleep(6)
    await receiver.complete_message(message)
    closing = renewer.close()
    if closing is not None:
        await closing


async def test_a_session_whose_time_runs_out_is_lost(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M2, M3: what was in hand counts as tried and goes to the next holder, in order."""
    queue = make_queue(requires_session=True, lock_duration_ms=SHORT_LOCK_MS)
    await sdk.send(queue, *in_session("a", "a1", "a2", "a3"))
    receiver = sdk.receiver(queue, session_id="a")
    first, _second = await receive(receiver, 2)
    await asyncio.sleep(1.5)

    # The broker has to answer: the client would look at its own clock first
    with_a_slow_clock(receiver)
    with pytest.raises(SessionLockLostError):
        await receiver.complete_message(first)
    with pytest.raises(SessionLockLostError):
        await session_of(receiver).renew_lock()

    again = await receive(sdk.receiver(queue, session_id="a"), 3)
    assert [(str(m), m.delivery_count) for m in again] == [("a1", 1), ("a2", 1), ("a3", 0)]


async def test_messages_that_fail_too_often_leave_the_session(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """M2, M3: the dead-letter queue of a queue with sessions has none."""
    queue = make_queue(requires_session=True, lock_duration_ms=LONG_LOCK_MS, max_delivery_count=2)
    await sdk.send(queue, *in_session("a", "bad", "good", "worse"))
    receiver = sdk.receiver(queue, session_id="a")
    for attempt in range(2):
        message = await receive_one(receiver)
        assert (str(message), message.delivery_count) == ("bad", attempt)
        await receiver.abandon_message(message)
    good, worse = await receive(receiver, 2)
    await receiver.complete_message(good)
    await receiver.dead_letter_message(worse, reason="why", error_description="because")

    dead = await receive(sdk.dead_letters(queue), 2)
    assert [(str(m), m.dead_letter_reason, m.session_id) for m in dead] == [
        ("bad", "MaxDeliveryCountExceeded", "a"),
        ("worse", "why", "a"),
    ]


async def test_deferred_messages_are_taken_by_the_holder(sdk: Sdk, queue: str) -> None:
    """M2, M3: by number, with the session's lock."""
    await sdk.send(queue, *in_session("a", "later", "now"))
    receiver = sdk.receiver(queue, session_id="a")
    later = await receive_one(receiver)
    await receiver.defer_message(later)
    assert bodies(await receive(receiver, 1)) == ["now"]

    (found,) = await receiver.receive_deferred_messages([later.sequence_number])
    await receiver.abandon_message(found)
    (found,) = await receiver.receive_deferred_messages([later.sequence_number])
    assert (str(found), found.delivery_count) == ("later", 1)
    await receiver.complete_message(found)

    # The holder of another session does not find it
    await sdk.send(queue, *in_session("a", "other"))
    other = sdk.receiver(queue, session_id="b")
    with pytest.raises(ServiceBusError):
        await other.receive_deferred_messages([later.sequence_number + 1])


async def test_receive_and_delete_works_in_a_session(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M2, M3."""
    await sdk.send(queue, *in_session("a", *[f"a{n}" for n in range(10)]), *in_session("b", "b1"))
    receiver = sdk.receiver(queue, session_id="a", receive_mode="receiveanddelete")

    assert bodies(await receive(receiver, 10)) == [f"a{n}" for n in range(10)]

    async def only_the_other_is_left() -> bool:
        return bool(broker.queue(queue)["active_message_count"] == 1)

    assert await eventually(only_the_other_is_left)


# -- state, peek, schedule, list --------------------------------------------------------------


async def test_a_session_keeps_its_state_for_the_next_holder(sdk: Sdk, queue: str) -> None:
    """M3: session state is the session's, whether it has messages or not."""
    receiver = sdk.receiver(queue, session_id="a")
    assert await session_of(receiver).get_state() is None
    await session_of(receiver).set_state(b"step \x00 1")
    assert await session_of(receiver).get_state() == b"step \x00 1"
    await receiver.close()

    again = sdk.receiver(queue, session_id="a")
    assert await session_of(again).get_state() == b"step \x00 1"
    other = sdk.receiver(queue, session_id="b")
    assert await session_of(other).get_state() is None
    await session_of(again).set_state(None)
    assert await session_of(again).get_state() is None


async def test_peek_shows_one_session_to_its_holder(sdk: Sdk, queue: str) -> None:
    """M3: active and scheduled messages of that session, and of no other."""
    sender = sdk.sender(queue)
    for session in ("a", "b"):
        await sender.send_messages(in_session(session, f"{session}1", f"{session}2"))
        due = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages(in_session(session, f"{session}3"), due)

    receiver = sdk.receiver(queue, session_id="b")

    assert bodies(await receiver.peek_messages(10)) == ["b1", "b2", "b3"]
    assert bodies(await receiver.peek_messages(10, sequence_number=5)) == ["b2", "b3"]


async def test_scheduled_messages_join_their_session_when_due(sdk: Sdk, queue: str) -> None:
    """M3."""
    sender = sdk.sender(queue)
    due = datetime.now(UTC) + timedelta(seconds=1)
    await sender.schedule_messages([*in_session("a", "a1"), *in_session("b", "b1")], due)

    for session in ("b", "a"):
        receiver = sdk.receiver(queue, session_id=session)
        assert bodies(await receive(receiver, 1)) == [f"{session}1"]


async def test_sessions_with_messages_can_be_listed(sdk: Sdk, queue: str) -> None:
    """M3, M10."""
    names = sorted(f"s{n:03}" for n in range(120))
    await sdk.send(queue, [message for name in names for message in in_session(name, "x")])
    client = sdk.client()

    listed = client.list_queue_sessions(queue)
    found = list(listed) if sdk.flavour == "sync" else [name async for name in listed]

    assert found == names


async def test_a_ping_to_a_queue_with_sessions_is_handed_to_nobody(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M7: with and without a session id; it does not make a session available."""
    await sdk.send(queue, ping(session_id="a"), ping(), [ping(session_id="b"), ping()])

    assert broker.counts(queue)["active_message_count"] == 0
    receiver = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        await receiver.receive_messages(1)
    assert await nothing_comes(sdk.receiver(queue, session_id="a"))


async def test_a_subscription_can_have_sessions(sdk: Sdk, broker: BrokerProcess) -> None:
    """M1, M3: with states of its own; a message without a session id is dead-lettered there."""
    topic = broker.fresh_topic()
    for name in ("orders", "audit"):
        broker.create_subscription(topic, name, requires_session=True)
    sender = sdk.topic_sender(topic)
    await sender.send_messages([*in_session("a", "a1"), *in_session("b", "b1")])
    await sender.send_messages([*in_session("a", "a2"), ServiceBusMessage("nobody's")])

    receiver = sdk.subscription(topic, "orders", session_id="a")
    assert bodies(await receive(receiver, 2)) == ["a1", "a2"]
    await session_of(receiver).set_state(b"mine")

    other = sdk.subscription(topic, "audit", session_id=NEXT_AVAILABLE_SESSION)
    assert bodies(await receive(other, 2)) == ["a1", "a2"]
    assert await session_of(other).get_state() is None
    dead = await receive(sdk.subscription(topic, "audit", sub_queue="deadletter"), 1)
    assert bodies(dead) == ["nobody's"]


# -- restart ----------------------------------------------------------------------------------


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        running.create_queue("orders", requires_session=True, lock_duration_ms=LONG_LOCK_MS)
        yield running


@pytest.fixture(params=["sync", "aio"])
async def own_sdk(request: pytest.FixtureRequest, own_broker: BrokerProcess) -> AsyncIterator[Sdk]:
    opened_sdk = Sdk(request.param, own_broker.connection_string)
    yield opened_sdk
    await opened_sdk.close()


async def test_a_kill_keeps_states_and_messages(own_sdk: Sdk, own_broker: BrokerProcess) -> None:
    """M3, M8: nobody holds a session afterwards, and nothing else has changed."""
    sdk, broker = own_sdk, own_broker
    await sdk.send("orders", *in_session("a", "a1", "a2", "a3", "a4"), *in_session("b", "b1"))
    receiver = sdk.receiver("orders", session_id="a")
    tried = await receive_one(receiver)
    await receiver.abandon_message(tried)
    _tried, done, deferred = await receive(receiver, 3)
    await receiver.complete_message(done)
    await receiver.defer_message(deferred)
    await session_of(receiver).set_state("halfway")

    broker.kill()
    broker.restart()

    # The session that has waited longest comes first, as before
    again = sdk.receiver("orders", session_id=NEXT_AVAILABLE_SESSION)
    got = await receive(again, 2)
    assert [(str(m), m.delivery_count) for m in got] == [("a1", 1), ("a4", 0)]
    assert await session_of(again).get_state() == b"halfway"
    (found,) = await again.receive_deferred_messages([deferred.sequence_number])
    assert str(found) == "a3"
    other = sdk.receiver("orders", session_id=NEXT_AVAILABLE_SESSION)
    assert bodies(await receive(other, 1)) == ["b1"]
