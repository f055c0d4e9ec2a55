"""Changes of a queue that the store refuses as wrong: no other queue notices, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.durability.broker_thread import BrokerThread
from tests.integration.durability.test_refused_changes import bodies, payload
from tests.support.wire_client import WireClient
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived
from twinbus.broker import QueueDescription
from twinbus.broker.engine.descriptions import SubscriptionDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.namespace import namespace as namespace_module
from twinbus.broker.storage.interface import DeleteChunks, Op, PutChunk, Tombstone

PAUSE_S = 0.05


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", PAUSE_S)
    with BrokerThread(tmp_path / "data", monkeypatch) as running:
        yield running
        assert running.namespace.failure is None


def with_body(text: str) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, PutChunk) and text.encode() in op.row.blob


def into(queue: Queue | None) -> Callable[[Op], bool]:
    """Messages into one queue."""
    assert queue is not None
    return lambda op: isinstance(op, PutChunk) and op.row.queue_id == queue.queue_id


def on_disk(broker: BrokerThread, queue: Queue | None) -> int:
    """How many messages of a queue a restart would find."""
    assert queue is not None
    chunks = broker.store.load_chunks(queue.queue_id, 0, 1 << 20, 100)
    gone = sum(last - first + 1 for chunk in chunks for first, last in chunk.gone)
    return sum(chunk.row.count for chunk in chunks) - gone


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def together(broker: BrokerThread, client: WireClient, sends: dict[str, str]) -> dict[str, object]:
    """Send a body to each queue in one transaction; what became of each."""
    links = {path: client.attach_sender(path) for path in sends}
    for link in links.values():
        client._await_credit(link)
    broker.store.hold()
    first = broker.start(lambda: broker.namespace.create_queue(f"first-{time.monotonic_ns()}"))
    assert broker.store.is_waiting.wait(10)
    numbers = {
        path: link.send(payload(sends[path]), b"t", settled=False) for path, link in links.items()
    }
    client.flush()
    client.pump(0.1)
    broker.store.let_go()
    first.result(10)
    return {path: client.outcome(number) for path, number in numbers.items()}


@pytest.mark.parametrize("bad", ["orders", "q3", "q6"])
def test_the_queue_that_is_to_blame_is_refused_alone(broker: BrokerThread, bad: str) -> None:
    """M8, M13: of seven in one transaction; what was acknowledged is stored, once."""
    paths = ["orders", *(f"q{number}" for number in range(1, 7))]
    for path in paths[1:]:
        broker.run(lambda path=path: broker.namespace.create_queue(path))  # type: ignore[misc]
    broker.store.refuses = with_body("never")
    with broker.client() as client:
        told = together(broker, client, {path: "never" if path == bad else path for path in paths})
        assert isinstance(told[bad], Rejected)
        assert {path: state for path, state in told.items() if path != bad} == {
            path: Accepted() for path in paths if path != bad
        }
        # Then the same queue goes on, and so do all others
        for path in paths:
            assert client.send(client.attach_sender(path), payload("later")) == Accepted()
        for path in paths:
            expected = ["later"] if path == bad else [path, "later"]
            assert bodies(client, path, len(expected)) == expected
    assert broker.health()[0] == 200


def test_a_flood_of_refused_sends_does_not_slow_the_others(broker: BrokerThread) -> None:
    """M13: once it is known, the queue is written apart from the others."""
    broker.run(lambda: broker.namespace.create_queue("victim"))
    broker.store.refuses = with_body("never")
    with broker.client() as flooding, broker.client() as client:
        bad, link = flooding.attach_sender("orders"), client.attach_sender("victim")
        assert isinstance(flooding.send(bad, payload("never")), Rejected)
        began = broker.store.commit_count
        for number in range(20):
            bad.send(payload("never"), b"%d" % number, settled=False)
            flooding.flush()
            assert client.send(link, payload(str(number))) == Accepted()
        # One commit for each send, and now and then one that is refused
        assert broker.store.commit_count - began <= 20 + 20
        assert bodies(client, "victim", 20) == [str(number) for number in range(20)]


def test_a_forwarded_message_is_in_one_of_its_queues(broker: BrokerThread) -> None:
    """M8: the two ends of a forward are refused together and stored together."""
    namespace = broker.namespace
    broker.run(lambda: namespace.create_queue("target"))
    broker.run(lambda: namespace.create_queue("other"))
    forwarding = QueueDescription(path="source", forward_to="target")
    broker.run(lambda: namespace.create_queue(forwarding))
    broker.store.refuses = into(namespace.queue("target"))
    with broker.client() as client:
        assert client.send(client.attach_sender("source"), payload("moved")) == Accepted()
        source, target = namespace.queue("source"), namespace.queue("target")
        for number in range(10):
            body = payload(str(number))
            assert client.send(client.attach_sender("other"), body) == Accepted()
            assert (on_disk(broker, source), on_disk(broker, target)) == (1, 0)
            time.sleep(PAUSE_S / 2)
        broker.store.refuses = lambda _op: False
        assert bodies(client, "target", 1) == ["moved"]
        eventually(lambda: (on_disk(broker, source), on_disk(broker, target)) == (0, 1))
        assert bodies(client, "other", 10) == [str(number) for number in range(10)]


def test_a_dead_letter_is_in_one_of_its_queues(broker: BrokerThread) -> None:
    """M8: a queue and its dead letters are refused together and stored together."""
    orders = broker.namespace.queue("orders")
    assert orders is not None
    with broker.client() as client:
        assert client.send(client.attach_sender("orders"), payload("bad")) == Accepted()
        client.attach_receiver("orders").grant(1)
        event = client.wait_for(DeliveryReceived)
        broker.store.refuses = into(orders.dead_letters)
        assert isinstance(client.settled(event.delivery_id, Rejected()), Rejected)
        for _ in range(5):
            assert (on_disk(broker, orders), on_disk(broker, orders.dead_letters)) == (1, 0)
            time.sleep(PAUSE_S)
        broker.store.refuses = lambda _op: False
        eventually(lambda: on_disk(broker, orders.dead_letters) == 1)
        assert on_disk(broker, orders) == 0


def test_nothing_else_rests_when_a_queue_is_refused(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: a full disk stops all for a while; a queue that is refused rests alone."""
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 3.0)
    broker.run(lambda: broker.namespace.create_queue("other"))
    broker.store.refuses = with_body("never")
    with broker.client() as client:
        assert isinstance(client.send(client.attach_sender("orders"), payload("never")), Rejected)
        began_s = time.monotonic()
        assert client.send(client.attach_sender("other"), payload("a")) == Accepted()
        assert time.monotonic() - began_s < 1.5
        assert client.send(client.attach_sender("orders"), payload("b")) == Accepted()
        assert time.monotonic() - began_s > 1.5


