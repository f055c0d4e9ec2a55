"""Rights that spread (cases 145 to 152): from an entity to others, and beyond their end.

The tenant holds every claim on one entity and nothing else. Whatever he does with it must stay
there: not below its path, not through a forward, not after his rule is gone.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

import pytest

from tests.adversarial.raw_http import HttpAnswer, read_answer, request, say
from tests.adversarial.talk import ask, longs, put
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.message.message import Message
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec, QueueDescription
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.common.sas_token import make_token

UNAUTHORIZED = "amqp:unauthorized-access"
OWNER, NEIGHBOUR = ("owner", "o" * 44), ("neighbour", "n" * 44)
EVERY = ["Send", "Listen", "Manage"]
ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_RIGHTS = "".join(f"<AccessRights>{claim}</AccessRights>" for claim in EVERY)
OWN_RULE = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    f"<Rights>{_RIGHTS}</Rights><KeyName>{OWNER[0]}</KeyName>"
    "</AuthorizationRule></AuthorizationRules>"
)
FORWARD = "ServiceBusSupplementaryAuthorization"
FORWARD_DEAD = "ServiceBusDlqSupplementaryAuthorization"
QUEUES = "/namespaces/demo/queues"


def rule(name: str, key: str, claims: list[str]) -> dict[str, Any]:
    return {"name": name, "claims": claims, "primary_key": key, "secondary_key": key * 2}


@pytest.fixture
def tenant(broker: BrokerProcess) -> str:
    """A queue whose owner holds every claim on it."""
    return broker.fresh_queue(authorization_rules=[rule(*OWNER, EVERY)])


@pytest.fixture
def target(broker: BrokerProcess) -> str:
    """Somebody else's queue, to which a neighbour may send."""
    return broker.fresh_queue(authorization_rules=[rule(*NEIGHBOUR, ["Send"])])


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    broker.create_topic(name, "s", authorization_rules=[rule(*OWNER, EVERY)])
    return name


def atom(
    broker: BrokerProcess,
    method: str,
    path: str,
    properties: dict[str, str] | None = None,
    *,
    signer: tuple[str, str] | None = OWNER,
    resource: str | None = None,
    kind: str = "QueueDescription",
    update: bool = False,
    **headers: str,
) -> HttpAnswer:
    """One request of the administration protocol, with a token for ``resource``."""
    token = broker.token(
        port=broker.admin_port, rule=signer, path=path if resource is None else resource
    )
    body = b""
    if properties is not None:
        inside = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in properties.items())
        # What an update leaves out is gone; a rule that comes without its key keeps it.
        inside += OWN_RULE if update else ""
        body = (
            f'<entry xmlns="{ATOM}"><content type="application/xml">'
            f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
        ).encode()
        headers["Content-Type"] = "application/atom+xml"
    if update:
        headers["If-Match"] = "*"
    data = request(method, f"/{path}?api-version=2021-05", body, token=token, **headers)
    return say(broker.admin_port, data, timeout_s=5.0)


# -- 145, 146: a rule of an entity covers the entity and its own parts -------------------------


@pytest.mark.parametrize("below", ["private", "x-servicebus-transfer/0", "a/b/c", "Private"])
def test_case_145_the_key_of_a_queue_does_not_open_queues_below_its_path(
    broker: BrokerProcess, tenant: str, below: str
) -> None:
    """M14: neither over AMQP nor over HTTP, backlog queues not either."""
    path = f"{tenant}/{below}"
    broker.create_queue(path)
    with WireClient(broker.port).open() as client:
        assert client.put_token(broker.token(path=tenant, rule=OWNER)) == 202
        # A token made out to the lower path is refused as one that nobody signed
        status, sentence = client.show_token(broker.token(path=path, rule=OWNER))
        assert status == 401
        assert_well_put(sentence, OWNER[1])
        # What is the tenant's own is open
        assert client.attach_sender(tenant).peer.target is not None
        assert client.attach_receiver(f"{tenant}/$deadletterqueue").peer.source is not None
        assert ask(client, tenant, "peek-message", _PEEK).status == 204
        # and what is below it is not
        for link in (
            client.attach_sender(path),
            client.attach_receiver(path),
            client.attach_receiver(f"{path}/$deadletterqueue"),
            client.attach_sender(f"{path}/$management"),
        ):
            assert client.refusal(link) == UNAUTHORIZED
    for method, properties in (("GET", None), ("PUT", {}), ("DELETE", None)):
        for resource in (tenant, path):
            for update in (False, True):
                atom(
                    broker, method, path, properties, resource=resource, update=update
                ).assert_refused(401, OWNER[1])
    atom(broker, "PUT", f"{tenant}/new", {}, resource=tenant).assert_refused(401, OWNER[1])
    assert atom(broker, "GET", tenant).status == 200
    assert broker.queue(path)["active_message_count"] == 0


