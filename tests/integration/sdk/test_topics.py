"""Topics and subscriptions as the stock client sees them, the broker in another process."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.integration.sdk.test_access import client_of, rule
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    eventually,
    nothing_comes,
    receive,
    receive_one,
)

RED = {"name": "red", "filter": {"kind": "correlation", "label": "red"}}


async def test_every_subscription_gets_its_own_copy(broker: BrokerProcess, sdk: Sdk) -> None:
    """M1, M10: a topic's sender and two subscriptions that settle independently."""
    topic = broker.fresh_topic("a", "b")
    await sdk.publish(topic, ServiceBusMessage("one"), ServiceBusMessage("two"))

    first = sdk.subscription(topic, "a")
    for message in await receive(first, 2):
        await first.complete_message(message)
    assert broker.subscription(topic, "a")["active_message_count"] == 0
    assert bodies(await receive(sdk.subscription(topic, "b"), 2)) == ["one", "two"]


async def test_a_batch_to_a_topic_arrives_whole(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: batches are spread over the subscriptions like single messages."""
    topic = broker.fresh_topic("a", "b")
    sender = sdk.topic_sender(topic)
    batch = await sender.create_message_batch()
    for number in range(50):
        batch.add_message(ServiceBusMessage(str(number)))
    await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)
    for name in "ab":
        receiver = sdk.subscription(
            topic, name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        )
        assert bodies(await receive(receiver, 50)) == [str(number) for number in range(50)]


async def test_rules_choose_who_gets_a_message(broker: BrokerProcess, sdk: Sdk) -> None:
    """M4: only what the rules of a subscription let in reaches it."""
    topic = broker.fresh_topic("all")
    broker.create_subscription(topic, "red", rules=[RED])
    colours = ["red", "blue", "red"]
    await sdk.publish(
        topic,
        *(ServiceBusMessage(str(at), subject=colour) for at, colour in enumerate(colours)),
    )
    assert bodies(await receive(sdk.subscription(topic, "all"), 3)) == ["0", "1", "2"]
    assert bodies(await receive(sdk.subscription(topic, "red"), 2)) == ["0", "2"]
    assert broker.subscription(topic, "red")["active_message_count"] == 2


async def test_a_subscription_has_dead_letters_of_its_own(broker: BrokerProcess, sdk: Sdk) -> None:
    """M2: what one subscription dead-letters the other one keeps."""
    topic = broker.fresh_topic("a", "b")
    await sdk.publish(topic, ServiceBusMessage("one"))
    receiver = sdk.subscription(topic, "a")
    await receiver.dead_letter_message(await receive_one(receiver), reason="spoilt")
    dead = sdk.subscription(topic, "a", sub_queue="deadletter")
    message = await receive_one(dead)
    assert (bodies([message]), message.dead_letter_reason) == (["one"], "spoilt")
    assert broker.subscription(topic, "b")["active_message_count"] == 1


async def test_a_subscription_peeks_defers_and_renews(broker: BrokerProcess, sdk: Sdk) -> None:
    """M2, M3: the management node of a subscription answers like a queue's."""
    topic = broker.fresh_topic("a")
    await sdk.publish(topic, ServiceBusMessage("one"))
    receiver = sdk.subscription(topic, "a")
    assert bodies(await receiver.peek_messages(5)) == ["one"]
    message = await receive_one(receiver)
    assert await receiver.renew_message_lock(message) > datetime.now(UTC)
    await receiver.defer_message(message)
    (again,) = await receiver.receive_deferred_messages([message.sequence_number])
    await receiver.complete_message(again)
    assert broker.subscription(topic, "a")["deferred_message_count"] == 0


async def test_scheduled_messages_of_a_topic(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: scheduled and cancelled by number; what is left goes to all when it is due."""
    topic = broker.fresh_topic("a", "b")
    sender = sdk.topic_sender(topic)
    soon = datetime.now(UTC) + timedelta(seconds=2)
    late = datetime.now(UTC) + timedelta(hours=1)
    (number,) = await sender.schedule_messages(ServiceBusMessage("late"), late)
    await sender.schedule_messages(ServiceBusMessage("soon"), soon)
    await sender.cancel_scheduled_messages([number])
    for name in "ab":
        message = await receive_one(sdk.subscription(topic, name))
        assert bodies([message]) == ["soon"]
        assert message.enqueued_time_utc >= soon - timedelta(milliseconds=5)
    where = f"/namespaces/{broker.namespace}/topics/{topic}"
    assert broker.admin("GET", where)["scheduled_message_count"] == 0


async def test_a_ping_to_a_topic_reaches_nobody(broker: BrokerProcess, sdk: Sdk) -> None:
    """M7: a ping is acknowledged and never handed to a subscription."""
    topic = broker.fresh_topic("a")
    ping = ServiceBusMessage(
        b"", content_type="application/vnd.ms-servicebus-ping", time_to_live=timedelta(seconds=1)
    )
    await sdk.publish(topic, ping)
    assert await nothing_comes(sdk.subscription(topic, "a"))
    assert broker.subscription(topic, "a")["active_message_count"] == 0


async def test_what_cannot_be_done_is_refused(broker: BrokerProcess, sdk: Sdk) -> None:
    """M1: nobody receives from a topic or sends to a subscription, and nothing is made up."""
    topic = broker.fresh_topic("a")
    with pytest.raises(ServiceBusError, match="Receive from one of its subscriptions"):
        await sdk.receiver(topic).receive_messages(1, max_wait_time=5)
    with pytest.raises(ServiceBusError, match="Send to its topic"):
        await sdk.send(f"{topic}/Subscriptions/a", ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityNotFoundError):
        await sdk.subscription(topic, "missing").receive_messages(1, max_wait_time=5)
    await sdk.publish(topic, ServiceBusMessage("fine"))
    assert bodies([await receive_one(sdk.subscription(topic, "a"))]) == ["fine"]


async def test_a_deleted_subscription_lets_its_receiver_go(broker: BrokerProcess, sdk: Sdk) -> None:
    """M5: the receiver is told; the topic and its other subscriptions go on."""
    topic = broker.fresh_topic("a", "b")
    receiver = sdk.subscription(topic, "a")
    await receiver.peek_messages(1)
    broker.admin("DELETE", f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions/a")
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(1, max_wait_time=10)
    await sdk.publish(topic, ServiceBusMessage("one"))
    assert bodies([await receive_one(sdk.subscription(topic, "b"))]) == ["one"]


@pytest.mark.parametrize("flavour", ["sync", "aio"])
async def test_copies_and_rules_survive_a_kill(tmp_path: Path, flavour: str) -> None:
    """M8: after kill -9 every acknowledged copy and every rule is there."""
    with BrokerProcess(tmp_path / "data") as broker:
        broker.create_topic("news", "all")
        broker.create_subscription("news", "red", rules=[RED])
        before = Sdk(flavour, broker.connection_string)
        messages = [
            ServiceBusMessage("x" * 2_000, subject="red" if number % 2 else "blue")
            for number in range(20)
        ]
        await before.publish("news", *messages)
        late = datetime.now(UTC) + timedelta(hours=1)
        sender = before.topic_sender("news")
        await sender.schedule_messages(ServiceBusMessage("later"), late)
        broker.kill()
        await before.close()

        broker.restart()
        after = Sdk(flavour, broker.connection_string)
        assert broker.subscription("news", "all")["active_message_count"] == 20
        red = broker.subscription("news", "red")
        assert (red["active_message_count"], len(red["rules"])) == (10, 1)
        topic = broker.admin("GET", f"/namespaces/{broker.namespace}/topics/news")
        assert topic["scheduled_message_count"] == 1
        await after.publish("news", ServiceBusMessage("new", subject="red"))
        received = await receive(after.subscription("news", "red"), 11)
        assert bodies(received) == ["x" * 2_000] * 10 + ["new"]
        await after.close()


async def test_a_topic_can_be_full(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: the quota of a topic is what all its copies take together."""
    topic = broker.fresh_topic("a", "b", max_size_mb=1)
    large = [ServiceBusMessage(b"x" * 100_000) for _ in range(8)]
    with pytest.raises(ServiceBusError, match=r"is full: .* 1 MB"):
        await sdk.publish(topic, *large)
    receiver = sdk.subscription(topic, "a", receive_mode="receiveanddelete")
    await receive(receiver, 4)

    async def has_room() -> bool:
        return broker.subscription(topic, "a")["active_message_count"] <= 1

    assert await eventually(has_room)
    await sdk.publish(topic, ServiceBusMessage(b"x" * 100_000))


async def test_rules_with_actions_make_copies_of_their_own(broker: BrokerProcess, sdk: Sdk) -> None:
    """M4: rules without an action share one copy; each rule with an action makes another."""
    topic = broker.fresh_topic()
    rules = [
        {"name": "a", "filter": {"kind": "sql", "expression": "price > 1"}},
        {"name": "b", "filter": {"kind": "sql", "expression": "price > 2"}},
        {
            "name": "c",
            "filter": {"kind": "sql", "expression": "price > 3"},
            "action": {"expression": "SET sys.Label = 'dear'; REMOVE price"},
        },
    ]
    broker.create_subscription(topic, "sub", rules=rules)
    for price in (1, 3, 5):
        properties = {"price": price}
        await sdk.publish(topic, ServiceBusMessage(str(price), application_properties=properties))
    received = await receive(sdk.subscription(topic, "sub"), 3)
    assert bodies(received) == ["3", "5", "5"]
    assert [message.subject for message in received] == [None, None, "dear"]
    assert b"price" not in received[2].application_properties


async def test_a_rule_that_changes_holds_for_the_next_message(
    broker: BrokerProcess, sdk: Sdk
) -> None:
    """M5: rules are added, changed and deleted while messages come."""
    topic = broker.fresh_topic("sub")
    where = f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions/sub/rules"
    await sdk.publish(topic, ServiceBusMessage("all"))
    broker.admin("PUT", f"{where}/$Default", {"filter": {"kind": "false"}})
    await sdk.publish(topic, ServiceBusMessage("none"))
    broker.admin("PUT", f"{where}/red", {"filter": {"kind": "correlation", "label": "red"}})
    await sdk.publish(topic, ServiceBusMessage("red", subject="red"))
    broker.admin("DELETE", f"{where}/RED")
    await sdk.publish(topic, ServiceBusMessage("gone", subject="red"))
    assert bodies(await receive(sdk.subscription(topic, "sub"), 2)) == ["all", "red"]
    assert [rule["name"] for rule in broker.admin("GET", where)] == ["$Default"]
    assert broker.subscription(topic, "sub")["active_message_count"] == 2


async def test_a_closed_subscription_still_collects(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: ReceiveDisabled keeps receivers away, not messages."""
    topic = broker.fresh_topic()
    broker.create_subscription(topic, "closed", status="ReceiveDisabled")
    await sdk.publish(topic, ServiceBusMessage("one"))
    assert broker.subscription(topic, "closed")["active_message_count"] == 1
    with pytest.raises(ServiceBusError):
        await sdk.subscription(topic, "closed").receive_messages(1, max_wait_time=5)


@pytest.mark.parametrize("flavour", ["aio"])
async def test_ten_subscriptions_take_the_room_of_one(tmp_path: Path, flavour: str) -> None:
    """M1: a published body is on disk once, and gone when all have it."""
    names = [f"sub-{number}" for number in range(10)]
    options = ["--topic", "news"]
    for name in names:
        options += ["--subscription", f"news/{name}"]
    with BrokerProcess(tmp_path / "data", arguments=tuple(options)) as broker:
        sdk = Sdk(flavour, broker.connection_string)
        await sdk.publish("news", *(ServiceBusMessage(b"x" * 50_000) for _ in range(40)))
        await sdk.close()
        broker.stop()
        once = 40 * 50_000
        (store,) = (tmp_path / "data").rglob("*.db")
        assert once < store.stat().st_size < 2 * once

        broker.restart()
        sdk = Sdk(flavour, broker.connection_string)
        for name in names:
            receiver = sdk.subscription("news", name, receive_mode="receiveanddelete")
            assert len(await receive(receiver, 40)) == 40
        await sdk.close()
        broker.stop()
        connection = apsw.Connection(str(store), apsw.SQLITE_OPEN_READONLY)
        left = [connection.execute(f"SELECT COUNT(*) FROM {table}").get for table in SHARED_TABLES]
        connection.close()
        assert left == [0, 0, 0]


SHARED_TABLES = ("sheet", "share", "chunk")


async def test_a_config_file_brings_topics(tmp_path: Path) -> None:
    """M10: the emulator's Config.json with a topic, a subscription and a rule."""
    rule = {
        "Name": "red",
        "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": "red"}},
    }
    subscriptions = [{"Name": "Red", "Rules": [rule]}, {"Name": "All"}]
    namespace = {"Name": "demo", "Topics": [{"Name": "News", "Subscriptions": subscriptions}]}
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(tmp_path / "data", arguments=("--config", str(config))) as broker:
        sdk = Sdk("aio", broker.connection_string)
        await sdk.publish("news", ServiceBusMessage("1", subject="red"), ServiceBusMessage("2"))
        assert bodies(await receive(sdk.subscription("News", "Red"), 1)) == ["1"]
        assert bodies(await receive(sdk.subscription("News", "All"), 2)) == ["1", "2"]
        assert broker.subscription("news", "red")["active_message_count"] == 1
        await sdk.close()


async def test_a_subscription_with_sessions(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: sessions of a subscription; what has no session id is dead-lettered there only."""
    topic = broker.fresh_topic("plain")
    broker.create_subscription(topic, "ordered", requires_session=True)
    await sdk.publish(
        topic,
        ServiceBusMessage("1", session_id="red"),
        ServiceBusMessage("2"),
        ServiceBusMessage("3", session_id="blue"),
        ServiceBusMessage("4", session_id="red"),
    )
    receiver = sdk.subscription(topic, "ordered", session_id="red")
    received = await receive(receiver, 2)
    assert bodies(received) == ["1", "4"]
    for message in received:
        await receiver.complete_message(message)
    dead = await receive_one(sdk.subscription(topic, "ordered", sub_queue="deadletter"))
    assert bodies([dead]) == ["2"]
    assert dead.dead_letter_reason == "Session id is null."
    assert bodies(await receive(sdk.subscription(topic, "plain"), 4)) == ["1", "2", "3", "4"]


async def test_a_topic_drops_duplicates_for_all(broker: BrokerProcess, sdk: Sdk) -> None:
    """M3: an id that the topic has seen goes to no subscription again."""
    topic = broker.fresh_topic("a", "b", requires_duplicate_detection=True)
    repeated = [ServiceBusMessage(str(number), message_id="same") for number in range(3)]
    await sdk.publish(topic, *repeated, ServiceBusMessage("other", message_id="other"))
    for name in "ab":
        assert bodies(await receive(sdk.subscription(topic, name), 2)) == ["0", "other"]
        assert broker.subscription(topic, name)["active_message_count"] == 2


async def test_a_key_of_the_topic_opens_its_subscriptions(broker: BrokerProcess, sdk: Sdk) -> None:
    """M6: Send publishes, Listen receives from any subscription of that topic, and of no other."""
    topic = broker.fresh_topic(
        "a", authorization_rules=[rule("publisher", "Send"), rule("subscriber", "Listen")]
    )
    other = broker.fresh_topic("a")
    publisher, subscriber = (client_of(sdk, broker, name) for name in ("publisher", "subscriber"))
    sender = sdk.topic_sender(topic, client=publisher)
    await sender.send_messages(ServiceBusMessage("one"), timeout=SEND_TIMEOUT_S)
    message = await receive_one(sdk.subscription(topic, "a", client=subscriber))
    assert bodies([message]) == ["one"]
    with pytest.raises(ServiceBusAuthorizationError):
        await sdk.subscription(topic, "a", client=publisher).receive_messages(1, max_wait_time=5)
    with pytest.raises(ServiceBusAuthenticationError):
        await sdk.subscription(other, "a", client=subscriber).receive_messages(1, max_wait_time=5)
