"""kill -9 under publishing load: a message is with all its subscriptions, or with none."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.integration.durability.broker_thread import BrokerThread
from tests.integration.durability.history import History
from tests.integration.durability.load import Sender
from tests.integration.durability.taking_stock import drained
from tests.integration.durability.test_kill_nine import come_back, verify_store
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.descriptions import SubscriptionDescription
from twinbus.broker.namespace import namespace as namespace_module

KILLS = int(os.environ.get("TWINBUS_TOPIC_KILLS", "5"))
SEED = int(os.environ.get("TWINBUS_KILL_SEED", "1"))
NAMES = ("a", "b", "c")


def path_of(name: str) -> str:
    return f"news/subscriptions/{name}"


def test_a_killed_broker_keeps_every_copy(tmp_path: Path) -> None:
    """M8, M1: acknowledged means with every subscription; not acknowledged means all or none."""
    random, history = Random(SEED), History()
    with BrokerProcess(tmp_path / "data") as broker:
        # Given a topic whose broker is killed again and again while somebody publishes
        broker.create_topic("news", *NAMES)
        for _ in range(KILLS):
            sender = Sender(broker.port, broker.token(), "news", history, random)
            sender.start()
            assert sender.has_begun.wait(20), broker.log()
            time.sleep(random.uniform(0.0, 0.4))
            broker.kill()
            sender.finish()
            come_back(broker, random)

        # When everything is taken out of every subscription
        found = {}
        with connected(broker.port, broker.token()) as client:
            for name in NAMES:
                count = broker.subscription("news", name)["active_message_count"]
                messages = drained(client, path_of(name), count)
                found[name] = Counter(label for label, _seq, _count in messages)
        assert broker.stop() == 0

    # Then all have the same, each once, and everything that was acknowledged is among it
    assert found["a"] == found["b"] == found["c"]
    assert max(found["a"].values()) == 1
    visible = {label for label, sent in history.sent.items() if not sent.is_scheduled}
    acknowledged = {label for label in visible if history.sent[label].is_accepted}
    assert acknowledged, "nothing was acknowledged"
    assert acknowledged <= set(found["a"]) <= visible
    verify_store(tmp_path / "data")


def test_a_full_disk_refuses_a_message_for_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: the publisher is told once, and no subscription has a part of what was refused."""
    monkeypatch.setattr(namespace_module, "FULL_DISK_PAUSE_S", 0.05)
    with BrokerThread(tmp_path / "data", monkeypatch) as broker:
        # Given a topic with three subscriptions on a disk without room
        namespace = broker.namespace
        broker.run(lambda: namespace.create_topic("news"))
        for name in NAMES:
            wanted = SubscriptionDescription(path=path_of(name))
            broker.run(partial(namespace.create_subscription, wanted))
        with broker.client() as client:
            link = client.attach_sender("news")
            assert client.send(link, Message(body=b"before").encode()) == Accepted()
            broker.store.is_full = True

            # When a message is published, it is refused
            refused = client.send(link, Message(body=b"refused").encode())
            assert isinstance(refused, Rejected)

            # And when there is room again, the next one is stored
            broker.store.is_full = False
            assert client.send(link, Message(body=b"after").encode()) == Accepted()
        topic = namespace.topic("news")
        assert topic is not None
        counts = [each.message_count for each in topic.subscriptions.values()]
        assert counts == [2, 2, 2]
