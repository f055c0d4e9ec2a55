"""The SDK's driver receives: bytes as delivered, cancelled, settled meanwhile, links taken away."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from tests.integration.drivers.azure_sdk.trouble import detached, fault
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.azure_sdk.sdk_link import SdkLink, _whole_transfer
from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    LinkDetached,
    MessageNotFound,
    MessageRefused,
    OperationTimeout,
    SessionCannotBeLocked,
)
from twinbus.testing.namespaces import NamespaceFixture

TIMEOUT_S = 20.0
SHORT_S = 0.4


async def put(driver: ServiceBusDriver, queue: str, *texts: str, session: str = "") -> None:
    sender = driver.sender(queue)
    natives = [ServiceBusMessage(text, session_id=session or None) for text in texts]
    await sender.send([OutgoingMessage(native=each) for each in natives], timeout_s=TIMEOUT_S)
    await sender.close()


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    return [bytes(Message.decode(each.encoded).body).decode() for each in messages]


async def all_of(receiver: Any, count: int) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    while len(received) < count:
        more = await receiver.receive(count - len(received), wait_s=TIMEOUT_S)
        assert more, f"only {len(received)} of {count} came"
        received += more
    return received


async def test_a_message_tells_what_the_service_says_about_it(
    driver: ServiceBusDriver, queue: str
) -> None:
    await put(driver, queue, "a", "b")
    receiver = driver.receiver(queue)
    first, second = await all_of(receiver, 2)
    assert (first.sequence_number, second.sequence_number) == (1, 2)
    assert (first.path, first.delivery_count, len(first.lock_token)) == (queue, 0, 16)
    assert first.lock_token != second.lock_token
    assert abs((first.enqueued_at_ms or 0) / 1000 - time.time()) < 60
    assert (first.locked_until_ms or 0) > (first.enqueued_at_ms or 0)
    assert await receiver.abandon([first], timeout_s=TIMEOUT_S) == []
    [again] = await all_of(receiver, 1)
    assert (bodies([again]), again.delivery_count) == (["a"], 1)


@pytest.mark.parametrize("size_bytes", [0, 200, 60_000, 250_000])
async def test_bytes_are_as_delivered_whatever_the_size(
    driver: ServiceBusDriver, queue: str, size_bytes: int
) -> None:
    """P12: by receive, by peek and by number."""
    sent = Message(properties=Properties(message_id="m"), body=b"x" * size_bytes)
    await driver.sender(queue).send([OutgoingMessage(sent.encode())], timeout_s=TIMEOUT_S)
    receiver = driver.receiver(queue)
    [peeked] = await receiver.peek(5, timeout_s=TIMEOUT_S)
    [received] = await all_of(receiver, 1)
    await receiver.defer([received], timeout_s=TIMEOUT_S)
    [deferred] = await receiver.receive_deferred([1], timeout_s=TIMEOUT_S)
    for each in (peeked, received, deferred):
        decoded = Message.decode(each.encoded)
        assert (decoded.properties, decoded.body) == (sent.properties, sent.body)
        assert each.sequence_number == 1
    assert (peeked.lock_token, peeked.locked_until_ms) == (b"", None)
    assert len(deferred.lock_token) == 16
    assert await receiver.complete([deferred], timeout_s=TIMEOUT_S) == []


async def test_a_message_in_several_frames_keeps_all_its_bytes() -> None:
    """P12: the SDK keeps only the first frame's; a service may cut a message anywhere."""
    seen: list[Any] = []
    link = SimpleNamespace(_received_payload=bytearray(), _first_frame=None)

    async def incoming(frame: list[Any]) -> None:
        # As the SDK's receiver link does it.
        if frame[1] is not None:
            link._first_frame = frame
        if link._received_payload or frame[5]:
            link._received_payload.extend(frame[11])
        if not frame[5]:
            link._received_payload = bytearray()
            seen.append(bytes(link._first_frame[11]))

    def frame(delivery_id: int | None, more: bool, payload: bytes) -> list[Any]:
        return [0, delivery_id, b"tag", 0, None, more, *[None] * 5, memoryview(payload)]

    for each in (
        frame(1, True, b"ab"),
        frame(None, True, b"cd"),
        frame(None, False, b"e"),
        frame(2, False, b"f"),
    ):
        await _whole_transfer(link, incoming, each)
    assert seen == [b"abcde", b"f"]


