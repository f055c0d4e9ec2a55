"""Administrative calls that are refused: they change nothing, and nobody else notices them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.integration.durability.broker_thread import NAMESPACE, BrokerThread, payload
from tests.support.broken_stores import RECIPES, broken_store
from tests.support.wire_client import WireClient
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.broker import QueueDescription
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.namespace.purge import Purged
from twinbus.broker.options import BrokerOptions
from twinbus.broker.storage.interface import EntityRow, PutEntity, Store
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import ConfigurationError, EntityExists, StoreCorrupt, StoreFull, StoreRefused


def bodies(client: WireClient, address: str, count: int) -> list[str]:
    client.attach_receiver(address).grant(count + 1)
    events = [client.wait_for(DeliveryReceived) for _ in range(count)]
    return [Message.decode(event.payload).body.decode() for event in events]


def test_a_reset_keeps_an_entity_whose_target_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M15: it used to be refused half-way, with a store that no broker could open again."""
    # Given a forward whose target is gone, as earlier versions left it, a topic and messages
    path = tmp_path / "data" / f"namespace-{NAMESPACE}" / "store.db"
    path.parent.mkdir(parents=True)
    broken_store(path, "a forward to nowhere")
    with BrokerThread(tmp_path / "data", monkeypatch) as broker:
        # When the namespace is reset and used
        assert broker.run(lambda: broker.namespace.reset(keep_entities=True)) == 4
        with broker.client() as client:
            for name in ("orders", "news", "billing"):
                assert client.send(client.attach_sender(name), payload("new")) == Accepted()
        assert broker.health()[0] == 200

    # Then it opens again, with its entities and what was sent since
    with BrokerThread(tmp_path / "data", monkeypatch) as broker, broker.client() as client:
        billing = broker.namespace.queue("billing")
        assert billing is not None and billing.description.forward_to == "gone"
        assert billing.message_count == 1
        assert bodies(client, "orders", 1) == ["new"]
        assert bodies(client, "news/subscriptions/red", 1) == ["new"]


def test_a_change_that_the_store_refuses_fails_alone(broker: BrokerThread) -> None:
    """M15: a mistake of ours is no failed disk: the others and the messages are stored."""
    namespace = broker.namespace
    broker.store.refused_path = "bad"
    with broker.client() as client:
        link = client.attach_sender("orders")
        client._await_credit(link)

        # When good and bad changes and a message meet in one transaction
        broker.store.hold()
        first = broker.start(lambda: namespace.create_queue("first"))
        assert broker.store.is_waiting.wait(10)

        async def together() -> list[object]:
            wanted = (
                namespace.create_queue("good"),
                namespace.create_queue("bad"),
                namespace.create_topic("news"),
                namespace.create_subscription(SubscriptionDescription(path="news/subscriptions/a")),
            )
            return await asyncio.gather(*wanted, return_exceptions=True)

        calls = broker.start(together)
        number = link.send(payload("a"), b"a", settled=False)
        client.flush()
        broker.store.let_go()

        # Then the bad one alone is refused
        assert client.outcome(number) == Accepted()
        first.result(10)
        found = [type(each).__name__ for each in calls.result(10)]
        assert found == ["Queue", "StoreRefused", "Topic", "Subscription"]
        with pytest.raises(StoreRefused, match="breaks a rule"):
            broker.run(lambda: namespace.create_queue("bad"))
        broker.store.refused_path = None
        broker.run(lambda: namespace.create_queue("bad"))
        assert client.send(client.attach_sender("bad"), payload("b")) == Accepted()
    assert broker.health()[0] == 200


def test_what_was_acknowledged_before_its_queue_goes_was_on_disk(broker: BrokerThread) -> None:
    """M8, M15: a send and the deletion of its queue may meet in one transaction."""
    namespace = broker.namespace
    with broker.client() as client:
        link = client.attach_sender("orders")
        client._await_credit(link)
        broker.store.hold()
        first = broker.start(lambda: namespace.create_queue("first"))
        assert broker.store.is_waiting.wait(10)
        number = link.send(payload("a"), b"a", settled=False)
        client.flush()
        client.pump(0.1)
        deleted = broker.start(lambda: namespace.delete_queue("orders"))
        broker.store.let_go()
        for call in (first, deleted):
            call.result(10)
        assert client.outcome(number) == Accepted()
    assert namespace.queue("orders") is None
    assert broker.health()[0] == 200


