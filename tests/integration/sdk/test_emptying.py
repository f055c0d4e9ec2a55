"""Purge and reset: over Python's own hands, HTTP and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, receive, receive_one
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec, QueueDescription
from twinbus.broker.namespace import purge as purging_module

COUNT = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("purge") / "data") as running:
        yield running


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Sdk]:
    opened = Sdk("aio", broker.connection_string)
    yield opened
    await opened.close()


def some(count: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(number)) for number in range(count)]


def purge(broker: BrokerProcess, queue: str, **flags: bool) -> dict[str, int]:
    path = f"/namespaces/{broker.namespace}/queues/{queue}/purge"
    purged: dict[str, int] = broker.admin("POST", path, flags)
    return purged


async def filled(broker: BrokerProcess, sdk: Sdk) -> str:
    """A queue with 300 active, 1 deferred, 1 scheduled and 1 dead-lettered message."""
    queue = broker.fresh_queue()
    await sdk.send(queue, some(COUNT + 2))
    receiver = sdk.receiver(queue)
    deferred, dead = await receive(receiver, 2)
    await receiver.defer_message(deferred)
    await receiver.dead_letter_message(dead)
    later = datetime.now(UTC) + timedelta(hours=1)
    await sdk.sender(queue).schedule_messages(ServiceBusMessage("later"), later)
    return queue


async def test_a_purge_removes_everything_but_the_dead_letters(
    broker: BrokerProcess, sdk: Sdk
) -> None:
    """M5: and says how much it was; the queue works as before."""
    queue = await filled(broker, sdk)
    assert purge(broker, queue, dry_run=True) == {"removed_count": COUNT + 2, "locked_count": 0}
    assert purge(broker, queue) == {"removed_count": COUNT + 2, "locked_count": 0}

    counts = broker.counts(queue)
    assert counts.pop("dead_letter_message_count") == 1
    assert counts.pop("size_in_bytes") > 0
    assert set(counts.values()) == {0}
    await sdk.send(queue, ServiceBusMessage("after"))
    assert bodies(await receive(sdk.receiver(queue), 1)) == ["after"]
    assert purge(broker, queue, dead_letters=True)["removed_count"] == 1
    assert broker.counts(queue)["dead_letter_message_count"] == 0


async def test_a_purge_leaves_what_it_is_told_to_leave(broker: BrokerProcess, sdk: Sdk) -> None:
    """M5: deferred and scheduled messages."""
    queue = await filled(broker, sdk)
    purged = purge(broker, queue, deferred=False, scheduled=False)
    assert purged["removed_count"] == COUNT

    counts = broker.counts(queue)
    assert counts["active_message_count"] == 0
    assert counts["deferred_message_count"] == counts["scheduled_message_count"] == 1


async def test_a_message_that_somebody_holds_is_left_to_its_holder(
    broker: BrokerProcess, sdk: Sdk
) -> None:
    """M2: a lock is a promise, also to whoever empties the queue."""
    queue = broker.fresh_queue()
    await sdk.send(queue, some(COUNT))
    receiver = sdk.receiver(queue)
    held = await receive_one(receiver)
    assert purge(broker, queue) == {"removed_count": COUNT - 1, "locked_count": 1}

    await receiver.abandon_message(held)
    assert bodies(await receive(receiver, 1)) == ["0"]


async def test_a_queue_with_sessions_is_emptied_too(broker: BrokerProcess, sdk: Sdk) -> None:
    """M5: all sessions that nobody holds; what a holder has in hand stays."""
    queue = broker.fresh_queue(requires_session=True)
    await sdk.send(
        queue, [ServiceBusMessage(str(n), session_id=f"session-{n % 3}") for n in range(30)]
    )
    receiver = sdk.receiver(queue, session_id="session-0")
    held = await receive_one(receiver)
    assert purge(broker, queue) == {"removed_count": 29, "locked_count": 1}

    await receiver.complete_message(held)
    assert broker.counts(queue)["active_message_count"] == 0
    await sdk.send(queue, ServiceBusMessage("new", session_id="session-1"))
    following = sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    assert bodies(await receive(following, 1)) == ["new"]


async def test_a_subscription_is_emptied_and_its_neighbour_is_not(
    broker: BrokerProcess, sdk: Sdk
) -> None:
    """M5: under its own path."""
    topic = broker.fresh_topic("a", "b")
    await sdk.publish(topic, some(20))

    assert purge(broker, f"{topic}/subscriptions/a") == {"removed_count": 20, "locked_count": 0}
    assert purge(broker, f"{topic}/subscriptions/b", dry_run=True)["removed_count"] == 20


async def test_a_purge_survives_a_kill(broker: BrokerProcess, sdk: Sdk) -> None:
    """M8: what was removed does not come back."""
    queue = broker.fresh_queue()
    await sdk.send(queue, some(COUNT))
    assert purge(broker, queue)["removed_count"] == COUNT
    await sdk.close()
    broker.kill()
    broker.restart()
    assert broker.counts(queue)["active_message_count"] == 0


async def test_sends_go_on_while_a_large_queue_is_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M5: in slices, with progress; what comes meanwhile stays."""
    monkeypatch.setattr(purging_module, "SLICE_CHUNKS", 1)
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        sdk = Sdk("aio", namespace.connection_string)
        for _ in range(5):
            await sdk.send("orders", some(10))
        told: list[int] = []
        purging = asyncio.create_task(namespace.purge("orders", progress=told.append))
        while not told:
            await asyncio.sleep(0)
        await sdk.send("orders", ServiceBusMessage("meanwhile"))

        assert (await purging).removed_count == 50
        assert told == sorted(told) and len(told) > 1 and told[-1] == 50
        assert bodies(await receive(sdk.receiver("orders"), 1)) == ["meanwhile"]
        await sdk.close()