async def test_a_receive_returns_what_is_there_and_does_not_wait_for_more(
    driver: ServiceBusDriver, queue: str
) -> None:
    receiver = driver.receiver(queue)
    assert await receiver.receive(1, wait_s=0.01) == []
    await put(driver, queue, "a", "b", "c")
    began_s = time.monotonic()
    assert await all_of(receiver, 3)
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    began_s = time.monotonic()
    assert await receiver.receive(10, wait_s=SHORT_S) == []
    assert time.monotonic() - began_s >= SHORT_S * 0.9


async def test_a_waiting_receive_is_woken_by_a_message(
    driver: ServiceBusDriver, queue: str
) -> None:
    receiver = driver.receiver(queue)
    waiting = asyncio.create_task(receiver.receive(10, wait_s=TIMEOUT_S))
    await asyncio.sleep(SHORT_S)
    await put(driver, queue, "a")
    assert bodies(await waiting) == ["a"]


async def test_a_settlement_does_not_wait_for_a_receive(
    driver: ServiceBusDriver, queue: str
) -> None:
    """Y1: a chunk is settled while the next one is awaited."""
    await put(driver, queue, "a", "b")
    receiver = driver.receiver(queue)
    messages = await all_of(receiver, 2)
    waiting = asyncio.create_task(receiver.receive(10, wait_s=TIMEOUT_S))
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    assert await receiver.complete(messages, timeout_s=TIMEOUT_S) == []
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert not waiting.done()
    await put(driver, queue, "c")
    assert bodies(await waiting) == ["c"]


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_a_cancelled_receive_loses_no_message(
    driver: ServiceBusDriver, queue: str, mode: ReceiveMode
) -> None:
    """Y1: also of those that are deleted when they are delivered."""
    receiver = driver.receiver(queue, mode=mode)
    await receiver.receive(1, wait_s=0.01)
    sent = [f"m{index}" for index in range(30)]
    sending = asyncio.create_task(slowly(driver, queue, sent))
    received: list[ReceivedMessage] = []
    while len(received) < len(sent):
        receive = asyncio.create_task(receiver.receive(5, wait_s=TIMEOUT_S))
        await asyncio.wait([receive], timeout=0.003)
        receive.cancel()
        try:
            received += await receive
        except asyncio.CancelledError:
            continue
    await sending
    # What came while nobody was receiving was given back, perhaps behind later ones.
    assert sorted(bodies(received)) == sorted(sent)


async def slowly(driver: ServiceBusDriver, queue: str, texts: list[str]) -> None:
    sender = driver.sender(queue)
    for text in texts:
        await sender.send([OutgoingMessage(native=ServiceBusMessage(text))], timeout_s=TIMEOUT_S)


