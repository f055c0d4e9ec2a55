"""A client's own books, from the options of a factory to the lines on disk."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import twinbus
from tests.support.access import connection_string_with
from tests.support.books import Total, by_broker, by_client, in_numbers, records_in
from tests.support.pairing.pairs import OpenPair, eventually
from tests.support.parcels import parcel
from twinbus.aio import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.broker.access.rules import Claim
from twinbus.drivers.metered import MeteredDriver
from twinbus.errors import ConfigurationError, FactoryClosed
from twinbus.pairing.client.environment import NamespaceReference
from twinbus.pairing.client.factory_options import DriverName, FactoryOptions
from twinbus.pairing.client.namespace_connection import open_namespace
from twinbus.testing import NamespaceFixture, NamespacePairFixture

COUNTED_ALIKE = ("send", "receive", "ping", "settle", "peek", "management")


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_the_books_of_an_outage_are_those_of_the_brokers(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, tmp_path: Path, driver: DriverName
) -> None:
    """C1, C2: on both namespaces, although the primary's factory alone was told, and the syphon
    of the process included; every message is audited once, wherever it went, and counted each
    time it was charged."""
    servicebus_pair.primary.queue("orders")
    pair = await open_pair(driver, books={"metering": tmp_path, "audit": True}, enable_syphon=True)
    client = pair.primary.create_queue_client("orders")
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    later = BrokeredMessage(b"x", message_id="later", scheduled_enqueue_time_utc=in_an_hour)
    await client.send(BrokeredMessage(b"x", message_id="before"))
    await client.schedule_message(later)
    with servicebus_pair.outage("refused"):
        await client.send(BrokeredMessage(b"x" * 70_000, message_id="away"))
        await client.send_batch([BrokeredMessage(b"x", message_id=f"b{n}") for n in range(2)])
    await pair.until_told("restored")
    for _ in range(4):
        message = await client.receive(max_wait_time=20)
        assert message is not None
        await message.complete()
    await pair.primary.close()
    await pair.secondary.close()

    home, away = servicebus_pair.primary, servicebus_pair.secondary
    for bus in (home, away):
        told = in_numbers(by_broker(bus), *COUNTED_ALIKE)
        assert in_numbers(by_client(tmp_path / bus.name), *COUNTED_ALIKE) == told
    counted = in_numbers(by_client(tmp_path))
    backlog = [each for (path, what), each in counted.items() if "/" in path and what == "send"]
    assert [sum(column) for column in zip(*backlog, strict=True)] == [3, 4]
    assert counted["orders", "send"] == (5, 6)
    assert counted["orders", "ping"][0] >= 1

    audit = records_in(tmp_path, "audit")
    assert Counter(line["message_id"] for line in audit) == Counter(
        ["before", "later", "away", "b0", "b1"]
    )
    assert {(line["namespace"], line["entity"]) for line in audit} == {(home.name, "orders")}
    went = {line["message_id"]: line["via"] for line in audit}
    assert went["before"] == went["later"] == ""
    prefix = f"{home.name}/x-servicebus-transfer/"
    assert all(went[each].startswith(prefix) for each in ("away", "b0", "b1"))
    for line in records_in(tmp_path, "operations"):
        assert line["source"] == "client"
    last = [line["operation"] for line in records_in(tmp_path, "operations")]
    assert last.count("opened") == last.count("closed") == 2


@pytest.mark.parametrize("audit", [False, True])
async def test_a_secondary_with_books_of_its_own_keeps_them(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, tmp_path: Path, audit: bool
) -> None:
    """C1: in their place; and what the primary audits they do, too."""
    servicebus_pair.primary.queue("orders")
    here, there = tmp_path / "here", tmp_path / "there"
    pair = await open_pair(books={"metering": here, "audit": audit}, books_away={"metering": there})
    pair.primary.force_failover("orders")
    sender = pair.primary.create_message_sender("orders")
    await sender.send(BrokeredMessage(b"x", message_id="away"))
    await pair.primary.close()
    await pair.secondary.close()
    # The end of the pair looks at what stays in the backlog.
    assert {key[1] for key in by_client(there)} - {"peek", "management"} == {"send"}
    assert [line["message_id"] for line in records_in(there, "audit")] == ["away"] * audit
    assert records_in(here, "audit") == []


async def test_a_sender_that_the_secondary_had_before_is_counted_too(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """C1: books begin with the pair, for senders that were made and used before it."""
    servicebus_pair.secondary.queue("notes")
    senders = []

    async def used(secondary: MessagingFactory) -> None:
        senders.extend(secondary.create_message_sender("notes") for _ in range(2))
        await senders[0].send(BrokeredMessage(b"x", message_id="before"))

    pair = await open_pair(books={"metering": tmp_path, "audit": True}, before=used)
    for number, sender in enumerate(senders):
        await sender.send(BrokeredMessage(b"x", message_id=f"after-{number}"))
    await pair.primary.close()
    await pair.secondary.close()
    assert in_numbers(by_client(tmp_path))["notes", "send"] == (2, 2)
    audit = records_in(tmp_path, "audit")
    assert [line["message_id"] for line in audit] == ["after-0", "after-1"]


async def test_a_secondary_may_have_books_alone(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """C1: who wants to know of the backlog only is not told of the primary."""
    pair = await open_pair(books_away={"metering": tmp_path})
    assert pair.primary.meter is None and pair.secondary.meter is not None


@pytest.mark.parametrize("has_own", [False, True])
async def test_a_pairing_that_fails_takes_books_back(
    servicebus_pair: NamespacePairFixture, tmp_path: Path, has_own: bool
) -> None:
    """P1: both factories are as they were; the next attempt hands them on."""
    home, away = servicebus_pair.primary, servicebus_pair.secondary
    own: FactoryOptions = {"metering": tmp_path} if has_own else {}
    async with (
        MessagingFactory.from_connection_string(
            home.connection_string, driver="amqp", metering=tmp_path, audit=True
        ) as primary,
        MessagingFactory.from_connection_string(
            away.connection_string, driver="amqp", **own
        ) as secondary,
    ):
        kept = secondary.meter
        options = SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(away.connection_string),
            secondary,
            journal=tmp_path / "missing" / "journal",
        )
        with pytest.raises(ConfigurationError, match="journal"):
            await primary.pair_namespace(options)
        assert secondary.meter is kept and isinstance(secondary.driver, MeteredDriver) is has_own
        assert kept is None or not kept.has_audit
        (tmp_path / "missing").mkdir()
        await primary.pair_namespace(options)
        assert secondary.meter is not None and secondary.meter.has_audit
        assert isinstance(secondary.driver, MeteredDriver)


async def test_without_the_wish_nothing_is_in_the_way(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """C1: off by default, and then a send is what it was."""
    async with MessagingFactory.from_connection_string(
        servicebus.connection_string, driver="amqp"
    ) as factory:
        assert factory.meter is None
        assert not isinstance(factory.driver, MeteredDriver)
        assert not isinstance(factory.mover_driver(), MeteredDriver)


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"metering": "/dev/null/books"}, "metering: '/dev/null/books'"),
        ({"audit": True}, "metering"),
        ({"metering": ""}, "metering: ''"),
        ({"metering": "a\0b"}, "metering: 'a"),
        ({"metering": 123}, "metering: 123"),
        ({"metering": b"books"}, "metering: b'books'"),
        ({"namespace_name": "a/b"}, "'a/b'"),
    ],
)
async def test_a_wrong_wish_is_told_at_once(
    servicebus: NamespaceFixture, chosen: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        MessagingFactory.from_connection_string(
            servicebus.connection_string, driver="amqp", **chosen
        )


async def test_a_relative_directory_is_meant_as_it_is_now(
    servicebus: NamespaceFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with MessagingFactory.from_connection_string(
        servicebus.connection_string, driver="amqp", metering="books"
    ) as factory:
        assert factory.meter is not None
        assert factory.meter.directory == tmp_path / "books"


@pytest.mark.parametrize("driver", ["amqp", "servicebus"])
async def test_a_closed_factory_says_so_also_with_books(
    servicebus: NamespaceFixture, tmp_path: Path, driver: DriverName
) -> None:
    """Whatever its driver would say: rule 3 of the factory."""
    factory = MessagingFactory.from_connection_string(
        servicebus.connection_string, driver=driver, metering=tmp_path
    )
    await factory.close()
    with pytest.raises(FactoryClosed):
        factory.create_message_sender("orders")


@pytest.mark.parametrize("said_to", ["the pairing", "the factory"])
async def test_a_namespace_has_the_name_of_its_backlog_queues(
    servicebus_pair: NamespacePairFixture, tmp_path: Path, said_to: str
) -> None:
    """C1: whoever was told it; what went round and what did not stand in one place."""
    servicebus_pair.primary.queue("orders")
    name: dict[str, Any] = {"namespace_name": "shop"}
    books: dict[str, Any] = {"driver": "amqp", "metering": tmp_path, "audit": True}
    primary = MessagingFactory.from_connection_string(
        # This rule may not ask for the name.
        connection_string_with(servicebus_pair.primary, Claim.SEND),
        **books,
        **(name if said_to == "the factory" else {}),
    )
    secondary = MessagingFactory.from_connection_string(
        servicebus_pair.secondary.connection_string, **books
    )
    manager = NamespaceManager.from_connection_string(servicebus_pair.secondary.connection_string)
    await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=1,
            **(name if said_to == "the pairing" else {}),
        )
    )
    sender = primary.create_message_sender("orders")
    await sender.send(BrokeredMessage(b"x", message_id="home"))
    primary.force_failover("orders")
    await sender.send(BrokeredMessage(b"x", message_id="away"))
    await primary.close()
    await secondary.close()
    audit = records_in(tmp_path / "shop", "audit")
    assert {line["message_id"] for line in audit} == {"home", "away"}
    assert {path.name for path in tmp_path.iterdir()} == {"shop", servicebus_pair.secondary.name}


async def test_a_task_of_a_syphon_works_on_without_its_books(
    servicebus: NamespaceFixture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C1: its machine has no such directory; messages come home all the same."""
    servicebus.queue("orders")
    (tmp_path / "books").write_text("a file stands in the way")
    reference = NamespaceReference("here", connection_string=servicebus.connection_string)
    async with open_namespace(reference, metering=tmp_path / "books") as namespace:
        sender = namespace.driver.sender("orders")
        await sender.send([parcel(b"moved")], timeout_s=10)
    assert "Log operations-" in caplog.text
    assert by_broker(servicebus)["orders", "send"].messages == 1


