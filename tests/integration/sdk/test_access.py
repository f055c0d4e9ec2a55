"""Keys, tokens and claims, as the stock client shows them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import (
    RECEIVE_TIMEOUT_S,
    SEND_TIMEOUT_S,
    Sdk,
    bodies,
    receive,
    receive_one,
    unwrapped,
)

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OTHER_KEY = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg="
TOKEN_LIFE_S = 4


def rule(name: str, *claims: str) -> dict[str, Any]:
    return {"name": name, "claims": claims, "primary_key": KEY, "secondary_key": OTHER_KEY}


def connection_string(broker: BrokerProcess, name: str, key: str) -> str:
    return (
        f"Endpoint=sb://localhost:{broker.port};SharedAccessKeyName={name};"
        f"SharedAccessKey={key};UseDevelopmentEmulator=true"
    )


def client_of(sdk: Sdk, broker: BrokerProcess, name: str, key: str = KEY) -> Any:
    return sdk.client(connection_string(broker, name, key))


async def send_with(sdk: Sdk, client: Any, queue: str) -> None:
    await sdk.sender(queue, client=client).send_messages(
        ServiceBusMessage("sent"), timeout=SEND_TIMEOUT_S
    )


async def receive_with(sdk: Sdk, client: Any, queue: str) -> list[str]:
    return bodies(
        await sdk.receiver(queue, client=client).receive_messages(max_wait_time=RECEIVE_TIMEOUT_S)
    )


@pytest.mark.parametrize("wrong", ["key", "name"])
async def test_a_wrong_key_and_an_unknown_rule_are_refused_alike(
    sdk: Sdk, queue: str, broker: BrokerProcess, wrong: str
) -> None:
    """M6: nobody gets in, and nobody learns which of the two was wrong."""
    name, key = broker.root_rule
    client = client_of(sdk, broker, name, KEY)
    if wrong == "name":
        client = client_of(sdk, broker, "NoSuchRule", key)

    with pytest.raises(ServiceBusAuthenticationError):
        await send_with(sdk, client, queue)
    with pytest.raises(ServiceBusAuthenticationError):
        await receive_with(sdk, client, queue)
    assert broker.queue(queue)["active_message_count"] == 0


async def test_a_claim_opens_one_direction(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M6: Send sends, Listen receives, Manage does both, each on its entity only."""
    queue = make_queue(
        authorization_rules=[
            rule("sender", "Send"),
            rule("listener", "Listen"),
            rule("manager", "Manage", "Send", "Listen"),
        ]
    )
    other = make_queue()
    sender, listener, manager = (
        client_of(sdk, broker, name) for name in ("sender", "listener", "manager")
    )

    await send_with(sdk, sender, queue)
    with pytest.raises(ServiceBusAuthorizationError):
        await receive_with(sdk, sender, queue)
    with pytest.raises(ServiceBusAuthorizationError):
        await send_with(sdk, listener, queue)
    assert await receive_with(sdk, listener, queue) == ["sent"]
    await send_with(sdk, manager, queue)
    assert await receive_with(sdk, manager, queue) == ["sent"]
    # The second key of a rule is as good as the first
    await send_with(sdk, client_of(sdk, broker, "sender", OTHER_KEY), queue)
    # On another queue the rule means nothing
    with pytest.raises(ServiceBusAuthenticationError):
        await send_with(sdk, sender, other)