async def test_every_way_to_settle(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    await put(driver, queue, "complete", "defer", "bury")
    receiver = driver.receiver(queue)
    complete, defer, bury = await all_of(receiver, 3)
    assert await receiver.renew([complete, defer], timeout_s=TIMEOUT_S) == []
    assert await receiver.complete([complete], timeout_s=TIMEOUT_S) == []
    assert await receiver.defer([defer], timeout_s=TIMEOUT_S) == []
    assert (
        await receiver.dead_letter(
            [bury], reason="reason", description="description", timeout_s=TIMEOUT_S
        )
        == []
    )
    [buried] = await all_of(driver.receiver(f"{queue}/$DeadLetterQueue"), 1)
    properties = Message.decode(buried.encoded).application_properties or {}
    assert properties["DeadLetterReason"] == "reason"
    assert properties["DeadLetterErrorDescription"] == "description"
    assert servicebus.machine(queue).deferred_count == 1
    with pytest.raises(MessageNotFound):
        await receiver.receive_deferred([defer.sequence_number, 99], timeout_s=TIMEOUT_S)
    assert await receiver.receive_deferred([], timeout_s=TIMEOUT_S) == []


async def test_lost_locks_are_told_and_the_others_settled(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """M2: a lock that is gone is in the result, for each way to settle."""
    await put(driver, queue, "a", "b", "c")
    receiver = driver.receiver(queue)
    held = await all_of(receiver, 3)
    servicebus._thread.run_function(lambda: servicebus._namespace.faults.add(_lock_loss()))
    assert await receiver.renew(held[:1], timeout_s=TIMEOUT_S) == held[:1]
    again = await all_of(receiver, 3)
    assert await receiver.complete([held[1], again[0]], timeout_s=TIMEOUT_S) == [held[1]]
    assert await receiver.abandon([held[2], again[1]], timeout_s=TIMEOUT_S) == [held[2]]
    assert await receiver.complete([again[0]], timeout_s=TIMEOUT_S) == [again[0]]


def _lock_loss() -> Any:
    from twinbus.broker.faults import Fault, Scope

    return Fault("lock-loss", Scope(entity=""))


async def test_a_link_that_was_taken_away_is_no_error(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """Y1: to a receive, nor to a settlement: the lock outlives the link."""
    await put(driver, queue, "a", "b")
    receiver = driver.receiver(queue)
    messages = await all_of(receiver, 2)
    await detached(servicebus)
    assert await receiver.complete(messages[:1], timeout_s=TIMEOUT_S) == []
    await detached(servicebus)
    assert await receiver.receive(1, wait_s=0.01) == []
    await detached(servicebus)
    assert await receiver.renew(messages[1:], timeout_s=TIMEOUT_S) == []
    assert await receiver.complete(messages[1:], timeout_s=TIMEOUT_S) == []
    assert servicebus.machine(queue).active_count == 0


async def test_a_link_that_is_taken_during_a_wait_is_no_error(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """Y3: a wait of minutes outlives it."""
    receiver = driver.receiver(queue)
    await receiver.receive(1, wait_s=0.01)
    waiting = asyncio.create_task(receiver.receive(1, wait_s=TIMEOUT_S))
    await asyncio.sleep(0.05)
    await detached(servicebus)
    await put(driver, queue, "a")
    assert bodies(await waiting) == ["a"]


async def test_no_settlement_outlives_its_time(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    """F6: and the receiver can be used again."""
    await put(driver, queue, "a")
    receiver = driver.receiver(queue)
    messages = await all_of(receiver, 1)
    began_s = time.monotonic()
    with (
        fault(servicebus, "cannot-contact", how="black-hole"),
        pytest.raises(OperationTimeout),
    ):
        await receiver.complete(messages, timeout_s=SHORT_S)
    assert time.monotonic() - began_s < SHORT_S + 5
    # The first attempt may have arrived: then its lock is gone, and so is the message.
    await receiver.complete(messages, timeout_s=TIMEOUT_S)
    assert servicebus.machine(queue).active_count == 0


async def test_what_is_deleted_on_delivery_has_no_lock(
    driver: ServiceBusDriver, servicebus: NamespaceFixture, queue: str
) -> None:
    await put(driver, queue, "a")
    receiver = driver.receiver(queue, mode=ReceiveMode.RECEIVE_AND_DELETE)
    [message] = await all_of(receiver, 1)
    assert message.lock_token == b""
    with pytest.raises(MessageRefused):
        await receiver.complete([message], timeout_s=TIMEOUT_S)
    assert servicebus.machine(queue).active_count == 0


async def test_closing_gives_back_what_nobody_was_given(
    driver: ServiceBusDriver, queue: str
) -> None:
    """M2: at once, and not counted as delivered."""
    await put(driver, queue, "a", "b", "c")
    first = driver.receiver(queue, prefetch=10)
    [held] = await first.receive(1, wait_s=TIMEOUT_S)
    await first.close()
    await first.close()
    others = await all_of(driver.receiver(queue), 2)
    assert {each.delivery_count for each in others} == {0}
    assert held.sequence_number not in {each.sequence_number for each in others}
    with pytest.raises(CommunicationError):
        await first.receive(1, wait_s=0.1)


async def test_a_link_that_is_lost_does_not_make_the_wait_longer(
    driver: ServiceBusDriver, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = driver.receiver(queue)
    await receiver.receive(1, wait_s=0.05)
    waits: list[float] = []

    async def received_once(_count_max: int, wait_s: float) -> list[ReceivedMessage]:
        waits.append(wait_s)
        if len(waits) == 1:
            await asyncio.sleep(0.3)
            raise LinkDetached("taken away")
        return []

    monkeypatch.setattr(receiver, "_received_once", received_once)
    assert await receiver.receive(1, wait_s=900) == []
    assert waits[0] == 900 and waits[1] < 899.8


async def test_a_cancelled_goodbye_lets_go_all_the_same() -> None:
    class Sdk:
        _running = True
        _handler: Any = SimpleNamespace(
            _keep_alive_thread=None, _shutdown=False, _connection=SimpleNamespace()
        )

        async def _close_handler(self) -> None:
            await asyncio.sleep(60)

        def _create_handler(self, auth: object) -> None: ...

    line = SdkLink(Sdk())
    closing = asyncio.create_task(line.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert line.is_dropped


async def test_a_subscription_is_received_from(
    driver: ServiceBusDriver, servicebus: NamespaceFixture
) -> None:
    servicebus.subscription("news", "mine")
    await put(driver, "news", "a")
    receiver = driver.receiver("news/Subscriptions/mine")
    messages = await all_of(receiver, 1)
    assert bodies(messages) == ["a"]
    assert await receiver.complete(messages, timeout_s=TIMEOUT_S) == []


async def test_sessions_by_name_and_the_next_one(
    driver: ServiceBusDriver, servicebus: NamespaceFixture
) -> None:
    """M3: who holds which, who has to wait, and that nothing free is simply nothing."""
    queue = servicebus.queue("sessions", requires_session=True)
    nobody = driver.receiver(queue, session=NEXT_SESSION)
    assert (await nobody.receive(1, wait_s=0.3), nobody.session_id) == ([], None)
    await put(driver, queue, "a1", "a2", session="a")
    await put(driver, queue, "b1", session="b")
    named = driver.receiver(queue, session="b")
    assert named.session_id == "b"
    held = await all_of(named, 1)
    assert await named.renew(held, timeout_s=TIMEOUT_S) == []
    following = driver.receiver(queue, session=NEXT_SESSION)
    assert bodies(await all_of(following, 2)) == ["a1", "a2"]
    assert following.session_id == "a"
    with pytest.raises(SessionCannotBeLocked):
        await driver.receiver(queue, session="b").receive(1, wait_s=1)
    assert await named.complete(held, timeout_s=TIMEOUT_S) == []


async def test_a_session_that_was_lost_is_told_and_can_be_had_again(
    driver: ServiceBusDriver, servicebus: NamespaceFixture
) -> None:
    """M2: its lock goes with its link, and with it those of its messages."""
    queue = servicebus.queue("sessions", requires_session=True)
    await put(driver, queue, "a1", "a2", session="a")
    receiver = driver.receiver(queue, session="a")
    held = await all_of(receiver, 2)
    await detached(servicebus)
    assert await receiver.complete(held, timeout_s=TIMEOUT_S) == held
    assert bodies(await all_of(receiver, 2)) == ["a1", "a2"]


async def test_a_timeout_that_the_service_answers_is_raised_as_it_is(
    driver: ServiceBusDriver, queue: str
) -> None:
    """P18: OperationTimeout is a TimeoutError, too, and not the end of the caller's own time."""
    answer = OperationTimeoutError(message="too busy")
    answer._condition = "com.microsoft:timeout"  # type: ignore[attr-defined]

    async def answered(_sdk: Any) -> None:
        raise answer

    receiver = driver.receiver(queue)
    with pytest.raises(OperationTimeout) as raised:
        await receiver._call(answered, "peeking into", timeout_s=TIMEOUT_S)
    assert raised.value.condition == "com.microsoft:timeout"
    assert raised.value.__cause__ is answer