_PEEK = {"from-sequence-number": longs(1).items[0], "message-count": 1}


def test_case_145_the_key_of_a_topic_opens_its_subscriptions_and_nothing_below(
    broker: BrokerProcess, topic: str
) -> None:
    """M14: subscriptions, their dead letters and rules; not a queue that stands below the topic."""
    below = f"{topic}/private"
    broker.create_queue(below)
    with WireClient(broker.port).open() as client:
        assert client.put_token(broker.token(path=topic, rule=OWNER)) == 202
        assert client.attach_receiver(f"{topic}/Subscriptions/s").peer.source is not None
        dead = f"{topic}/subscriptions/s/$deadletterqueue"
        assert client.attach_receiver(dead).peer.source is not None
        assert client.refusal(client.attach_receiver(below)) == UNAUTHORIZED
    subscription = f"{topic}/subscriptions/s"
    for path in (subscription, f"{subscription}/rules", f"{topic}/subscriptions"):
        assert atom(broker, "GET", path, resource=topic).status == 200
    made = atom(
        broker,
        "PUT",
        f"{topic}/subscriptions/more",
        {},
        resource=topic,
        kind="SubscriptionDescription",
    )
    assert made.status == 201
    atom(broker, "GET", below, resource=topic).assert_refused(401, OWNER[1])


def test_case_146_a_rule_of_the_namespace_may_sign_for_a_prefix(broker: BrokerProcess) -> None:
    """M6: as SECURITY.md recommends it for the backlog queues of one primary; whole segments."""
    name = f"sender-{uuid4().hex[:8]}"
    made = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": ["Send"]})
    primary = f"p{uuid4().hex[:8]}"
    queues = [f"{primary}/x-servicebus-transfer/{number}" for number in range(2)]
    others = [primary, f"{primary}/x-servicebus-transfer2/0"]
    for path in (*queues, *others):
        broker.create_queue(path)
    token = broker.token(path=f"{primary}/x-servicebus-transfer", rule=(name, made["primary_key"]))
    with connected(broker.port, token) as client:
        for path in queues:
            assert (
                client.send(client.attach_sender(path), Message(body=b"x").encode()) == Accepted()
            )
        for path in others:
            assert client.refusal(client.attach_sender(path)) == UNAUTHORIZED
    broker.admin("DELETE", f"/namespaces/demo/rules/{name}")


# -- 147 to 149: a forward needs Send on its target --------------------------------------------

FORWARDS = {"ForwardTo": FORWARD, "ForwardDeadLetteredMessagesTo": FORWARD_DEAD}


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("update", [False, True], ids=["case-147-create", "case-147-update"])
def test_case_147_manage_on_one_entity_does_not_send_to_another(
    broker: BrokerProcess, topic: str, tenant: str, target: str, name: str, update: bool
) -> None:
    """M14: 401 without a token for the target, with one for something else, or without Send."""
    path, kind, resource = tenant, "QueueDescription", tenant
    if not update:
        path, kind, resource = f"{topic}/subscriptions/new", "SubscriptionDescription", topic
    wanted = {name: f"sb://localhost:{broker.port}/{target}"}
    listener = f"listener-{uuid4().hex[:8]}"
    made = broker.admin("PUT", f"/namespaces/demo/rules/{listener}", {"claims": ["Listen"]})
    wrong = [
        {},
        {FORWARDS[name]: "nonsense"},
        {FORWARDS[name]: broker.token(port=broker.admin_port, path=resource, rule=OWNER)},
        {FORWARDS[name]: broker.token(port=broker.admin_port, path=target, rule=OWNER)},
        {FORWARDS[name]: broker.token(path=target, rule=(listener, made["primary_key"]))},
        {FORWARDS[name]: broker.token(path=target, rule=NEIGHBOUR, expires_in_s=-1)},
        # The one for the other kind of forward
        {
            {FORWARD: FORWARD_DEAD, FORWARD_DEAD: FORWARD}[FORWARDS[name]]: broker.token(
                path=target, rule=NEIGHBOUR
            )
        },
    ]
    for headers in wrong:
        atom(
            broker, "PUT", path, wanted, resource=resource, kind=kind, update=update, **headers
        ).assert_refused(401, OWNER[1], NEIGHBOUR[1])
    assert broker.queue(tenant)["forward_to"] is None
    assert "new" not in str(broker.admin("GET", f"/namespaces/demo/topics/{topic}/subscriptions"))

    # With Send on the target it is done
    right = {FORWARDS[name]: broker.token(path=target, rule=NEIGHBOUR)}
    done = atom(broker, "PUT", path, wanted, resource=resource, kind=kind, update=update, **right)
    assert done.status == (200 if update else 201)
    broker.admin("DELETE", f"/namespaces/demo/rules/{listener}")