async def test_management_needs_the_claim_of_its_operation(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M6: a sender may schedule and not peek, a listener the reverse."""
    queue = make_queue(authorization_rules=[rule("sender", "Send"), rule("listener", "Listen")])
    listener = sdk.receiver(queue, client=client_of(sdk, broker, "listener"))
    spy = sdk.receiver(queue, client=client_of(sdk, broker, "sender"))
    await send_with(sdk, client_of(sdk, broker, "sender"), queue)

    assert bodies(await listener.peek_messages()) == ["sent"]
    with pytest.raises(ServiceBusAuthorizationError):
        await spy.peek_messages()


async def test_a_rule_of_the_namespace_opens_every_queue(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M6: one rule, all queues, and it ends when the rule is deleted."""
    first, second = make_queue(), make_queue()
    name = f"rule-{first}"
    made = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": ["Send"]})
    client = client_of(sdk, broker, name, made["primary_key"])

    for queue in (first, second):
        await send_with(sdk, client, queue)
    with pytest.raises(ServiceBusAuthorizationError):
        await receive_with(sdk, client, first)

    broker.admin("DELETE", f"/namespaces/demo/rules/{name}")
    with pytest.raises(ServiceBusAuthenticationError):
        await send_with(sdk, client_of(sdk, broker, name, made["primary_key"]), first)


@pytest.mark.parametrize("how", ["named key", "token", "connection string"])
async def test_every_form_of_credential_opens_the_door(
    sdk: Sdk, queue: str, broker: BrokerProcess, how: str
) -> None:
    """M6, M10: a key, a ready token, and a connection string that holds a token."""
    host = f"localhost:{broker.port}"
    token = broker.token(path=queue)
    if how == "named key":
        client = sdk.client_with(host, AzureNamedKeyCredential(*broker.root_rule))
    elif how == "token":
        client = sdk.client_with(host, AzureSasCredential(token))
    else:
        client = sdk.client(
            f"Endpoint=sb://{host};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        )

    await send_with(sdk, client, queue)
    assert await receive_with(sdk, client, queue) == ["sent"]


async def test_a_token_opens_only_what_it_names(
    sdk: Sdk, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """M6: signed for one queue, it is worth nothing at another."""
    queue, other = make_queue(), make_queue()
    client = sdk.client_with(
        f"localhost:{broker.port}", AzureSasCredential(broker.token(path=queue))
    )

    await send_with(sdk, client, queue)
    with pytest.raises(ServiceBusError):
        await send_with(sdk, client, other)
    assert broker.queue(other)["active_message_count"] == 0


class Optimist:
    """A credential that believes in its token whatever is written in it."""

    def __init__(self, token: str) -> None:
        self._token = AccessToken(token, int(time.time()) + 3_600)

    def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:
        return self._token


class AsyncOptimist(Optimist):
    async def get_token(self, *_scopes: str, **_options: Any) -> AccessToken:  # type: ignore[override]
        return self._token


async def test_a_token_that_has_expired_is_refused(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M6: the expiry is part of what was signed, and the broker reads it."""
    credential = Optimist if sdk.flavour == "sync" else AsyncOptimist
    host = f"localhost:{broker.port}"
    await send_with(sdk, sdk.client_with(host, credential(broker.token())), queue)

    stale = credential(broker.token(expires_in_s=-10))
    with pytest.raises(ServiceBusAuthenticationError):
        await send_with(sdk, sdk.client_with(host, stale), queue)


def believe_in_the_token(opened: Any) -> None:
    """Keep the client from looking at the time itself, so that the broker has to act."""
    authenticator = unwrapped(opened)._handler._cbs_authenticator
    authenticator._expires_on = int(time.time()) + 3_600


async def test_a_link_ends_with_its_token(sdk: Sdk, queue: str, broker: BrokerProcess) -> None:
    """M6: soon after the token's end neither sending nor receiving goes on."""
    token = broker.token(path=queue, expires_in_s=TOKEN_LIFE_S)
    expires_s = time.monotonic() + TOKEN_LIFE_S
    client = sdk.client_with(f"localhost:{broker.port}", AzureSasCredential(token))
    sender, receiver = sdk.sender(queue, client=client), sdk.receiver(queue, client=client)
    await sender.send_messages(ServiceBusMessage("in time"), timeout=SEND_TIMEOUT_S)
    held = await receive_one(receiver)
    for opened in (sender, receiver):
        believe_in_the_token(opened)

    await asyncio.sleep(max(0.0, expires_s - time.monotonic()) + 1)

    for attempt in (
        sender.send_messages(ServiceBusMessage("late"), timeout=SEND_TIMEOUT_S),
        receiver.complete_message(held),
        receiver.receive_messages(max_wait_time=RECEIVE_TIMEOUT_S),
    ):
        with pytest.raises(ServiceBusError):
            await attempt
    # Nothing got in or out meanwhile
    assert broker.queue(queue)["active_message_count"] == 1
    assert broker.queue(queue)["locked_message_count"] == 1


async def test_a_renewed_token_keeps_the_link_open(
    sdk: Sdk, queue: str, broker: BrokerProcess
) -> None:
    """M6, M10: the client shows a fresh token before the old one ends, and nobody notices."""
    expires_s = time.monotonic() + TOKEN_LIFE_S
    credential = AzureSasCredential(broker.token(path=queue, expires_in_s=TOKEN_LIFE_S))
    client = sdk.client_with(f"localhost:{broker.port}", credential)
    sender = sdk.sender(queue, client=client)
    await sender.send_messages(ServiceBusMessage("first"), timeout=SEND_TIMEOUT_S)

    # When the client believes that the end is near, it asks for a token and shows it
    credential.update(broker.token(path=queue))
    authenticator = unwrapped(sender)._handler._cbs_authenticator
    authenticator._refresh_window = TOKEN_LIFE_S
    await sender.send_messages(ServiceBusMessage("renews"), timeout=SEND_TIMEOUT_S)

    # Then the link outlives the first token
    await asyncio.sleep(max(0.0, expires_s - time.monotonic()) + 1)
    handler = unwrapped(sender)._handler
    await sender.send_messages(ServiceBusMessage("last"), timeout=SEND_TIMEOUT_S)
    assert unwrapped(sender)._handler is handler
    assert bodies(await receive(sdk.receiver(queue), 3)) == ["first", "renews", "last"]
