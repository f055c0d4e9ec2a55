"""The audit log: what happened to each message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.sdk.clients import Sdk, receive
from tests.support.broker_process import BrokerProcess


def events_below(data: Path, entity: str) -> list[tuple[Any, ...]]:
    files = sorted((data / "metering").rglob("audit-*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [
        (line["event"], line["sequence_number"], line.get("message_id"), line.get("reason"))
        for line in lines
        if line["entity"] == entity
    ]


async def test_an_audit_log_tells_the_life_of_each_message(tmp_path: Path) -> None:
    """C1: opt-in, with message ids; a kill -9 loses none of what was settled before."""
    with BrokerProcess(tmp_path / "data", arguments=("--audit",)) as broker:
        queue = broker.fresh_queue(max_delivery_count=1)
        sdk = Sdk("aio", broker.connection_string)
        await sdk.send(queue, [ServiceBusMessage("secret", message_id=f"m{n}") for n in (1, 2)])
        receiver = sdk.receiver(queue)
        first, second = await receive(receiver, 2)
        await receiver.complete_message(first)
        await receiver.abandon_message(second)
        (dead,) = await receive(sdk.dead_letters(queue), 1)
        assert dead.message_id == "m2"
        other = broker.fresh_queue()
        await sdk.send(other, ServiceBusMessage("x"))
        await sdk.close()
        path = f"/namespaces/{broker.namespace}/queues/{other}/purge"
        await asyncio.to_thread(broker.admin, "POST", path, {})
        await asyncio.to_thread(broker.kill)
        assert broker.data is not None
        events = events_below(broker.data, queue)
        dead_events = events_below(broker.data, f"{queue}/$deadletterqueue")
        others = [event for event, *_rest in events_below(broker.data, other)]
        logs = "".join(path.read_text() for path in broker.data.rglob("*.jsonl"))

    assert events == [
        ("stored", 1, "m1", None),
        ("stored", 2, "m2", None),
        ("delivered", 1, "m1", None),
        ("delivered", 2, "m2", None),
        ("completed", 1, None, None),
        ("abandoned", 2, None, None),
        ("dead-lettered", 2, None, "MaxDeliveryCountExceeded"),
    ]
    assert dead_events == [("stored", 1, "m2", None), ("delivered", 1, "m2", None)]
    assert others == ["stored", "purged"]
    assert "secret" not in logs


async def test_without_the_wish_there_is_no_audit_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        sdk = Sdk("aio", broker.connection_string)
        await sdk.send(broker.fresh_queue(), ServiceBusMessage("a"))
        await sdk.close()
        await asyncio.to_thread(broker.stop)
        assert broker.data is not None
        assert not list(broker.data.rglob("audit-*"))