def test_case_147_a_forward_inside_the_scope_of_the_callers_token_needs_no_other(
    broker: BrokerProcess,
) -> None:
    """M14: a rule of the namespace that signs for a prefix covers source and target alike."""
    name, prefix = f"part-{uuid4().hex[:8]}", f"part{uuid4().hex[:8]}"
    made = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": EVERY})
    signer = (name, made["primary_key"])
    outside = broker.fresh_queue()
    for path in (f"{prefix}/a", f"{prefix}/b"):
        assert atom(broker, "PUT", path, {}, signer=signer, resource=prefix).status == 201
    source = f"{prefix}/a"
    for target, status in ((f"{prefix}/b", 200), (outside, 401)):
        done = atom(
            broker,
            "PUT",
            source,
            {"ForwardTo": f"sb://localhost/{target}"},
            signer=signer,
            resource=prefix,
            update=True,
        )
        assert done.status == status
    assert broker.queue(source)["forward_to"] == f"{prefix}/b"
    broker.admin("DELETE", f"/namespaces/demo/rules/{name}")


def test_case_148_a_forward_that_stays_needs_no_new_proof_and_a_changed_one_does(
    broker: BrokerProcess, target: str
) -> None:
    """M14: the owner of the namespace made it; the tenant may go on with it, or end it."""
    other = broker.fresh_queue()
    source = broker.fresh_queue(forward_to=target, authorization_rules=[rule(*OWNER, EVERY)])
    keep = {"ForwardTo": f"sb://localhost/{target}", "MaxDeliveryCount": "7"}
    assert atom(broker, "PUT", source, keep, update=True).status == 200
    assert broker.queue(source)["max_delivery_count"] == 7
    moved = {**keep, "ForwardTo": f"sb://localhost/{other}"}
    atom(broker, "PUT", source, moved, update=True).assert_refused(401, OWNER[1])
    more = {**keep, "ForwardDeadLetteredMessagesTo": f"sb://localhost/{target}"}
    atom(broker, "PUT", source, more, update=True).assert_refused(401, OWNER[1])
    assert broker.queue(source)["forward_to"] == target
    assert atom(broker, "PUT", source, {}, update=True).status == 200
    assert broker.queue(source)["forward_to"] is None
    # Once ended, it is a new one
    atom(broker, "PUT", source, keep, update=True).assert_refused(401, OWNER[1])


def test_case_148_two_opinions_about_the_target_are_refused(
    broker: BrokerProcess, tenant: str, target: str
) -> None:
    """M14: the header that proves it stands once."""
    token = broker.token(port=broker.admin_port, path=tenant, rule=OWNER)
    proof = broker.token(path=target, rule=NEIGHBOUR)
    data = request("GET", f"/{tenant}", token=token, **{FORWARD: proof})
    twice = data.replace(b"\r\n\r\n", f"\r\n{FORWARD.lower()}: x\r\n\r\n".encode())
    say(broker.admin_port, twice, timeout_s=5.0).assert_refused(400, NEIGHBOUR[1])


def test_case_149_a_target_that_is_made_anew_does_not_inherit_forwards(
    broker: BrokerProcess, target: str
) -> None:
    """M14: who might send to the old one might not send to the new one: the forward has ended."""
    source = broker.fresh_queue(
        forward_to=target, forward_dead_lettered_messages_to=target,
        authorization_rules=[rule(*OWNER, EVERY)],
    )  # fmt: skip
    broker.delete_queue(target)
    with connected(broker.port, broker.token()) as client:
        put(client, source, b"waits")
        broker.create_queue(target)
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert broker.counts(target)["active_message_count"] == 0
            time.sleep(0.1)
    found = broker.queue(source)
    assert (found["forward_to"], found["forward_dead_lettered_messages_to"]) == (None, None)
    assert found["active_message_count"] == 1
    atom(
        broker, "PUT", source, {"ForwardTo": f"sb://localhost/{target}"}, update=True
    ).assert_refused(401, OWNER[1])


