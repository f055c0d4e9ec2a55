"""Access rules of entities through the stock administration client, and who may use it at all."""

from __future__ import annotations

import time
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus.management import AuthorizationRule

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient
from twinbus.broker.access.sas import make_token

KEY_1, KEY_2, KEY_3 = (letter * 43 + "=" for letter in "ABC")


def rule(name: str, *rights: str, **keys: str) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        **keys,
    )


def opens(broker: BrokerProcess, queue: str, name: str, key: str) -> int:
    """The status of a token for the queue, made with a rule of the queue."""
    with WireClient(broker.port).open() as client:
        return client.put_token(broker.token(path=queue, rule=(name, key)))


def shown(broker: BrokerProcess, rule_name: str, key: str) -> str:
    """A connection string with that key."""
    return (
        f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName={rule_name};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true;"
    )


async def test_a_queue_has_the_access_rules_that_it_was_created_with(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6: names, rights and keys come back, and the keys open the queue and nothing else."""
    name = fresh()
    await admin.create_queue(
        name,
        authorization_rules=[
            rule("all", "Manage", "Send", "Listen", primary_key=KEY_1, secondary_key=KEY_2),
            rule("senders", "Send", primary_key=KEY_3, secondary_key=KEY_2),
        ],
    )
    first, second = (await admin.get_queue(name)).authorization_rules
    assert (first.key_name, first.primary_key, first.secondary_key) == ("all", KEY_1, KEY_2)
    assert set(first.rights) == {"Manage", "Send", "Listen"}
    assert (second.key_name, second.rights) == ("senders", ["Send"])
    assert first.type == "SharedAccessAuthorizationRule"
    assert first.claim_type == "SharedAccessKey"
    assert opens(broker, name, "senders", KEY_3) == 202
    assert opens(broker, fresh(), "senders", KEY_3) == 401


async def test_a_rule_without_keys_gets_fresh_ones(admin: Administration, fresh: FreshName) -> None:
    """M6: as the service makes them."""
    queue = await admin.create_queue(fresh(), authorization_rules=[rule("made", "Listen")])
    (made,) = queue.authorization_rules
    assert len(made.primary_key) == len(made.secondary_key) == 44
    assert made.primary_key != made.secondary_key


async def test_a_key_is_rotated_by_an_update(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6: the new key opens, the old one no longer does, the other still does."""
    name = fresh()
    rules = [rule("senders", "Send", primary_key=KEY_1, secondary_key=KEY_2)]
    queue = await admin.create_queue(name, authorization_rules=rules)
    queue.authorization_rules[0].primary_key = KEY_3
    await admin.update_queue(queue)
    assert [opens(broker, name, "senders", key) for key in (KEY_1, KEY_2, KEY_3)] == [
        401,
        202,
        202,
    ]


async def test_an_update_takes_access_rules_away(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6: who used one is shut out."""
    name = fresh()
    rules = [rule("gone", "Send", primary_key=KEY_1, secondary_key=KEY_2)]
    queue = await admin.create_queue(name, authorization_rules=rules)
    assert opens(broker, name, "gone", KEY_1) == 202
    queue.authorization_rules = None
    await admin.update_queue(queue)
    assert (await admin.get_queue(name)).authorization_rules is None
    assert opens(broker, name, "gone", KEY_1) == 401


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([rule("x")], id="no rights"),
        pytest.param([rule("x", "Manage")], id="manage alone"),
        pytest.param([rule("x", "Own")], id="unknown right"),
        pytest.param([rule("x", "Send"), rule("X", "Send")], id="a name twice"),
        pytest.param([rule("a b", "Send")], id="a blank in a name"),
        pytest.param([rule(f"r{i}", "Send") for i in range(13)], id="thirteen"),
        pytest.param([rule("x", "Send", primary_key="a;b")], id="an odd key"),
    ],
)
async def test_access_rules_that_cannot_be_are_refused(
    admin: Administration, fresh: FreshName, rules: list[Any]
) -> None:
    """M6: and nothing is made; no key is repeated."""
    name = fresh()
    with pytest.raises(HttpResponseError) as refused:
        await admin.create_queue(name, authorization_rules=rules)
    assert refused.value.status_code == 400
    assert_well_put(refused.value.message, "a;b")
    assert name not in [queue.name for queue in await admin.all("queues")]


@pytest.mark.parametrize("flavour", ["sync", "aio"])
async def test_a_wrong_key_and_an_unknown_rule_are_told_the_same(
    flavour: str, broker: BrokerProcess
) -> None:
    """M6: nobody learns which rules exist."""
    told = []
    for name in ("RootManageSharedAccessKey", "nobody"):
        admin = Administration(flavour, broker, connection_string=shown(broker, name, KEY_1))
        with pytest.raises(ClientAuthenticationError) as refused:
            await admin.get_namespace_properties()
        told.append(refused.value.response.text())
        await admin.close()
    assert told[0] == told[1]
    assert "<Code>401</Code>" in told[0]


@pytest.mark.parametrize("claims", [["Send"], ["Listen"], ["Send", "Listen"]])
async def test_without_manage_nothing_can_be_administered(
    broker: BrokerProcess, fresh: FreshName, claims: list[str]
) -> None:
    """M6"""
    name = fresh("rule")
    made = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": claims})
    text = shown(broker, name, made["primary_key"])
    admin = Administration("sync", broker, connection_string=text)
    for call in (admin.get_namespace_properties(), admin.create_queue(fresh())):
        with pytest.raises(ClientAuthenticationError):
            await call
    await admin.close()
    broker.admin("DELETE", f"/namespaces/demo/rules/{name}")


async def test_manage_on_a_queue_opens_that_queue_only(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6: a rule of the entity, with a token for the entity."""
    name, other = fresh(), fresh()
    rules = [rule("own", "Manage", "Send", "Listen", primary_key=KEY_1, secondary_key=KEY_2)]
    await admin.create_queue(name, authorization_rules=rules)
    await admin.create_queue(other)
    token = make_token(
        resource=f"https://localhost:{broker.admin_port}/{name}",
        rule_name="own",
        key=KEY_1,
        expires_s=int(time.time()) + 60,
    )
    answers = {
        path: broker.raw_http("GET", path, headers={"Authorization": token})[0]
        for path in (f"/{name}", f"/{other}", "/$Resources/queues", "/$namespaceinfo")
    }
    assert list(answers.values()) == [200, 401, 401, 401]


async def test_a_rule_that_is_sent_without_keys_keeps_those_it_has(
    admin: Administration, fresh: FreshName
) -> None:
    """M6: changing its rights does not lock its users out."""
    rules = [rule("kept", "Send", primary_key=KEY_1, secondary_key=KEY_2)]
    queue = await admin.create_queue(fresh(), authorization_rules=rules)
    queue.authorization_rules = [rule("kept", "Send", "Listen")]
    await admin.update_queue(queue)
    (kept,) = (await admin.get_queue(queue.name)).authorization_rules
    assert (kept.primary_key, kept.secondary_key) == (KEY_1, KEY_2)
    assert set(kept.rights) == {"Send", "Listen"}


@pytest.mark.parametrize("flavour", ["sync", "aio"])
async def test_a_ready_made_signature_opens_what_it_was_made_for(
    flavour: str, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6, M10: the client writes "Bearer" before a signature from a connection string."""
    name = fresh()
    text = f"Endpoint=sb://localhost:{broker.port};SharedAccessSignature={{}};"
    whole = Administration(flavour, broker, connection_string=text.format(broker.token()))
    await whole.create_queue(name)
    narrow = Administration(flavour, broker, connection_string=text.format(broker.token(path=name)))
    assert (await narrow.get_queue(name)).name == name
    with pytest.raises(ClientAuthenticationError):
        await narrow.get_namespace_properties()
    await narrow.close()
    await whole.close()


async def test_manage_on_a_topic_opens_its_subscriptions_and_their_rules(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M6: what is below an entity belongs to it."""
    topic, other = fresh("topic"), fresh("topic")
    rules = [rule("own", "Manage", "Send", "Listen", primary_key=KEY_1, secondary_key=KEY_2)]
    await admin.create_topic(topic, authorization_rules=rules)
    await admin.create_topic(other)
    text = f"Endpoint=sb://localhost:{broker.port};SharedAccessSignature={{}};"
    token = broker.token(path=topic, rule=("own", KEY_1))
    owner = Administration(admin.flavour, broker, connection_string=text.format(token))
    await owner.create_subscription(topic, "s")
    await owner.create_rule(topic, "s", "r")
    assert len(await owner.all("rules", topic, "s")) == 2
    for call in (owner.create_subscription(other, "s"), owner.all("topics")):
        with pytest.raises(ClientAuthenticationError):
            await call
    await owner.close()