SENDER = """
import asyncio, sys
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.metering import operations_log as operations

operations.INTERVAL_MS = 100

async def main(text, directory, name):
    factory = MessagingFactory.from_connection_string(
        text, driver="amqp", metering=directory, audit=True
    )
    sender = factory.create_message_sender("orders")
    for number in range(50):
        await sender.send(BrokeredMessage(b"x", message_id=f"{name}-{number}"))
    print("sent", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await factory.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_share_a_directory_and_one_of_them_is_killed(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """C1: kill -9 leaves no ``closed``, and costs nothing of an interval that has ended."""
    servicebus.queue("orders")
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", SENDER, servicebus.connection_string, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "other")
    }
    try:
        for process in processes.values():
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "sent\n"
        await eventually(lambda: len(records_in(tmp_path, "audit")) == 100, "the audits")
        await eventually(lambda: _sent_in(tmp_path) == 100, "the intervals")
        processes["other"].send_signal(signal.SIGKILL)
        assert processes["one"].stdin is not None
        processes["one"].stdin.write("\n")
        processes["one"].stdin.flush()
        assert await asyncio.to_thread(processes["one"].wait, 20) == 0
    finally:
        for process in processes.values():
            process.kill()
            await asyncio.to_thread(process.communicate)

    lines = records_in(tmp_path / servicebus.name, "operations")
    runs = {line["run"] for line in lines}
    closed = {line["run"] for line in lines if line["operation"] == "closed"}
    assert len(runs) == 2
    assert len(closed) == 1
    for run in runs:
        opened = next(line for line in lines if line["run"] == run)
        assert (opened["operation"], opened["unwritten_units_max"]) == ("opened", 1_000)
        sent = [line for line in lines if (line["run"], line["operation"]) == (run, "send")]
        assert sum(line["messages"] for line in sent) == 50
    names = Counter(line["message_id"].split("-")[0] for line in records_in(tmp_path, "audit"))
    assert names == {"one": 50, "other": 50}


def _sent_in(directory: Path) -> int:
    return by_client(directory).get(("orders", "send"), Total(0, 0, 0)).messages


def test_a_program_without_an_event_loop_keeps_books_too(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """C1: the same options, and the same lines when it has closed its factory."""
    servicebus.queue("orders")
    with twinbus.MessagingFactory.from_connection_string(
        servicebus.connection_string, driver="amqp", metering=str(tmp_path), audit=True
    ) as factory:
        factory.create_queue_client("orders").send(BrokeredMessage(b"x", message_id="a"))
    (audit,) = records_in(tmp_path / servicebus.name, "audit")
    assert audit["message_id"] == "a"
    lines = [line["operation"] for line in records_in(tmp_path / servicebus.name, "operations")]
    assert lines == ["opened", "send", "closed"]


async def test_old_files_go_where_that_was_asked_for(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """M13: of both namespaces, because the secondary's factory follows the primary's."""
    servicebus_pair.primary.queue("orders")
    run = "0123456789abcdef"
    old = []
    for bus in (servicebus_pair.primary, servicebus_pair.secondary):
        (tmp_path / bus.name).mkdir()
        for kind in ("operations", "audit"):
            old.append(tmp_path / bus.name / f"{kind}-{run}-2020-01-01.jsonl")
            old[-1].write_text("{}\n")
    pair = await open_pair("amqp", books={"metering": tmp_path, "audit": True, "keep_days": 30})
    client = pair.primary.create_queue_client("orders")
    await client.send(BrokeredMessage(b"x", message_id="before"))
    with servicebus_pair.outage("refused"):
        await client.send(BrokeredMessage(b"x", message_id="away"))
    await pair.until_told("restored")
    await pair.primary.close()
    await pair.secondary.close()

    # Nothing is audited under the secondary's own name: that log was never opened.
    assert [each.name for each in old if each.exists()] == [f"audit-{run}-2020-01-01.jsonl"]


@pytest.mark.parametrize("days", [0, -3, "7"])
def test_days_that_are_none_are_refused(tmp_path: Path, days: Any) -> None:
    """M13: when the factory is made."""
    text = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=a2V5"
    with pytest.raises(ConfigurationError, match="keep_days"):
        MessagingFactory.from_connection_string(text, metering=tmp_path, keep_days=days)
