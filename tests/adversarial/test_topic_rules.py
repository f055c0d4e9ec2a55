"""Rules that were written to do harm, at work in a broker: they harm their own subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.error import HTTPError

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, bodies, receive, receive_one

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RULES_MAX = 2_000
# A hundred take some ten milliseconds; an administrator with a thousand asks ten times.
RULES_PER_REQUEST = 100


@pytest.fixture
async def sdk(broker: BrokerProcess) -> AsyncIterator[Sdk]:
    opened = Sdk("aio", broker.connection_string)
    yield opened
    await opened.close()


def sql(name: str, expression: str, action: str | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"name": name, "filter": {"kind": "sql", "expression": expression}}
    if action is not None:
        rule["action"] = {"expression": action}
    return rule


def refusal(broker: BrokerProcess, path: str, body: dict[str, Any]) -> str:
    with pytest.raises(HTTPError) as refused:
        broker.admin("PUT", f"/namespaces/{broker.namespace}/topics/{path}", body)
    assert refused.value.code == 400
    return refused.value.read().decode()


async def test_case_97_a_rule_that_fails_harms_its_own_subscription(
    broker: BrokerProcess, sdk: Sdk
) -> None:
    """M4: the publisher hears nothing; the message is in that subscription's dead letters."""
    topic = broker.fresh_topic("fine")
    for name, dead_letters in (("bad", True), ("worse", False)):
        broker.create_subscription(
            topic,
            name,
            rules=[sql("zero", "10 / divisor > 1")],
            dead_lettering_on_filter_errors=dead_letters,
        )
    await sdk.publish(topic, ServiceBusMessage("one", application_properties={"divisor": 0}))
    await sdk.publish(topic, ServiceBusMessage("two", application_properties={"divisor": 2}))

    assert bodies(await receive(sdk.subscription(topic, "fine"), 2)) == ["one", "two"]
    assert bodies(await receive(sdk.subscription(topic, "bad"), 1)) == ["two"]
    assert bodies(await receive(sdk.subscription(topic, "worse"), 1)) == ["two"]
    dead = await receive_one(sdk.subscription(topic, "bad", sub_queue="deadletter"))
    assert (bodies([dead]), dead.dead_letter_reason) == (["one"], "FilterEvaluationException")
    assert broker.subscription(topic, "worse")["dead_letter_message_count"] == 0


async def test_case_98_two_thousand_rules_and_one(broker: BrokerProcess, sdk: Sdk) -> None:
    """M4: the last one is refused; with the others at work nobody else has to wait."""
    topic = broker.fresh_topic()
    for part in range(RULES_MAX // RULES_PER_REQUEST):
        rules = [
            sql(f"r{number}", f"a % {RULES_MAX} = {part * RULES_PER_REQUEST + number}")
            for number in range(RULES_PER_REQUEST)
        ]
        broker.create_subscription(topic, f"part-{part}", rules=rules)
    one_too_many = sql("one", "a = 1")
    assert "2000 rules" in refusal(broker, f"{topic}/subscriptions/part-0/rules/one", one_too_many)
    assert "2000 rules" in refusal(broker, f"{topic}/subscriptions/more", {"rules": [one_too_many]})

    sender = sdk.topic_sender(topic)
    batch = await sender.create_message_batch()
    for number in range(100):
        properties = {"a": number * 20}
        batch.add_message(ServiceBusMessage(str(number), application_properties=properties))
    await sender.send_messages(batch, timeout=SEND_TIMEOUT_S)
    found = broker.admin("GET", f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions")
    assert [each["active_message_count"] for each in found] == [5] * 20
    broker.admin("DELETE", f"/namespaces/{broker.namespace}/topics/{topic}")


async def test_case_99_an_action_that_rewrites_ids(broker: BrokerProcess, sdk: Sdk) -> None:
    """M4: a copy is rewritten for its own subscription; the message of the others is untouched."""
    topic = broker.fresh_topic("plain")
    rewrite = "SET sys.To = 'elsewhere'; SET sys.SessionId = 's'; SET colour = 'red'"
    broker.create_subscription(topic, "changed", rules=[sql("rewrite", "1 = 1", rewrite)])
    bad = [
        "SET sys.SequenceNumber = 1",
        "SET sys.EnqueuedTimeUtc = 1",
        "REMOVE sys.MessageId",
        "SET sys.LockToken = 'x'",
        "SET [x-ms-path] = 'forged'",
    ]
    for action in bad:
        body = sql("bad", "1 = 1", action)
        assert refusal(broker, f"{topic}/subscriptions/plain/rules/bad", body)

    sent = ServiceBusMessage(b"\x00body\xff", message_id="mine", to="here")
    await sdk.publish(topic, sent)
    plain = await receive_one(sdk.subscription(topic, "plain"))
    changed = await receive_one(sdk.subscription(topic, "changed"))
    assert (plain.to, plain.session_id, plain.application_properties) == ("here", None, None)
    assert (changed.to, changed.session_id, changed.message_id) == ("elsewhere", "s", "mine")
    assert changed.application_properties[b"colour"] == b"red"
    assert b"".join(changed.body) == b"".join(plain.body) == b"\x00body\xff"
