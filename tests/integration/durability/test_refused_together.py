"""What meets in a transaction that a full disk refuses: entities, moves, duplicates, a reset.

Each story holds the disk, lets two things begin, and fills the disk. Afterwards there is room
again, and a restart shows what is really there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.integration.durability.broker_thread import BrokerThread, payload
from tests.support.wire_client import WireClient
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.broker import EntityStatus, QueueDescription
from twinbus.broker.engine.descriptions import SubscriptionDescription
from twinbus.broker.engine.filters import RuleDescription, SqlFilter
from twinbus.broker.engine.queue import Queue
from twinbus.broker.namespace import forwarder as forwarding_module
from twinbus.errors import ConfigurationError, StoreFull

NEWS = SubscriptionDescription(path="news/subscriptions/a")
RED = RuleDescription("red", SqlFilter("colour = 'red'"))


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def bodies(client: WireClient, address: str, count: int) -> list[str]:
    """The next messages, and a look whether there are more."""
    link = client.attach_receiver(address)
    link.grant(count + 1)
    events = [client.wait_for(DeliveryReceived) for _ in range(count)]
    client.pump(0.2)
    assert not any(isinstance(event, DeliveryReceived) for event in client.events)
    return [Message.decode(event.payload).body.decode() for event in events]


def paths_after_restart(broker: BrokerThread) -> list[str]:
    """What a broker that begins anew finds; it must be able to begin."""

    async def reopened() -> list[str]:
        await broker.namespace.close()
        store = broker.store._store
        found = [entity.path for entity in store.open().entities]
        store.close()
        return found

    return broker.run(reopened)


def test_nothing_is_built_on_a_topic_that_may_be_refused(broker: BrokerThread) -> None:
    """M8: a subscription without its topic would be a namespace that cannot be opened again."""
    # Given a topic on its way to disk
    broker.store.hold()
    topic = broker.start(lambda: broker.namespace.create_topic("news"))
    assert broker.store.is_waiting.wait(10)

    # When somebody asks for a subscription of it, and the disk refuses the topic
    subscription = broker.start(lambda: broker.namespace.create_subscription(NEWS))
    broker.store.is_full = True
    broker.store.let_go()
    with pytest.raises(StoreFull):
        topic.result(10)
    with pytest.raises(ConfigurationError, match=r"(?i)topic .* not found"):
        subscription.result(10)

    # Then both can be made once there is room
    broker.store.is_full = False
    broker.run(lambda: broker.namespace.create_topic("news"))
    broker.run(lambda: broker.namespace.create_subscription(NEWS))
    assert "news/subscriptions/a" in paths_after_restart(broker)


def test_a_topic_goes_while_its_subscription_and_a_rule_are_refused(broker: BrokerThread) -> None:
    """M8, M15: all of it is refused, and nothing of it has happened."""
    # Given a topic, and a subscription and a rule of it on their way to disk
    namespace = broker.namespace
    broker.run(lambda: namespace.create_topic("news"))
    broker.run(lambda: namespace.create_subscription(NEWS))
    broker.store.hold()
    other = SubscriptionDescription(path="news/subscriptions/b")

    async def both() -> list[object]:
        wanted = namespace.create_subscription(other), namespace.create_rule("news", "a", RED)
        return await asyncio.gather(*wanted, return_exceptions=True)

    made = broker.start(both)
    assert broker.store.is_waiting.wait(10)

    # When the topic is deleted, and the disk refuses all of it
    broker.store.is_full = True
    deleted = broker.start(lambda: namespace.delete_topic("news"))
    broker.store.let_go()
    assert [type(each) for each in made.result(10)] == [StoreFull, StoreFull]
    with pytest.raises(StoreFull):
        deleted.result(10)
    assert [each.description.name for each in namespace.subscriptions("news")] == ["a"]
    assert [rule.name for rule in namespace.rules("news", "a")] == ["$Default"]

    # Then the broker goes on, the topic can go, and a restart finds nothing of it
    broker.store.is_full = False
    broker.run(lambda: namespace.delete_topic("news"))
    with broker.client() as client:
        assert client.send(client.attach_sender("orders"), payload("a")) == Accepted()
    assert broker.health()[0] == 200
    assert paths_after_restart(broker) == ["orders", "orders/$deadletterqueue"]


def test_messages_do_not_go_on_to_a_queue_that_may_be_refused(broker: BrokerThread) -> None:
    """M3, M8: they would leave their queue and be nowhere."""
    # Given messages that wait for a target, which is to be made and forwarded to at once
    namespace = broker.namespace
    source = broker.run(lambda: namespace.create_queue("s"))
    forwarding = QueueDescription(path="s", forward_to="target")
    with broker.client() as client:
        link = client.attach_sender("s")
        for body in "abc":
            assert client.send(link, payload(body)) == Accepted()

        # When the target is made on a full disk, and given time
        broker.store.hold()
        target = broker.start(lambda: namespace.create_queue("target"))
        assert broker.store.is_waiting.wait(10)
        changed = broker.start(lambda: namespace.update_queue(forwarding))
        time.sleep(0.3)
        broker.store.is_full = True
        broker.store.let_go()
        with pytest.raises(StoreFull):
            target.result(10)
        with pytest.raises(ConfigurationError, match="forwards, not found"):
            changed.result(10)
        broker.store.is_full = False
        time.sleep(0.2)

        # Then the messages still wait, and arrive when it could be made
        assert source.message_count == 3
        broker.run(lambda: namespace.create_queue("target"))
        broker.run(lambda: namespace.update_queue(forwarding))
        assert bodies(client, "target", 3) == ["a", "b", "c"]


def test_two_forwards_that_begin_together_make_no_circle(broker: BrokerThread) -> None:
    """M3: each is allowed alone; together their messages would go round for ever."""
    # Given two queues
    namespace = broker.namespace
    for path in ("a", "b", "c"):
        broker.run(partial(namespace.create_queue, path))

    # When both are to forward to each other, and a third is changed while it is deleted
    broker.store.hold()
    first = broker.start(lambda: namespace.create_queue("first"))
    assert broker.store.is_waiting.wait(10)
    deleted = broker.start(lambda: namespace.delete_queue("c"))
    wanted = [("a", "b"), ("b", "a"), ("c", "b")]
    changes = [
        broker.start(
            partial(namespace.update_queue, QueueDescription(path=path, forward_to=target))
        )
        for path, target in wanted
    ]
    broker.store.let_go()
    for done in (first, deleted):
        done.result(10)

    # Then the first one holds, the second is refused, and nobody changes what is gone
    changes[0].result(10)
    with pytest.raises(ConfigurationError, match="loop"):
        changes[1].result(10)
    with pytest.raises(ConfigurationError, match="no longer exists"):
        changes[2].result(10)
    assert broker.health()[0] == 200


def test_a_moved_message_outlives_the_refused_send_of_its_duplicate(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M3, M8: dropped for the sake of a send that is refused it would be lost."""
    # Given a message that waits for its target, which detects duplicates and was closed
    monkeypatch.setattr(forwarding_module, "RETRY_S", 3_600.0)
    namespace = broker.namespace
    detecting = {"path": "target", "requires_duplicate_detection": True}
    closed = QueueDescription(**detecting, status=EntityStatus.SEND_DISABLED)
    target = broker.run(lambda: namespace.create_queue(closed))
    source = broker.run(
        lambda: namespace.create_queue(QueueDescription(path="s", forward_to="target"))
    )
    assert target.history is not None
    with broker.client() as client, broker.client() as bystander:
        assert client.send(client.attach_sender("s"), payload("moved", "1")) == Accepted()
        broker.run(lambda: namespace.update_queue(QueueDescription(**detecting)))

        # When somebody sends the same id, the message moves on, and the commit is refused
        broker.store.hold()
        other = bystander.attach_sender("orders")
        bystander._await_credit(other)
        other.send(payload("x"), b"x", settled=False)
        bystander.flush()
        assert broker.store.is_waiting.wait(10)
        link = client.attach_sender("target")
        client._await_credit(link)
        number = link.send(payload("sent", "1"), b"sent", settled=False)
        client.flush()
        until(lambda: len(target.history or ()) == 1, "the id is seen")
        broker.run(partial(_move_on, broker, source))
        broker.store.is_full = True
        broker.store.let_go()
        assert isinstance(client.outcome(number), Rejected)
        broker.store.is_full = False

        # Then the message that was accepted first is there
        assert bodies(client, "target", 1) == ["moved"]