# -- 150, 151: a connection without a grant is a stranger's ------------------------------------

GRACE_S = 1.0


@asynccontextmanager
async def serving() -> AsyncIterator[RunningNamespace]:
    """A broker in this process that waits for a token for a second."""
    limits = AmqpLimits(token_timeout_s=GRACE_S)
    async with Broker(BrokerOptions(limits=limits)) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        namespace.add_rule("app", Claim.SEND | Claim.LISTEN)
        yield namespace


def token_of(namespace: RunningNamespace, *, expires_in_s: int = 60) -> str:
    found = namespace.access.rules.find("app")
    assert found is not None
    return make_token(
        resource=f"sb://localhost:{namespace.port}/",
        rule_name="app",
        key=found.primary_key,
        expires_s=int(time.time()) + expires_in_s,
    )


def closed_after_s(client: WireClient, timeout_s: float = 10.0) -> float:
    """How long it takes until the broker closes the connection, and says why."""
    began = time.monotonic()
    client.timeout_s = timeout_s
    event = client.wait_for(ConnectionClosed)
    assert event.error is not None and event.error.condition == "amqp:connection:forced"
    assert_well_put(event.error.description)
    return time.monotonic() - began


@pytest.mark.parametrize("has_link", [True, False], ids=["case-150-link", "case-150-no-link"])
async def test_case_150_a_connection_whose_only_rule_was_deleted_is_closed(has_link: bool) -> None:
    """M14: its links at once, itself after the time that a stranger has for a token."""
    async with serving() as namespace:
        token = token_of(namespace)
        client = await asyncio.to_thread(connected, namespace.port, token)
        with client:
            link = await asyncio.to_thread(client.attach_sender, "orders") if has_link else None
            namespace.remove_rule("app")
            if link is not None:
                assert await asyncio.to_thread(client.refusal, link) == UNAUTHORIZED
            waited_s = await asyncio.to_thread(closed_after_s, client)
            assert waited_s > GRACE_S / 2
        await _until_nobody(namespace)


async def test_case_150_a_rule_of_an_entity_that_goes_takes_its_connection_along() -> None:
    """M14: also when the entity itself is deleted, or its rules are replaced."""
    async with serving() as namespace:
        own = AuthorizationRule("own", Claim.SEND, "o" * 44, "p" * 44)
        await namespace.create_queue(
            QueueDescription(path="mine", authorization_rules=RuleSet((own,)))
        )
        token = make_token(
            resource=f"sb://localhost:{namespace.port}/mine",
            rule_name="own",
            key=own.primary_key,
            expires_s=int(time.time()) + 60,
        )
        with await asyncio.to_thread(connected, namespace.port, token) as client:
            await namespace.update_queue(QueueDescription(path="mine"))
            await asyncio.to_thread(closed_after_s, client)


async def test_case_150_a_new_token_in_time_keeps_the_connection() -> None:
    """M10, M14: whose key was changed shows a new token on the same connection and goes on."""
    async with serving() as namespace:
        with await asyncio.to_thread(connected, namespace.port, token_of(namespace)) as client:
            link = await asyncio.to_thread(client.attach_sender, "orders")
            namespace.regenerate_key("app", "primary")
            assert await asyncio.to_thread(client.refusal, link) == UNAUTHORIZED
            assert await asyncio.to_thread(client.put_token, token_of(namespace)) == 202
            await asyncio.sleep(GRACE_S * 2)
            again = await asyncio.to_thread(client.attach_sender, "orders")
            sent = await asyncio.to_thread(client.send, again, Message(body=b"x").encode())
            assert sent == Accepted()


