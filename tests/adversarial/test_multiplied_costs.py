"""Two bounded things whose product is not (cases 180 to 183): links by tokens, changes, watches.

A connection may have a thousand links and show a thousand tokens; ten connections have ten thousand
links. Whatever goes over one for each of the other holds the loop for a second. Each case has a
prober on another entity (prober.py).
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from tests.adversarial.prober import attacked
from tests.adversarial.raw_peer import (
    CBS_REPLIES,
    CBS_REQUESTS,
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    flow,
    receiver,
    sender,
    token_request,
    transfer,
)
from tests.adversarial.talk import BATCH, batch_of
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import Accepted, Attach, Disposition, Transfer
from twinbus.broker.namespace.background_tasks import entities_kept_by

KEYS = {"primary_key": "A" * 43 + "=", "secondary_key": "B" * 43 + "="}
EVERY = ["Send", "Listen", "Manage"]
LINK = FIRST_FREE_HANDLE
LINK_COUNT = 1_000
# A connection may put 600 in a minute, and has put its first one before.
TOKEN_COUNT = 590
CHANGE_COUNT = 10
WIDE = 1 << 30
WATCHED_COUNT = 900


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("multiplied") / "data") as broker:
        yield broker
        assert broker.is_alive, broker.log()
        assert "Traceback" not in broker.log(), broker.log()[-4_000:]


def own_rule() -> dict[str, object]:
    return {"name": "tenant", "claims": EVERY, **KEYS}


def token_for(broker: BrokerProcess, path: str) -> str:
    return broker.token(path=path, rule=("tenant", KEYS["primary_key"]))


def tenant_of(broker: BrokerProcess, entity: str) -> RawPeer:
    return RawPeer(broker.port, token_for(broker, entity)).to(Stage.AUTHORIZED)


def attach(peer: RawPeer, *attaches: bytes) -> None:
    peer.say(*attaches)
    for _ in attaches:
        peer.wait_for(Attach)


class Atom:
    """The administration protocol on one connection, with the tenant's own key."""

    def __init__(self, broker: BrokerProcess, entity: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=30)
        self._headers = {"Authorization": token_for(broker, entity)}

    def close(self) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, updates: bool = False
    ) -> bytes:
        headers = {**self._headers, **({"If-Match": "*"} if updates else {})}
        self._connection.request(method, f"/{path}?api-version=2021-05", body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status in (200, 201), content
        return content


def cpu_s(broker: BrokerProcess) -> float:
    times = psutil.Process(broker.pid).cpu_times()
    return float(times.user + times.system)


def change_again_and_again(atom: Atom, entity: str) -> None:
    described = atom.ask("GET", entity)
    for _ in range(CHANGE_COUNT):
        atom.ask("PUT", entity, described, updates=True)
        time.sleep(0.1)


def test_case_180_a_thousand_links_with_hundreds_of_tokens(tenancy: BrokerProcess) -> None:
    """M13: whether a link is still allowed is not looked up in every token."""
    topic = tenancy.fresh_topic(authorization_rules=[own_rule()])
    with tenant_of(tenancy, topic) as peer, attacked(tenancy) as under:
        peer.say(flow(handle=CBS_REPLIES, link_credit=2 * TOKEN_COUNT))
        for number in range(TOKEN_COUNT):
            token = token_for(tenancy, f"{topic}/subscriptions/s{number}")
            request = token_request(token, tenancy.port)
            peer.say(transfer(CBS_REQUESTS, 1 + number, request, settled=True))
        for _ in range(TOKEN_COUNT):
            peer.wait_for(Transfer)
        attach(peer, *[sender(topic, LINK + number) for number in range(LINK_COUNT)])
        with closing(Atom(tenancy, topic)) as atom:
            change_again_and_again(atom, topic)
        under.lasted(3.0)


def test_case_181_changes_of_an_entity_beside_thousands_of_links(tenancy: BrokerProcess) -> None:
    """M13: a change looks at the links that it concerns."""
    queue = tenancy.fresh_queue(authorization_rules=[own_rule()])
    peers = [tenant_of(tenancy, queue) for _ in range(10)]
    try:
        for peer in peers:
            attach(peer, *[sender(queue, LINK + number) for number in range(LINK_COUNT)])
        with attacked(tenancy) as under, closing(Atom(tenancy, queue)) as atom:
            before_s = cpu_s(tenancy)
            change_again_and_again(atom, queue)
            spent_s = cpu_s(tenancy) - before_s
            under.lasted(2.0)
        assert spent_s / CHANGE_COUNT < 0.03, f"{spent_s:.2f} s for {CHANGE_COUNT} changes"
    finally:
        for peer in peers:
            peer.close()


def test_case_182_hundreds_of_entities_that_are_deleted_when_idle(tenancy: BrokerProcess) -> None:
    """M13: each has a link that keeps it, and all of them are looked at four times a second."""
    topic = tenancy.fresh_topic(authorization_rules=[own_rule()])
    idle = (
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        b"<SubscriptionDescription "
        b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        b"<AutoDeleteOnIdle>PT2S</AutoDeleteOnIdle></SubscriptionDescription></content></entry>"
    )
    with (
        tenant_of(tenancy, topic) as peer,
        closing(Atom(tenancy, topic)) as atom,
        attacked(tenancy) as under,
    ):
        for number in range(WATCHED_COUNT):
            name = f"{topic}/subscriptions/s{number}"
            atom.ask("PUT", name, idle)
            attach(peer, receiver(name, LINK + number))
        under.lasted(time.monotonic() - under.began_s + 6.0)
        found = tenancy.subscription(topic, f"s{WATCHED_COUNT // 2}")
        assert found["auto_delete_on_idle_ms"] == 2_000
        tenancy.admin("DELETE", f"/namespaces/{tenancy.namespace}/topics/{topic}")


@pytest.mark.parametrize(
    ("link_path", "kept"),
    [
        ("orders", {"orders"}),
        ("orders/$management", {"orders", "orders/$management"}),
        ("orders/eu", {"orders/eu"}),
        ("news/subscriptions/all", {"news/subscriptions/all", "news"}),
        (
            "a/news/subscriptions/all/$deadletterqueue/$management",
            {
                "a/news/subscriptions/all/$deadletterqueue/$management",
                "a/news/subscriptions/all/$deadletterqueue",
                "a/news/subscriptions/all",
                "a/news",
            },
        ),
    ],
)
def test_case_182_a_link_keeps_its_entity_and_of_a_subscription_the_topic(
    link_path: str, kept: set[str]
) -> None:
    assert set(entities_kept_by(link_path)) == kept


def test_case_183_a_range_of_deliveries_that_were_settled_long_ago(tenancy: BrokerProcess) -> None:
    """M13: the same twelve thousand, named in every frame."""
    link_count, round_count = 16, 750
    queue = tenancy.fresh_queue(authorization_rules=[own_rule()], lock_duration_ms=300_000)
    with connected(tenancy.port, token_for(tenancy, queue)) as client:
        sending = client.attach_sender(queue)
        for _ in range(3):
            batch = batch_of(*[Message(body=b"x").encode()] * 4_000)
            assert client.send(sending, batch, message_format=BATCH) == Accepted()
    with tenant_of(tenancy, queue) as peer:
        attach(peer, *[receiver(queue, LINK + number) for number in range(link_count)])
        last = 0
        for count in range(round_count):
            granted = {"link_credit": 1, "delivery_count": count, "incoming_window": WIDE}
            peer.say(*[flow(handle=LINK + number, **granted) for number in range(link_count)])
            for _ in range(link_count):
                last = peer.wait_for(Transfer).delivery_id
            peer.forget_heard()
        everything = Disposition(True, first=0, last=last, settled=True, state=Accepted())
        peer.say(everything)
        with attacked(tenancy) as under:
            while time.monotonic() < under.began_s + 3.0:
                peer.say(*[everything] * 50)
                time.sleep(0.01)