async def _move_on(broker: BrokerThread, source: Queue) -> None:
    """What the source has is looked at now."""
    broker.namespace.access.background_tasks._forwarding._forwarders[source]._try_again()
    await asyncio.sleep(0)


def test_a_reset_on_a_full_disk_changes_nothing(broker: BrokerThread) -> None:
    """M15: refused, it leaves entities, rules, messages and links as they were."""
    namespace = broker.namespace
    broker.run(lambda: namespace.create_topic("news"))
    broker.run(lambda: namespace.create_subscription(NEWS, [RED]))
    with broker.client() as client:
        link = client.attach_sender("orders")
        assert client.send(link, payload("old")) == Accepted()

        # When the namespace is reset on a full disk, which has room again later
        for keep_entities in (True, False):
            broker.store.is_full = True
            with pytest.raises(StoreFull):
                broker.run(partial(namespace.reset, keep_entities=keep_entities))
            broker.store.is_full = False

            # Then the same link sends on
            assert client.send(link, payload("new")) == Accepted()
        assert bodies(client, "orders", 3) == ["old", "new", "new"]
    assert [rule.name for rule in namespace.rules("news", "a")] == ["red"]

    # And a restart finds the entities and the rule once
    assert len([path for path in paths_after_restart(broker) if "red" in path]) == 1
