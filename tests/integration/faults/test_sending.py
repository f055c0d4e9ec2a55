"""Sends that meet a fault, as the stock client sees it, with what was lost or repeated counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tests.integration.faults.switchboard import PATIENCE_S, Count, Switchboard, drained, patience_s
from tests.integration.sdk.test_pings import ping
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk
from twinbus.broker.engine.stored_message import MessageKeys, partition_of


@dataclass(frozen=True)
class Row:
    """A fault, what the client raises, and what is in the queue afterwards."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    on_open_link: type[Exception] | None = None
    on_new_link: type[Exception] | None = None
    stored: int = 0
    """Messages of failed sends that are there all the same: the ambiguous ones."""
    is_namespace_wide: bool = False

    def __str__(self) -> str:
        told = "-".join(str(value) for value in self.options.values())
        return f"{self.kind}-{told}".strip("-")


TABLE = [
    Row("cannot-send", {}, ServiceBusError, ServiceBusError),
    Row(
        "cannot-send",
        {"condition": "com.microsoft:entity-disabled"},
        MessagingEntityDisabledError,
        MessagingEntityDisabledError,
    ),
    Row("cannot-send", {"how": "timeout"}, OperationTimeoutError, OperationTimeoutError),
    Row(
        "cannot-send",
        {"how": "timeout", "applied_probability": 1},
        OperationTimeoutError,
        OperationTimeoutError,
        stored=1,
    ),
    Row("cannot-send", {"how": "detach"}, ServiceBusConnectionError, ServiceBusConnectionError),
    Row("cannot-receive"),
    Row("throttle", {}, ServiceBusServerBusyError, ServiceBusServerBusyError),
    Row("detach", {}, ServiceBusConnectionError),
    Row("lost-disposition"),
    Row(
        "disk-full",
        {},
        ServiceBusServerBusyError,
        ServiceBusServerBusyError,
        is_namespace_wide=True,
    ),
    Row("slow-disk", {"latency_ms": 300}, is_namespace_wide=True),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_what_a_sender_sees_and_what_is_stored(
    row: Row, sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1, F2: nothing acknowledged is lost; only an unanswered send can be there unasked."""
    # Given a sender that works
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    bystander = sdk.sender("bystander")
    await bystander.send_messages(ServiceBusMessage("other"), timeout=SEND_TIMEOUT_S)

    # When the fault is switched on, with that link open and for a new one
    with faults.on(row.kind, "" if row.is_namespace_wide else queue, **row.options):
        links = ((sender, row.on_open_link), (sdk.sender(queue), row.on_new_link))
        for n, (link, expected) in enumerate(links):
            await count.send(link, f"during {n}", patience_s(expected))
            got = count.errors.pop() if count.errors else None
            assert got is expected
        # Then others do not notice
        if not row.is_namespace_wide:
            await bystander.send_messages(ServiceBusMessage("other"), timeout=SEND_TIMEOUT_S)

    # And when it is cleared, everything works again, and everything is accounted for
    await count.send(sdk.sender(queue), "after")
    received = await drained(sdk, broker, queue)
    assert "after" in count.acknowledged
    assert count.lost(received) == []
    assert len(count.surplus(received)) == row.stored
    assert count.repeated(received) == []


async def test_an_application_that_sends_again_repeats_only_what_was_ambiguous(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1, F4: half of the unanswered sends were stored; sending all again doubles just those."""
    # Given eight open links, because the client gives up one whose send is not answered
    count, values = Count(), [f"value {n}" for n in range(8)]
    senders = [sdk.sender(queue) for _ in values]
    await asyncio.gather(*(count.send(each, f"warm {n}") for n, each in enumerate(senders)))

    # When nobody is answered, and chance decides what is stored
    with faults.on("cannot-send", queue, how="timeout", applied_probability=0.5, seed=4):
        sends = zip(senders, values, strict=True)
        await asyncio.gather(*(count.send(each, value, PATIENCE_S) for each, value in sends))
    assert sorted(count.failed) == values

    # Then sending all of them again loses none and doubles some of them
    sender = sdk.sender(queue)
    for value in values:
        await count.send(sender, value)
    received = await drained(sdk, broker, queue)
    assert count.lost(received) == []
    repeated = count.repeated(received)
    assert 0 < len(repeated) < len(values)
    assert set(repeated) <= set(values)


async def test_a_throttle_with_a_rate_lets_that_many_through(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F2: above the rate ServerBusy, before anything is stored; pings count as well."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    with faults.on("throttle", queue, rate_per_s=0.01) as added:
        await count.send(sender, "first")
        for n in range(3):
            await count.send(sender, f"more {n}")
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ping(), timeout=SEND_TIMEOUT_S)
        (shown,) = faults.list()
        assert (shown["id"], shown["hit_count"]) == (added["id"], 4)
    assert count.errors == [ServiceBusServerBusyError] * 3
    assert await drained(sdk, broker, queue) == ["before", "first"]


async def test_one_partition_is_throttled_and_the_others_are_not(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard
) -> None:
    """F2: a partitioned entity throttles per partition."""
    queue = broker.fresh_queue(enable_partitioning=True)
    keys = {partition_of(MessageKeys(None, None, key)): key for key in map(str, range(200))}
    sender = sdk.sender(queue)

    async def send(partition: int) -> None:
        message = ServiceBusMessage(str(partition), partition_key=keys[partition])
        await sender.send_messages(message, timeout=SEND_TIMEOUT_S)

    await send(3)
    with faults.on("throttle", scope={"entity": queue, "partition": 3}):
        with pytest.raises(ServiceBusServerBusyError):
            await send(3)
        await send(4)
    assert await drained(sdk, broker, queue) == ["3", "4"]


async def test_the_clients_own_retry_bridges_a_short_failure(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F4: with its retries on, the caller of the client sees nothing of a short failure."""
    patient = sdk.client(retry_total=5, retry_backoff_factor=0.2)
    count, sender = Count(), sdk.sender(queue, client=patient)
    await count.send(sender, "before")
    faults.add("cannot-send", queue, lasts_s=1.0)
    await count.send(sender, "during", 60)
    assert count.failed == []
    assert await drained(sdk, broker, queue) == ["before", "during"]


async def test_two_faults_at_once_are_both_felt(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1: alone or combined: a full disk under a slow network, then only the one that stays."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    with faults.on("throttle", queue):
        with faults.on("cannot-contact", how="slow", latency_ms=150):
            began = [each["hit_count"] for each in faults.list()]
            await count.send(sender, "both")
            assert [each["hit_count"] for each in faults.list()] > began
        await count.send(sender, "one")
    await count.send(sender, "none")
    assert count.errors == [ServiceBusServerBusyError] * 2
    assert await drained(sdk, broker, queue) == ["before", "none"]


async def test_chance_strikes_some_and_the_seed_says_which(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1: the same seed fails the same requests."""

    async def failed() -> list[str]:
        count, sender = Count(), sdk.sender(queue)
        await count.send(sender, "open")
        with faults.on("throttle", queue, probability=0.5, seed=11):
            for n in range(12):
                await count.send(sender, str(n))
        return count.failed

    first = await failed()
    assert first == await failed()
    assert 0 < len(first) < 12
