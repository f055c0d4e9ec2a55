"""Forwards through the stock administration client, which shows a token for each target."""

from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.management import AuthorizationRule

from tests.integration.sdk_administration.clients import Administration
from tests.integration.sdk_administration.conftest import FreshName
from tests.support.broker_process import BrokerProcess

OWNER, KEY = "owner", "K" * 43 + "="


def owned() -> list[AuthorizationRule]:
    """Every claim on one entity."""
    return [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=["Manage", "Send", "Listen"],
            key_name=OWNER,
            primary_key=KEY,
            secondary_key=KEY,
        )
    ]


def with_signature(broker: BrokerProcess, signature: str) -> str:
    return (
        f"Endpoint=sb://localhost:{broker.port};SharedAccessSignature={signature};"
        "UseDevelopmentEmulator=true;"
    )


def as_holder_of(broker: BrokerProcess, flavour: str, path: str, **rule: object) -> Administration:
    """The client with a ready-made signature for one path: all that an entity's key can make."""
    signature = broker.token(path=path, **rule)  # type: ignore[arg-type]
    return Administration(flavour, broker, connection_string=with_signature(broker, signature))


async def test_a_key_of_the_namespace_lets_everything_forward(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M10, M14: queues and subscriptions, messages and dead letters, made and changed."""
    target, topic, name = fresh(), fresh("topic"), fresh()
    await admin.create_queue(target)
    await admin.create_topic(topic)
    url = f"sb://localhost:{broker.port}/{target}"
    queue = await admin.create_queue(name, forward_to=target)
    queue.forward_dead_lettered_messages_to = target
    await admin.update_queue(queue)
    assert (await admin.get_queue(name)).forward_dead_lettered_messages_to == url
    subscription = await admin.create_subscription(topic, "s", forward_to=url)
    subscription.forward_dead_lettered_messages_to = url
    await admin.update_subscription(topic, subscription)
    assert (await admin.get_subscription(topic, "s")).forward_to == url


async def test_the_key_of_an_entity_forwards_only_to_where_it_may_send(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M14: the client shows the same signature for the target, and that does not cover it."""
    topic, name, target = fresh("topic"), fresh(), fresh()
    await admin.create_queue(target)
    await admin.create_queue(name, authorization_rules=owned())
    await admin.create_topic(topic, authorization_rules=owned())
    holder = as_holder_of(broker, admin.flavour, name, rule=(OWNER, KEY))
    queue = await holder.get_queue(name)
    queue.forward_to = target
    with pytest.raises(ClientAuthenticationError):
        await holder.update_queue(queue)
    assert (await admin.get_queue(name)).forward_to is None
    queue.forward_to, queue.max_delivery_count = None, 7
    await holder.update_queue(queue)
    assert (await admin.get_queue(name)).max_delivery_count == 7
    await holder.close()

    # The same for the subscriptions of a topic and its owner
    holder = as_holder_of(broker, admin.flavour, topic, rule=(OWNER, KEY))
    with pytest.raises(ClientAuthenticationError):
        await holder.create_subscription(topic, "s", forward_dead_lettered_messages_to=target)
    await holder.create_subscription(topic, "s")
    await holder.close()


async def test_a_signature_for_a_prefix_covers_source_and_target(
    admin: Administration, broker: BrokerProcess, fresh: FreshName
) -> None:
    """M14: made with a rule of the namespace; what is outside it is refused."""
    prefix, outside = fresh(), fresh()
    await admin.create_queue(outside)
    holder = as_holder_of(broker, admin.flavour, prefix)
    await holder.create_queue(f"{prefix}/b")
    await holder.create_queue(f"{prefix}/a", forward_to=f"{prefix}/b")
    with pytest.raises(ClientAuthenticationError):
        await holder.create_queue(f"{prefix}/c", forward_to=outside)
    await holder.close()
