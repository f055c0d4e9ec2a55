"""The audit log: what happened to each message."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusMessage

from tests.support.books import records_in
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, receive
from twinbus.aio import MessagingFactory
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.transit import OutgoingMessage


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


def lines_below(data: Path) -> list[dict[str, Any]]:
    files = sorted((data / "metering").rglob("audit-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def happened(lines: list[dict[str, Any]], entity: str) -> list[tuple[str, str | None]]:
    """Events with ids; with the fact that says more, where there is one."""
    more = (
        "reason",
        "destination",
        "from_entity",
        "from_sequence_number",
        "original_sequence_number",
        "publication",
        "copies",
    )
    told = []
    for line in lines:
        if line["entity"] == entity and line["event"] != "delivered":
            facts = [f"{name}={line[name]}" for name in more if name in line]
            told.append((" ".join([line["event"], *facts]), line.get("message_id")))
    return told


async def test_every_way_of_a_message_is_in_the_audit_log(tmp_path: Path) -> None:
    """C3: from the audit alone it can be told what became of each message."""
    with BrokerProcess(tmp_path / "data", arguments=("--audit",)) as broker:
        sdk = Sdk("aio", broker.connection_string)
        admin = broker.admin
        where = f"/namespaces/{broker.namespace}"
        target = broker.fresh_queue()
        source = broker.fresh_queue(forward_to=target)
        once = broker.fresh_queue(requires_duplicate_detection=True)
        later, doomed = broker.fresh_queue(), broker.fresh_queue()
        topic, lonely = broker.fresh_topic("one", "two"), broker.fresh_topic()
        away = "home/x-servicebus-transfer/0"
        broker.create_queue(away)

        def message(name: str, **more: Any) -> ServiceBusMessage:
            return ServiceBusMessage("body", message_id=name, **more)

        # Forwarded, and received and deleted there.
        await sdk.send(source, message("forwarded"))
        deleting = sdk.receiver(target, receive_mode="receiveanddelete")
        assert len(await receive(deleting, 1)) == 1
        # Dropped as a duplicate; passed on to two subscriptions, and to nobody.
        await sdk.send(once, message("twice"))
        await sdk.send(once, message("twice"))
        await sdk.send(topic, message("news"))
        await sdk.send(lonely, message("unheard"))
        # The same at the end of a way.
        again = broker.fresh_queue(forward_to=once)
        to_nobody = broker.fresh_queue(forward_to=lonely)
        await sdk.send(again, message("twice"))
        await sdk.send(to_nobody, message("unheard there"))
        # Scheduled: due, cancelled, purged.
        async with sdk.client().get_queue_sender(later) as sender:
            in_a_moment = datetime.now(UTC) + timedelta(seconds=0.3)
            in_a_day = datetime.now(UTC) + timedelta(days=1)
            await sender.schedule_messages(message("due"), in_a_moment)
            numbers = await sender.schedule_messages(message("cancelled"), in_a_day)
            await sender.cancel_scheduled_messages(numbers)
            await sender.schedule_messages(message("purged"), in_a_day)
        (due,) = await receive(sdk.receiver(later), 1)
        assert due.message_id == "due"
        await asyncio.to_thread(admin, "POST", f"{where}/queues/{later}/purge", {})
        # Deleted with its queue; and a backlog queue names the destination.
        await sdk.send(doomed, message("doomed"))
        await asyncio.to_thread(broker.delete_queue, doomed)
        detoured = message("detoured", application_properties={"x-ms-path": "orders"})
        await sdk.send(away, detoured)
        await sdk.close()
        await asyncio.to_thread(broker.stop)
        assert broker.data is not None
        lines = lines_below(broker.data)

    assert happened(lines, source) == [
        ("stored", "forwarded"),
        (f"forwarded reason={target}", None),
    ]
    assert happened(lines, target) == [
        (
            f"stored from_entity={source} from_sequence_number=1 original_sequence_number=1",
            "forwarded",
        ),
        ("completed", None),
    ]
    assert happened(lines, once)[:2] == [("stored", "twice"), ("duplicate", "twice")]
    assert happened(lines, topic) == [("published publication=1 copies=2", "news")]
    for name in ("one", "two"):
        assert happened(lines, f"{topic}/subscriptions/{name}") == [
            ("stored publication=1", "news")
        ]
    # A topic that nobody has subscribed to, at the end of a way.
    assert happened(lines, lonely) == [
        ("published publication=2 copies=0", "unheard"),
        (
            f"published from_entity={to_nobody} from_sequence_number=1 publication=3 copies=0",
            "unheard there",
        ),
    ]
    assert happened(lines, once)[-1] == (
        f"duplicate from_entity={again} from_sequence_number=1",
        "twice",
    )
    # What was locked is left to its holder by a purge.
    assert sorted(happened(lines, later), key=repr) == [
        ("cancelled", None),
        ("due", None),
        ("purged", None),
        ("scheduled", "cancelled"),
        ("scheduled", "due"),
        ("scheduled", "purged"),
        ("stored", "due"),
    ]
    assert happened(lines, doomed) == [("stored", "doomed"), ("deleted", None)]
    assert happened(lines, f"{doomed}/$deadletterqueue") == [("deleted", None)]
    assert happened(lines, away) == [("stored destination=orders", "detoured")]
    # All of it between a beginning and an end, without a gap.
    assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))
    assert len({line["run"] for line in lines}) == 1
    assert [line["event"] for line in lines if not line["entity"]] == ["opened", "closed"]
    assert (lines[0]["event"], lines[-1]["event"]) == ("opened", "closed")


async def test_an_id_that_is_no_text_is_the_same_in_everybodys_books(tmp_path: Path) -> None:
    """C1: whoever compares the broker's audit with a client's finds each message in both."""
    ids = [UUID(int=7), b"\x00\xff", 12, "text"]
    with BrokerProcess(tmp_path / "data", arguments=("--audit",)) as broker:
        queue = broker.fresh_queue()
        books = tmp_path / "books"
        async with MessagingFactory.from_connection_string(
            broker.connection_string, driver="amqp", metering=books, audit=True
        ) as factory:
            sender = factory.create_paired_sender(queue)
            for each in ids:
                message = Message(properties=Properties(message_id=each), body=b"x")
                await sender.send_outgoing([OutgoingMessage(message.encode())])
        await asyncio.to_thread(broker.stop)
        assert broker.data is not None
        stored = [event[2] for event in events_below(broker.data, queue)]
    sent = [line["message_id"] for line in records_in(books, "audit")]
    assert sent == stored == [str(UUID(int=7)), "00ff", "12", "text"]
