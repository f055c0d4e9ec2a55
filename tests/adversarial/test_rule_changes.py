"""Rules that must not be made, and keys that change under their users (cases 44, 45, 48 and 49)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message

UNAUTHORIZED = "amqp:unauthorized-access"
RULES = "/namespaces/demo/rules"
KEYS = {"primary_key": "p" * 44, "secondary_key": "s" * 44}


@pytest.fixture
def rule(broker: BrokerProcess) -> Iterator[dict[str, Any]]:
    """A rule of the namespace that may send and listen, with its keys."""
    name = f"rule-{uuid4().hex[:8]}"
    yield broker.admin("PUT", f"{RULES}/{name}", {"claims": ["Send", "Listen"]})
    broker.admin("DELETE", f"{RULES}/{name}")


def token_of(broker: BrokerProcess, rule: dict[str, Any], which: str = "primary") -> str:
    return broker.token(rule=(rule["name"], rule[f"{which}_key"]))


def refused(broker: BrokerProcess, path: str, body: dict[str, Any]) -> str:
    """The sentence with which an administrator's wish is refused with 400."""
    token = broker.token(port=broker.admin_port)
    status, told = broker.http("PUT", path, body, token=token)
    assert status == 400
    assert_well_put(told["error"], *KEYS.values(), token)
    return str(told["error"])


@pytest.mark.parametrize(
    "claims",
    [["Manage"], ["Manage", "Send"], ["Listen", "Manage"]],
    ids=lambda claims: "case-44-" + "-".join(claims),
)
def test_manage_without_send_and_listen_is_refused(
    broker: BrokerProcess, claims: list[str]
) -> None:
    """M6: Manage includes the other two, so a rule has to say them."""
    before = broker.admin("GET", RULES)
    assert "without Send and Listen" in refused(broker, f"{RULES}/half", {"claims": claims})
    assert broker.admin("GET", RULES) == before

    # The same for a rule that comes with a queue, and then the queue is not made either
    queue = f"queue-{uuid4().hex[:12]}"
    with_rule = {"authorization_rules": [{"name": "half", "claims": claims, **KEYS}]}
    refused(broker, f"/namespaces/demo/queues/{queue}", with_rule)
    assert queue not in [each["path"] for each in broker.admin("GET", "/namespaces/demo/queues")]


@pytest.fixture
def twelve_rules(broker: BrokerProcess) -> Iterator[None]:
    """As many rules as a namespace may have; gone after the test."""
    made = [f"filler-{number}" for number in range(12 - len(broker.admin("GET", RULES)))]
    for name in made:
        broker.admin("PUT", f"{RULES}/{name}", {"claims": ["Send"]})
    yield
    for name in made:
        broker.admin("DELETE", f"{RULES}/{name}")


@pytest.mark.usefixtures("twelve_rules")
def test_case_45_a_thirteenth_rule_is_refused(broker: BrokerProcess) -> None:
    """M6: Service Bus allows twelve."""
    assert "maximum of 12" in refused(broker, f"{RULES}/thirteenth", {"claims": ["Send"]})
    names = [each["name"] for each in broker.admin("GET", RULES)]
    assert len(names) == 12 and "thirteenth" not in names


def test_case_45_a_queue_with_thirteen_rules_is_refused(broker: BrokerProcess) -> None:
    """M6: twelve are taken, thirteen make no queue."""
    rules = [{"name": f"r{number}", "claims": ["Send"], **KEYS} for number in range(13)]
    queue = broker.fresh_queue(authorization_rules=rules[:12])
    assert len(broker.queue(queue)["authorization_rules"]) == 12
    refused(broker, f"/namespaces/demo/queues/{queue}-x", {"authorization_rules": rules})
    assert f"{queue}-x" not in str(broker.admin("GET", "/namespaces/demo/queues"))


def test_case_48_a_new_key_cuts_off_whoever_used_the_old_one(
    broker: BrokerProcess, rule: dict[str, Any]
) -> None:
    """M6: within a second; the lock that was held lives on, the other key works as before."""
    queue = broker.fresh_queue()
    with (
        connected(broker.port, token_of(broker, rule)) as client,
        connected(broker.port, token_of(broker, rule, "secondary")) as other,
    ):
        # Given a sender and a receiver with the primary key, and a sender with the secondary
        sender, receiver = client.attach_sender(queue), client.attach_receiver(queue)
        assert client.send(sender, Message(body=b"held").encode()) == Accepted()
        receiver.grant(10)
        held = client.wait_for(DeliveryReceived)
        other_sender = other.attach_sender(queue)

        # When the primary key is changed
        changed = broker.admin("POST", f"/namespaces/demo/keys/{rule['name']}/primary")
        began = time.monotonic()

        # Then both links of its user end, and neither a settlement nor the old token helps it
        for link in (sender, receiver):
            error = client.detach_error(link)
            assert error.condition == UNAUTHORIZED
            assert_well_put(error.description, rule["primary_key"], changed["key"])
        assert time.monotonic() - began <= 1
        state = client.settled(held.delivery_id, Accepted())
        assert isinstance(state, Rejected) and state.error is not None
        assert state.error.condition == UNAUTHORIZED
        assert client.put_token(token_of(broker, rule)) == 401

        # and the user of the secondary key has noticed nothing
        assert other.send(other_sender, Message(body=b"more").encode()) == Accepted()
        assert broker.queue(queue)["locked_message_count"] == 1
        assert broker.queue(queue)["active_message_count"] == 2

        # With the new key everything goes on
        rule["primary_key"] = changed["key"]
        assert client.put_token(token_of(broker, rule)) == 202
        assert client.attach_sender(queue).peer.target is not None


def test_case_48_a_deleted_rule_cuts_off_its_users(broker: BrokerProcess) -> None:
    """M6: both keys at once."""
    queue = broker.fresh_queue()
    rule = broker.admin("PUT", f"{RULES}/passing", {"claims": ["Send"]})
    with (
        connected(broker.port, token_of(broker, rule)) as first,
        connected(broker.port, token_of(broker, rule, "secondary")) as second,
    ):
        links = [(client, client.attach_sender(queue)) for client in (first, second)]
        broker.admin("DELETE", f"{RULES}/passing")
        for client, link in links:
            assert client.refusal(link) == UNAUTHORIZED
    assert set(broker.counts(queue).values()) == {0}


def test_case_49_a_token_signed_with_the_old_key_cannot_be_replayed(
    broker: BrokerProcess, rule: dict[str, Any]
) -> None:
    """M6: its own time is not over, but its key is."""
    captured = token_of(broker, rule)
    with WireClient(broker.port).open() as before:
        assert before.put_token(captured) == 202
    broker.admin("POST", f"/namespaces/demo/keys/{rule['name']}/primary")
    with WireClient(broker.port).open() as replaying:
        status, text = replaying.show_token(captured)
        assert status == 401
        assert_well_put(text, rule["primary_key"])
        assert replaying.refusal(replaying.attach_sender("vault")) == UNAUTHORIZED