def test_a_topic_and_its_subscriptions_are_refused_together(broker: BrokerThread) -> None:
    """M8: a sender is told that all copies are on disk, or that none is."""
    namespace = broker.namespace
    broker.run(lambda: namespace.create_topic("news"))
    for name in ("red", "blue"):
        path = f"news/subscriptions/{name}"
        broker.run(
            lambda path=path: namespace.create_subscription(  # type: ignore[misc]
                SubscriptionDescription(path=path)
            )
        )
    blue = namespace.topic("news").subscriptions["blue"]  # type: ignore[union-attr]
    broker.store.refuses = into(blue)
    with broker.client() as client:
        told = together(broker, client, {"news": "a", "orders": "b"})
        assert isinstance(told["news"], Rejected)
        assert told["orders"] == Accepted()
        broker.store.refuses = lambda _op: False
        assert client.send(client.attach_sender("news"), payload("c")) == Accepted()
        for name in ("red", "blue"):
            assert bodies(client, f"news/subscriptions/{name}", 1) == ["c"]


def test_a_settlement_that_is_refused_is_tried_again(broker: BrokerThread) -> None:
    """M8: what the broker has begun stays begun, and others do not wait for it."""
    namespace = broker.namespace
    broker.run(lambda: namespace.create_queue("other"))
    orders = namespace.queue("orders")
    assert orders is not None
    with broker.client() as client:
        for body in "ab":
            assert client.send(client.attach_sender("orders"), payload(body)) == Accepted()
        client.attach_receiver("orders").grant(1)
        event = client.wait_for(DeliveryReceived)
        broker.store.refuses = lambda op: isinstance(op, Tombstone | DeleteChunks)
        assert isinstance(client.settled(event.delivery_id, Accepted()), Rejected)
        for number in range(10):
            body = payload(str(number))
            assert client.send(client.attach_sender("other"), body) == Accepted()
        broker.store.refuses = lambda _op: False
        eventually(lambda: orders.message_count == 1 and orders.in_flight is None)
        assert client.send(client.attach_sender("orders"), payload("c")) == Accepted()
        assert bodies(client, "orders", 2) == ["b", "c"]
