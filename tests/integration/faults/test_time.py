"""Faults by a clock that is moved: a quarter of an hour passes in a moment (rule F3)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.integration.faults.switchboard import Count, Switchboard, drained
from tests.integration.sdk.test_pings import ping
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, eventually, nothing_comes, receive_one


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One of their own: its clock runs away from everybody else's."""
    data = tmp_path_factory.mktemp("time") / "data"
    arguments = ("--adjustable-clock",)
    with BrokerProcess(data, queues=("bystander",), arguments=arguments) as running:
        yield running
        assert running.is_alive, running.log()
        assert "Traceback" not in running.log()


async def test_messages_appear_a_quarter_of_an_hour_later(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F3: acknowledged at once, exactly one copy, visible after the delay; pings succeed."""
    began_s = time.monotonic()
    count, sender, receiver = Count(), sdk.sender(queue), sdk.receiver(queue)
    await count.send(sender, "before")
    with faults.on("delayed-visibility", queue, delay_s=900):
        for n in range(5):
            await count.send(sender, f"hidden {n}")
        await sender.send_messages(ping(), timeout=SEND_TIMEOUT_S)
        await count.send(sdk.sender("bystander"), "elsewhere")
    assert count.failed == []
    assert broker.queue(queue)["active_message_count"] == 1

    # Nobody sees them before their time: neither who receives nor who peeks
    first = await receive_one(receiver)
    await receiver.complete_message(first)
    assert await nothing_comes(receiver)
    assert await receiver.peek_messages(10, sequence_number=1) == []

    # After it everybody does, and there is one of each
    await receiver.close()
    faults.advance(901)
    assert await eventually(lambda: _has_count(broker, queue, 5))
    (shown, *_rest) = await sdk.receiver(queue).peek_messages(1)
    assert shown.scheduled_enqueue_time_utc is None
    received = await drained(sdk, broker, queue)
    assert received == [f"hidden {n}" for n in range(5)]
    assert time.monotonic() - began_s < 100


async def test_a_restart_does_not_forget_what_is_hidden(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F3, M8, M9: a namespace that is stopped and started again shows it in time, once."""
    count, sender = Count(), sdk.sender(queue)
    with faults.on("delayed-visibility", queue, delay_s=30, jitter_s=6, seed=5):
        await count.send(sender, "hidden")
    namespace = f"/namespaces/{broker.namespace}"
    broker.admin("POST", f"{namespace}/stop")
    broker.admin("POST", f"{namespace}/start")
    assert broker.queue(queue)["active_message_count"] == 0
    faults.advance(37)
    assert await eventually(lambda: _has_count(broker, queue, 1))
    assert await drained(sdk, broker, queue) == ["hidden"]


@pytest.mark.parametrize("sdk", ["aio"], indirect=True)
async def test_a_moved_clock_ends_locks_and_lives(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard
) -> None:
    """M2, M3: locks, time to live and schedules are looked at when the clock was moved."""
    queue = broker.fresh_queue(lock_duration_ms=60_000)
    receiver = sdk.receiver(queue)
    await sdk.send(queue, ServiceBusMessage("locked"))
    await receive_one(receiver)
    assert broker.queue(queue)["locked_message_count"] == 1
    faults.advance(61)
    assert await eventually(lambda: _has_locks(broker, queue, 0))


async def test_a_fault_that_waits_does_nothing_until_its_time(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1: timed; begins and ends by the broker's clock."""
    count, sender = Count(), sdk.sender(queue)
    faults.add("throttle", queue, starts_after_s=60, lasts_s=60)
    await count.send(sender, "early")
    assert faults.list()[0]["phase"] == "waiting"
    faults.advance(61)
    await count.send(sender, "within")
    faults.advance(60)
    await count.send(sender, "late")
    assert count.errors == [ServiceBusServerBusyError]
    assert (count.acknowledged, count.failed) == (["early", "late"], ["within"])
    assert faults.list() == []


async def _has_count(broker: BrokerProcess, queue: str, count: int) -> bool:
    return bool(broker.queue(queue)["active_message_count"] == count)


async def _has_locks(broker: BrokerProcess, queue: str, count: int) -> bool:
    return bool(broker.queue(queue)["locked_message_count"] == count)