async def test_case_150_the_other_grant_of_a_connection_keeps_it() -> None:
    """M14: one rule of two is deleted."""
    async with serving() as namespace:
        first = token_of(namespace)
        with await asyncio.to_thread(connected, namespace.port, first) as client:
            parsed = namespace.access.rules.rules[0]
            other = make_token(
                resource=f"sb://localhost:{namespace.port}/",
                rule_name=parsed.name,
                key=parsed.primary_key,
                expires_s=int(time.time()) + 60,
            )
            assert await asyncio.to_thread(client.put_token, other) == 202
            link = await asyncio.to_thread(client.attach_sender, "orders")
            namespace.remove_rule("app")
            await asyncio.sleep(GRACE_S * 2)
            sent = await asyncio.to_thread(client.send, link, Message(body=b"x").encode())
            assert sent == Accepted()


@pytest.mark.parametrize("has_link", [True, False], ids=["case-151-link", "case-151-no-link"])
async def test_case_151_a_connection_whose_tokens_have_expired_is_closed(has_link: bool) -> None:
    """M14: a token of two seconds holds no place for ever, with a link or without."""
    async with serving() as namespace:
        token = token_of(namespace, expires_in_s=2)
        with await asyncio.to_thread(connected, namespace.port, token) as client:
            if has_link:
                await asyncio.to_thread(client.attach_sender, "orders")
            await asyncio.to_thread(closed_after_s, client)
        await _until_nobody(namespace)


async def _until_nobody(namespace: RunningNamespace) -> None:
    deadline = time.monotonic() + 10
    while namespace.connection_count:
        assert time.monotonic() < deadline, "the connection was not closed"
        await asyncio.sleep(0.05)


# -- 152: a request that outlives its right ----------------------------------------------------


@pytest.fixture
def passing(broker: BrokerProcess) -> Iterator[tuple[str, str]]:
    name = f"passing-{uuid4().hex[:8]}"
    made = broker.admin("PUT", f"/namespaces/demo/rules/{name}", {"claims": EVERY})
    yield name, made["primary_key"]
    broker.http(
        "DELETE", f"/namespaces/demo/rules/{name}", token=broker.token(port=broker.admin_port)
    )


@pytest.mark.parametrize("way", ["case-152-atom", "case-152-json"])
def test_case_152_a_body_that_comes_after_its_rule_was_deleted_changes_nothing(
    broker: BrokerProcess, passing: tuple[str, str], way: str
) -> None:
    """M14: the token is good when the head comes; when the body comes, the rule is gone."""
    name = f"late-{uuid4().hex[:8]}"
    token = broker.token(port=broker.admin_port, rule=passing)
    if way.endswith("atom"):
        content = f'<QueueDescription xmlns="{SERVICE_BUS}"/>'
        body = f'<entry xmlns="{ATOM}"><content>{content}</content></entry>'.encode()
        data = request("PUT", f"/{name}?api-version=2021-05", body, token=token)
    else:
        body = b'{"max_delivery_count": 7}'
        data = request("PUT", f"{QUEUES}/{name}", body, token=token)
    with socket.create_connection(("127.0.0.1", broker.admin_port), timeout=5) as connection:
        connection.sendall(data[:-5])
        time.sleep(0.3)
        broker.admin("DELETE", f"/namespaces/demo/rules/{passing[0]}")
        connection.sendall(data[-5:])
        read_answer(connection).assert_refused(401, passing[1])
    assert name not in [each["path"] for each in broker.admin("GET", QUEUES)]


async def test_case_184_a_claim_that_a_rule_lost_is_lost_to_its_connections() -> None:
    """M14: a rule that may no longer send does not send over links that are open already."""
    async with serving() as namespace:
        before = AuthorizationRule("own", Claim.SEND | Claim.LISTEN, "o" * 44, "p" * 44)
        after = AuthorizationRule("own", Claim.LISTEN, "o" * 44, "p" * 44)
        await namespace.create_queue(
            QueueDescription(path="mine", authorization_rules=RuleSet((before,)))
        )
        token = make_token(
            resource=f"sb://localhost:{namespace.port}/mine",
            rule_name="own",
            key=before.primary_key,
            expires_s=int(time.time()) + 60,
        )
        with await asyncio.to_thread(connected, namespace.port, token) as client:
            link = await asyncio.to_thread(client.attach_sender, "mine")
            await namespace.update_queue(
                QueueDescription(path="mine", authorization_rules=RuleSet((after,)))
            )
            assert await asyncio.to_thread(client.refusal, link) == UNAUTHORIZED
            assert await asyncio.to_thread(client.put_token, token) == 202
            again = await asyncio.to_thread(client.attach_sender, "mine")
            assert await asyncio.to_thread(client.refusal, again) == UNAUTHORIZED
