"""Rules that were written to do harm, through the doors of a broker (cases 92 to 99).

What rules do by themselves is in tests/unit/broker/engine/filters, those that are accepted and fail
later in test_topic_rules.py; here they are refused, or take as long as they may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.adversarial.guards import Guard, wait_until
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message


def sql(expression: str, action: str | None = None, name: str = "rule") -> dict[str, Any]:
    """A rule as the HTTP side takes it."""
    return {
        "name": name,
        "filter": {"kind": "sql", "expression": expression},
        "action": None if action is None else {"expression": action},
    }


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


def publish(client: WireClient, topic: str, *messages: Message) -> None:
    """Every one of them is accepted, whatever the rules make of it."""
    sender = client.attach_sender(topic)
    for message in messages:
        assert client.send(sender, message.encode()) == Accepted()


def only_message(client: WireClient, path: str) -> Message:
    client.attach_receiver(path).grant(1)
    return Message.decode(client.wait_for(DeliveryReceived).payload)


HOSTILE = {
    "case-92-too-long": sql("a = '" + "x" * 1_019 + "'"),
    "case-92-just-through-the-door": sql("(" * 60_000),
    "case-93-no-escape": sql("a LIKE 'x' ESCAPE ''"),
    "case-94-parentheses": sql("(" * 500 + "1=1" + ")" * 500),
    "case-94-not": sql("NOT " * 250 + "1=1"),
    "case-95-drop": sql("'; DROP TABLE m--"),
    "case-95-or": sql("' OR 1=1"),
    "case-96-class": sql("__class__ = 1"),
    "case-96-system": sql("sys.[__class__] = 1"),
    "case-96-long": sql("[" + "a" * 10_240 + "] = 1"),
    "case-97-digits": sql("a = 1" + "0" * 400),
    "case-98-list": sql(f"a IN ({','.join(map(str, range(10_000)))})"),
    "case-99-path": sql("1=1", "SET [x-ms-path] = 'elsewhere'"),
    "case-99-number": sql("1=1", "SET sys.SequenceNumber = 1"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_rule_is_refused_and_the_topic_goes_on(
    broker: BrokerProcess, client: WireClient, kind: str
) -> None:
    """M4: one sentence for its author; the subscription keeps the rules it has."""
    topic = broker.fresh_topic("all")
    rules = f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions/all/rules"
    status, answer = broker.http(
        "PUT", f"{rules}/rule", HOSTILE[kind], token=broker.token(port=broker.admin_port)
    )
    assert status in (400, 413)
    assert_well_put(answer["error"])
    assert [rule["name"] for rule in broker.subscription(topic, "all")["rules"]] == ["$Default"]
    publish(client, topic, Message(body=b"still here"))
    assert only_message(client, f"{topic}/subscriptions/all").body == b"still here"


def test_case_93_long_texts_and_many_likes_leave_time_for_others(
    broker: BrokerProcess, client: WireClient, guard: Guard
) -> None:
    """M4: case 93: the bystander is served while rules search the longest property there is."""
    # Given a hundred rules, each with many LIKEs that look at every character
    topic = broker.fresh_topic("all")
    greedy = " OR ".join(["a LIKE '%b_c'", "a LIKE '%b_%c'"] * 20)
    rules = [sql(greedy, name=f"r{number}") for number in range(20)]
    for part in range(5):
        broker.create_subscription(topic, f"greedy-{part}", rules=rules)

    # When messages with that property come, while a bystander is at work (G2)
    guard.bystander.await_rounds(3)
    long = Message(application_properties={"a": "b" * 32_000}, body=b"long")
    publish(client, topic, long, long, long)
    guard.bystander.await_rounds(3)

    # Then others have got them
    wait_until(
        lambda: broker.subscription(topic, "all")["active_message_count"] == 3,
        lambda: "messages are missing",
    )
