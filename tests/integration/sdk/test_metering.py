"""What the broker counts while the stock client works (rule C1)."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.integration.sdk.test_pings import ping
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, receive


async def counted(broker: BrokerProcess, entity: str, operation: str) -> dict[str, int]:
    """The tally of one operation, as the broker itself tells it."""
    told = await asyncio.to_thread(
        broker.admin, "GET", f"/namespaces/{broker.namespace}/operations"
    )
    totals = told["totals"]
    found = [each for each in totals if (each["entity"], each["operation"]) == (entity, operation)]
    return {key: value for each in found for key, value in each.items() if isinstance(value, int)}


async def test_sends_and_pings_are_counted_by_message_unit_and_byte(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """C1: sends in 64 KB steps with their bytes; a ping is metered as what it is (M7)."""
    batch = [ServiceBusMessage("small") for _ in range(10)]
    await sdk.send(queue, ServiceBusMessage("one"), batch, ServiceBusMessage(b"x" * 100_000))
    await sdk.send(queue, ping(), ping())

    sent = await counted(broker, queue, "send")
    assert (sent["calls"], sent["messages"], sent["units"]) == (3, 12, 13)
    assert 100_000 < sent["bytes_in"] < 110_000
    pinged = await counted(broker, queue, "ping")
    assert (pinged["messages"], pinged["units"]) == (2, 2)


async def test_receives_are_counted_and_so_are_those_that_find_nothing(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """C1: an empty receive is one credit grant that ends unused."""
    await sdk.send(queue, [ServiceBusMessage(b"x" * 70_000), ServiceBusMessage("b")])
    receiver = sdk.receiver(queue)
    for message in await receive(receiver, 2):
        await receiver.complete_message(message)
    received = await counted(broker, queue, "receive")
    assert (received["messages"], received["units"]) == (2, 3)
    assert received["bytes_out"] > 70_000
    assert (await counted(broker, queue, "settle"))["messages"] == 2
    before = (await counted(broker, queue, "empty-receive")).get("units", 0)

    for _ in range(3):
        assert await receiver.receive_messages(1, max_wait_time=0.3) == []
    await receiver.close()

    empty = await counted(broker, queue, "empty-receive")
    assert empty["units"] - before == 3
    assert (await counted(broker, queue, "receive"))["messages"] == 2


async def test_peeks_and_management_requests_are_counted(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """C1: management is metered."""
    sender = sdk.sender(queue)
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    message = ServiceBusMessage("later")
    seqs = await sender.schedule_messages(message, in_an_hour, timeout=SEND_TIMEOUT_S)
    await sender.cancel_scheduled_messages(seqs, timeout=SEND_TIMEOUT_S)
    assert await sdk.receiver(queue).peek_messages(5) == []

    assert (await counted(broker, queue, "send"))["messages"] == 1
    assert (await counted(broker, queue, "management"))["units"] == 1
    assert (await counted(broker, queue, "peek"))["units"] == 1


def lines_below(data: Path) -> list[dict[str, Any]]:
    files = sorted((data / "metering").rglob("operations-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


async def test_the_log_holds_what_the_broker_counted(tmp_path: Path) -> None:
    """C1: a clean stop writes everything down; a second run goes on in the same file."""
    with BrokerProcess(tmp_path / "data") as broker:
        queue = broker.fresh_queue()
        for _run in range(2):
            sdk = Sdk("aio", broker.connection_string)
            await sdk.send(queue, [ServiceBusMessage("a"), ServiceBusMessage("b")])
            await sdk.close()
            assert await asyncio.to_thread(broker.stop) == 0
            broker.start()
        assert broker.data is not None
        lines = lines_below(broker.data)

    sends = [each for each in lines if (each["entity"], each["operation"]) == (queue, "send")]
    assert sum(each["messages"] for each in sends) == 4
    assert len({each["run"] for each in sends}) == 2
    assert len({(each["run"], each["number"]) for each in lines}) == len(lines)


AMOUNTS = ("calls", "messages", "units", "bytes_in", "bytes_out")


def summed(lines: list[dict[str, Any]]) -> dict[tuple[str, str], list[int]]:
    """The amounts of lines or totals, by entity and operation, without what is nothing."""
    sums: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        amounts = sums.setdefault((line["entity"], line["operation"]), [0] * len(AMOUNTS))
        for place, name in enumerate(AMOUNTS):
            amounts[place] += line[name]
    return {key: amounts for key, amounts in sums.items() if any(amounts)}


async def test_the_totals_of_a_run_are_the_sum_of_its_lines_once_it_is_closed(
    tmp_path: Path,
) -> None:
    """C1: SIGTERM closes it; before, the difference is unwritten. A kill leaves no ``closed``."""
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.data is not None
        queue = broker.fresh_queue()
        operations = f"/namespaces/{broker.namespace}/operations"
        sdk = Sdk("aio", broker.connection_string)
        await sdk.send(queue, [ServiceBusMessage("a"), ServiceBusMessage("b" * 70_000)])
        await sdk.close()
        told = await asyncio.to_thread(broker.admin, "GET", operations)
        assert await asyncio.to_thread(broker._end, signal.SIGTERM) == 0
        lines = lines_below(broker.data)
        assert {line["run"] for line in lines} == {told["run"]}
        assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))
        assert (lines[0]["operation"], lines[-1]["operation"]) == ("opened", "closed")
        assert summed(lines) == summed(told["totals"])

        broker.start()
        sdk = Sdk("aio", broker.connection_string)
        await sdk.send(queue, ServiceBusMessage("c"))
        await sdk.close()
        told = await asyncio.to_thread(broker.admin, "GET", operations)
        await asyncio.to_thread(broker.kill)
        killed = [line for line in lines_below(broker.data) if line["run"] == told["run"]]
        assert "closed" not in [line["operation"] for line in killed]
        written = sum(line["units"] for line in killed)
        missing = sum(each["units"] for each in told["totals"]) - written
        # A second may have ended between the question and the kill.
        assert missing in (0, told["unwritten_units"])
        bounds = [each["unwritten_units_max"] for each in killed if "unwritten_units_max" in each]
        assert missing <= bounds[-1] == 1_000