@pytest.mark.parametrize("keep_entities", [True, False])
async def test_a_reset_leaves_a_namespace_like_a_new_one(keep_entities: bool) -> None:
    """M5: without messages, and without entities unless they are kept."""
    async with Broker(BrokerOptions()) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo"))
        await namespace.create_queue(QueueDescription(path="Orders", max_delivery_count=3))
        await namespace.create_queue("invoices")
        sdk = Sdk("aio", namespace.connection_string)
        await sdk.send("orders", some(10))
        receiver = sdk.receiver("orders")
        held = await receive_one(receiver)
        old = namespace.queue("orders")
        assert old is not None

        assert await namespace.reset(keep_entities=keep_entities) == 2

        # Links and locks belong to what is gone
        assert old.is_deleted
        with pytest.raises(ServiceBusError):
            await receiver.complete_message(held)
        if keep_entities:
            new = namespace.queue("orders")
            assert new is not None and new.queue_id != old.queue_id
            assert new.description.max_delivery_count == 3
            assert new.description.display_path == "Orders"
            assert new.message_count == 0
            await sdk.send("orders", ServiceBusMessage("new"))
            assert bodies(await receive(sdk.receiver("orders"), 1)) == ["new"]
        else:
            assert namespace.queues() == []
            await namespace.create_queue("orders")
        await sdk.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("queues/missing/purge", {}, 404),
        ("queues/a//b/purge", {}, 400),
        ("queues/missing/purge", {"everything": True}, 400),
        ("queues/missing/purge", {"deferred": "yes"}, 400),
        ("reset", {"keep_entities": 1}, 400),
        ("reset", {"really": True}, 400),
    ],
)
def test_a_wrong_request_gets_a_sentence(
    broker: BrokerProcess, path: str, body: dict[str, Any], status: int
) -> None:
    """M5: and removes nothing."""
    token = broker.token(port=broker.admin_port)
    answered, answer = broker.http("POST", f"/namespaces/demo/{path}", body, token=token)
    assert answered == status and answer["error"]


def test_without_manage_nothing_is_removed(broker: BrokerProcess) -> None:
    """M6: neither by a stranger nor by a rule with less."""
    rule = broker.admin("PUT", "/namespaces/demo/rules/reader", {"claims": ["listen", "send"]})
    weak = broker.token(port=broker.admin_port, rule=("reader", rule["primary_key"]))
    for token, status in ((None, 401), (weak, 403)):
        assert broker.http("POST", "/namespaces/demo/reset", {}, token=token)[0] == status


# -- the command line -------------------------------------------------------------------------


def run(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "twinbus", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "TWINBUS_ADMIN_URL": f"http://localhost:{broker.admin_port}",
            "TWINBUS_CONNECTION_STRING": broker.connection_string,
        },
    )


async def test_the_command_resets_a_namespace(broker: BrokerProcess, sdk: Sdk) -> None:
    """M5: the last of these tests, because nothing is left after it."""
    queue = broker.fresh_queue()
    await sdk.send(queue, some(3))
    topic = broker.fresh_topic("all")
    shown = json.loads(run(broker, "reset", "--dry-run", "--output", "json").stdout)
    assert queue in shown["queues"] and topic in shown["topics"]
    assert shown["subscription_count"] >= 1
    assert run(broker, "reset").returncode == 2
    assert "emptied" in run(broker, "reset", "--keep-entities", "--yes").stdout
    assert broker.counts(queue)["active_message_count"] == 0
    assert "removed" in run(broker, "reset", "--yes").stdout
    assert broker.admin("GET", "/namespaces/demo/queues") == []