def test_a_purge_that_a_full_disk_refuses_leaves_the_messages(broker: BrokerThread) -> None:
    """M15: nothing is gone that the caller was told is not."""
    namespace = broker.namespace
    with broker.client() as client:
        for body in "abc":
            assert client.send(client.attach_sender("orders"), payload(body)) == Accepted()
        broker.store.is_full = True
        with pytest.raises(StoreFull):
            broker.run(lambda: namespace.purge("orders"))
        broker.store.is_full = False
        queue = namespace.queue("orders")
        assert queue is not None and queue.message_count == 3
        assert bodies(client, "orders", 3) == ["a", "b", "c"]
    with broker.client() as client:
        assert client.send(client.attach_sender("orders"), payload("d")) == Accepted()
    assert broker.run(lambda: namespace.purge("orders")) == Purged(1, 3)


def test_what_cannot_all_be_provided_is_not_provided_at_all(tmp_path: Path) -> None:
    """M15: a namespace that is refused at its start leaves its store as it was."""

    async def paths(spec: NamespaceSpec) -> list[str]:
        async with Broker(BrokerOptions(data_directory=tmp_path / "data")) as broker:
            namespace = await broker.add_namespace(spec)
            return [queue.description.path for queue in namespace.access.catalogue.entities()]

    assert asyncio.run(paths(NamespaceSpec("demo", topics=("orders",)))) == ["orders"]
    wrong = NamespaceSpec("demo", queues=("first", "orders", "second"))
    with pytest.raises(ConfigurationError, match="'orders' is a topic, not a queue"):
        asyncio.run(paths(wrong))
    assert asyncio.run(paths(NamespaceSpec("demo"))) == ["orders"]


# -- the store --------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore()
    if request.param == "sqlite":
        opened = SqliteStore(tmp_path / "store.db")
    opened.open()
    yield opened
    opened.close()


def put(queue_id: int, path: str) -> PutEntity:
    return PutEntity(EntityRow(queue_id, path, "queue", "{}"))


def test_two_entities_of_one_path_are_refused_when_they_are_written(store: Store) -> None:
    """M15: they would be a store that cannot be opened; the store goes on."""
    store.commit([put(1, "a")])
    with pytest.raises(ValueError, match=r"'a' .* entity 1"):
        store.commit([put(2, "b"), put(3, "a")])
    with pytest.raises(ValueError, match=r"'b' .* entity 2"):
        store.commit([put(2, "b"), put(3, "b")])
    store.commit([put(2, "b"), put(1, "a")])
    store.close()
    assert [entity.path for entity in store.open().entities] == ["a", "b"]


OPENED = {"a forward to nowhere", "a circle of forwards"}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_store_that_does_not_add_up_is_refused_with_a_way_out(
    recipe: str, tmp_path: Path
) -> None:
    """M15: the sentence names what is wrong and the repair; a missing target is nothing wrong."""
    path = broken_store(tmp_path / "store.db", recipe)
    store = SqliteStore(path)
    if recipe in OPENED:
        Catalogue(store.open(), Random(1))
        store.close()
        return
    with pytest.raises(StoreCorrupt) as refused:
        Catalogue(store.open(), Random(1))
    assert "twinbus doctor" in str(refused.value)
    assert str(path) in str(refused.value)


# -- names ------------------------------------------------------------------------------------


def test_calls_that_come_together_see_each_other(broker: BrokerThread) -> None:
    """M15: each is planned on what those before it will have done."""
    namespace = broker.namespace
    news = TopicDescription(path="news")

    async def together() -> list[object]:
        wanted = (
            namespace.create_topic(news),
            namespace.create_topic(news),
            namespace.create_subscription(SubscriptionDescription(path="news/subscriptions/a")),
            namespace.create_queue(QueueDescription(path="s", forward_to="news")),
        )
        return await asyncio.gather(*wanted, return_exceptions=True)

    found = broker.run(together)
    assert [type(each).__name__ for each in found] == [
        "Topic",
        "EntityExists",
        "Subscription",
        "Queue",
    ]
    assert isinstance(found[1], EntityExists)
    assert broker.namespace.name == NAMESPACE
