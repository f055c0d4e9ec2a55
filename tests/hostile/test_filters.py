"""Rules that were written to do harm, through the doors of a broker (cases 92 to 99).

What rules do by themselves is in tests/filters; here a publisher and a bystander must not notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.guards import Guard, wait_until
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.sections import Message, Properties


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
    "case-92-a-megabyte-short-of-the-door": sql("(" * 60_000),
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


@pytest.mark.parametrize("expression", ["5 / n = 1", "n % 0 = 1", "n + 9223372036854775807 < 0"])
def test_case_97_a_failing_rule_concerns_its_subscription_only(
    broker: BrokerProcess, client: WireClient, expression: str
) -> None:
    """M4: case 97: the publisher hears nothing, and the message waits among the dead letters."""
    # Given a subscription that dead-letters what its rules fail on, one that does not, and one
    # without such rules
    topic = broker.fresh_topic("all")
    failing = sql(expression + " OR 1 / (n * 0) = 1")
    broker.create_subscription(
        topic, "strict", rules=[failing], dead_lettering_on_filter_errors=True
    )
    broker.create_subscription(topic, "lax", rules=[failing], dead_lettering_on_filter_errors=False)

    # When a message comes that the rule has no answer for
    publish(client, topic, Message(application_properties={"n": 1}, body=b"one"))

    # Then everybody else gets it
    assert only_message(client, f"{topic}/subscriptions/all").body == b"one"
    assert broker.subscription(topic, "lax")["active_message_count"] == 0
    dead = only_message(client, f"{topic}/subscriptions/strict/$DeadLetterQueue")
    assert dead.body == b"one" and dead.application_properties is not None
    assert dead.application_properties["DeadLetterReason"] == "FilterEvaluationException"
    assert_sentence(dead.application_properties["DeadLetterErrorDescription"])


def assert_sentence(text: str) -> None:
    assert text.endswith(".") and text.isprintable() and "Traceback" not in text


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


def test_case_98_the_2001st_rule_is_refused(broker: BrokerProcess, client: WireClient) -> None:
    """M4: case 98: for the whole topic; those that are there go on working."""
    topic = broker.fresh_topic()
    for part in range(20):
        rules = [sql(f"n = {part * 100 + number}", name=f"r{number}") for number in range(100)]
        broker.create_subscription(topic, f"s{part}", rules=rules)
    where = f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions/s0/rules/one-more"
    status, answer = broker.http(
        "PUT", where, sql("n = 1"), token=broker.token(port=broker.admin_port)
    )
    assert 400 <= status < 500
    assert_well_put(answer["error"])
    assert "2000" in answer["error"]
    publish(client, topic, Message(application_properties={"n": 1_234}, body=b"found"))
    assert only_message(client, f"{topic}/subscriptions/s12").body == b"found"


def test_case_99_an_action_changes_its_own_copy_only(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M4: case 99: what Azure lets an action rewrite is rewritten for one subscription."""
    topic = broker.fresh_topic("all")
    action = "SET sys.MessageId = 'm2'; SET sys.To = 'elsewhere'; SET a = a + 1; REMOVE b"
    broker.create_subscription(topic, "changed", rules=[sql("a = 1", action, "changes")])
    sent = Message(
        properties=Properties(message_id="m1"),
        application_properties={"a": 1, "b": 2},
        body=b"body",
    )
    publish(client, topic, sent)
    changed = only_message(client, f"{topic}/subscriptions/changed")
    assert changed.properties == Properties(message_id="m2", to="elsewhere")
    assert changed.application_properties == {"a": 2, "RuleName": "changes"}
    assert changed.body == b"body"
    same = only_message(client, f"{topic}/subscriptions/all")
    assert same.properties == Properties(message_id="m1")
    assert same.application_properties == {"a": 1, "b": 2}
