"""A subsystem goes down and comes back (rule F4), as the stock client sees it."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tests.integration.faults.switchboard import PATIENCE_S, Count, Switchboard, drained
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, eventually, receive_one


@pytest.fixture
def subsystem(broker: BrokerProcess, queue: str) -> str:
    """A subsystem with nothing in it but the queue."""
    name = f"subsystem of {uuid4().hex[:8]}"
    path = f"/namespaces/{broker.namespace}/subsystems"
    assert broker.admin("PUT", path, {queue: name})[queue] == name
    return name


async def test_a_subsystem_crashes_and_only_its_entities_fail(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str, subsystem: str
) -> None:
    """F4: links and locks are lost, nothing acknowledged is; others do not notice."""
    # Given a message under a lock
    count, sender, receiver = Count(), sdk.sender(queue), sdk.receiver(queue)
    await count.send(sender, "before")
    held = await receive_one(receiver)

    # When its subsystem crashes
    added = faults.add(
        "crash-subsystem", scope={"subsystem": subsystem}, down_s=600, slow_s=0, seed=1
    )
    assert added["phase"] == "down"
    await count.send(sender, "on its way")
    await count.send(sdk.sender(queue), "on a new link")
    assert count.errors[0] is ServiceBusConnectionError
    assert count.errors[1] is ServiceBusError
    with pytest.raises(ServiceBusError):
        await receiver.complete_message(held)
    await count.send(sdk.sender("bystander"), "elsewhere")

    # Then a file says how it was found, without a word of any message
    assert await eventually(lambda: _exists(added["diagnostics_path"]))
    text = Path(added["diagnostics_path"]).read_text()
    (entity,) = [each for each in json.loads(text)["entities"] if each["path"] == queue]
    assert entity["links"] == {"senders": 1, "receivers": 1}
    assert (entity["active_message_count"], entity["locked_message_count"]) == (1, 1)
    assert "before" not in text and "SharedAccess" not in text

    # And after its time it serves again, and has everything that was acknowledged
    faults.clear()
    await count.send(sdk.sender(queue), "after")
    received = await drained(sdk, broker, queue)
    assert [each for each in count.lost(received) if each != "elsewhere"] == []
    assert count.repeated(received) == []


@pytest.mark.parametrize("applied", [0, 1], ids=["not-stored", "stored"])
async def test_a_send_into_a_crash_that_hangs_is_stored_or_not(
    applied: int, sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str, subsystem: str
) -> None:
    """F4: a timed-out send may or may not have been stored."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    options = {"links": "hang", "applied_probability": applied, "down_s": 600}
    with faults.on("crash-subsystem", scope={"subsystem": subsystem}, **options):
        await count.send(sender, "unanswered", PATIENCE_S)
    assert count.errors == [OperationTimeoutError]
    received = await drained(sdk, broker, queue)
    assert received == ["before", "unanswered"][: 1 + applied]


async def test_a_subsystem_that_came_back_is_slow_for_a_while(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str, subsystem: str
) -> None:
    """F4: it restarts and is slow for a set time; nothing fails in it."""
    count, sender, receiver = Count(), sdk.sender(queue), sdk.receiver(queue)
    await count.send(sender, "before")
    scope = {"subsystem": subsystem}
    faults.add("crash-subsystem", scope=scope, down_s=0, slow_s=30, latency_ms=100, links="hang")
    assert faults.list()[0]["phase"] == "slow"
    for n in range(3):
        await count.send(sender, f"slow {n}")
    message = await receive_one(receiver)
    await receiver.complete_message(message)
    assert bodies([message]) == ["before"]
    assert faults.list()[0]["hit_count"] >= 5
    faults.clear()
    assert count.failed == []
    assert await drained(sdk, broker, queue) == ["slow 0", "slow 1", "slow 2"]


async def test_the_clients_own_retry_bridges_a_short_crash(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str, subsystem: str
) -> None:
    """F4: the client's own retry bridges short cases."""
    patient = sdk.client(retry_total=6, retry_backoff_factor=0.2)
    count, sender = Count(), sdk.sender(queue, client=patient)
    await count.send(sender, "before")
    faults.add("crash-subsystem", scope={"subsystem": subsystem}, down_s=1, slow_s=1)
    await count.send(sender, "during", 60)
    assert count.failed == []
    assert await drained(sdk, broker, queue) == ["before", "during"]


async def _exists(path: str) -> bool:
    return Path(path).exists()
