"""Cases 140 to 144: administrative calls that are refused, again and again and half-way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adversarial.prober import attacked
from tests.support.broken_stores import broken_store
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import Accepted
from twinbus.broker.access.sas import make_token
from twinbus.common.connection_string import parse_connection_string

TENANT = "tenant"
IN_TENANT = f"/namespaces/{TENANT}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One with a second namespace, which belongs to the attacker."""
    data = tmp_path / "data"
    path = data / f"namespace-{TENANT}" / "store.db"
    path.parent.mkdir(parents=True)
    broken_store(path, "a forward to nowhere")
    with BrokerProcess(data, arguments=("--namespace", f"{TENANT}:0")) as running:
        yield running


class Tenant:
    """Whoever may manage the second namespace, and nothing else."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        served = broker.announcement["namespaces"][TENANT]
        self.port: int = served["port"]
        self._parsed = parse_connection_string(served["connection_string"])

    def _token(self, port: int) -> str:
        return make_token(
            resource=f"sb://localhost:{port}/",
            rule_name=self._parsed.shared_access_key_name or "",
            key=self._parsed.shared_access_key or "",
            expires_s=int(time.time()) + 3_600,
        )

    def http(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        status, _told, answer = self._broker.raw_http(
            method,
            IN_TENANT + path,
            None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self._token(self._broker.admin_port)},
        )
        return status, json.loads(answer) if answer else None

    def client(self) -> Any:
        return connected(self.port, self._token(self.port))

    def everything(self) -> Any:
        """All that can be seen of the namespace: properties, counts, subscriptions, rules."""
        topics = self.http("GET", "/topics")[1]
        below = [self.http("GET", f"/topics/{topic['path']}/subscriptions")[1] for topic in topics]
        queues = self.http("GET", "/queues")[1]
        for entity in [*queues, *topics, *(each for found in below for each in found)]:
            entity.pop("accessed_at_ms", None)
        return queues, topics, below

    def prepare(self) -> None:
        """A queue and a subscription more, and messages; ``billing`` forwards to nowhere."""
        assert self.http("PUT", "/queues/kept", {})[0] == 201
        assert self.http("PUT", "/topics/news/subscriptions/a", {})[0] == 201
        with self.client() as client:
            for path in ("billing", "kept", "news"):
                payload = Message(body=path.encode()).encode()
                assert client.send(client.attach_sender(path), payload) == Accepted()

    def received(self, path: str) -> str:
        with self.client() as client:
            client.attach_receiver(path).grant(1)
            event = client.wait_for(DeliveryReceived)
            body = Message.decode(event.payload).body
            assert isinstance(body, bytes)
            return body.decode()


def test_case_140_a_refused_reset_changes_nothing(own_broker: BrokerProcess) -> None:
    """M15: a reset that keeps entities, refused again and again; a restart opens."""
    tenant = Tenant(own_broker)
    tenant.prepare()
    before = tenant.everything()

    # When a full disk refuses the tenant's resets while a prober works in another namespace
    with attacked(own_broker) as attack:
        status, fault = tenant.http("POST", "/faults", {"kind": "disk-full"})
        assert status == 201, fault
        statuses = {
            tenant.http("POST", "/reset", {"keep_entities": bool(number % 2)})[0]
            for number in range(3)
        }
        assert tenant.http("DELETE", f"/faults/{fault['id']}")[0] == 200
        assert statuses == {503}
        attack.lasted(1.5)

    # Then nothing has changed, and messages are where they were
    assert tenant.everything() == before
    own_broker.kill()
    own_broker.restart()
    tenant = Tenant(own_broker)
    assert [tenant.received(path) for path in ("kept", "news/subscriptions/a")] == ["kept", "news"]


def test_case_141_a_reset_with_a_forward_to_nowhere(own_broker: BrokerProcess) -> None:
    """M15: it used to stop the namespace and leave a store that no broker could open."""
    tenant = Tenant(own_broker)
    tenant.prepare()
    with attacked(own_broker) as attack:
        for _ in range(5):
            status, answer = tenant.http("POST", "/reset", {"keep_entities": True})
            assert status == 200, answer
        attack.lasted(1.5)
    with tenant.client() as client:
        for path in ("billing", "kept", "news"):
            payload = Message(body=b"new").encode()
            assert client.send(client.attach_sender(path), payload) == Accepted()
    own_broker.kill()
    own_broker.restart()
    tenant = Tenant(own_broker)
    (billing,) = [each for each in tenant.http("GET", "/queues")[1] if each["path"] == "billing"]
    assert (billing["forward_to"], billing["active_message_count"]) == ("gone", 1)
    assert [tenant.received(path) for path in ("kept", "news/subscriptions/a")] == ["new", "new"]


REFUSED: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("PUT", "/queues/kept", {}, 409),
    ("PUT", "/queues/news", {}, 409),
    ("PUT", "/topics/kept", {}, 409),
    ("PUT", "/queues/new", {"forward_to": "nowhere"}, 400),
    ("PUT", "/queues/new", {"forward_to": "new"}, 400),
    ("PUT", "/topics/news/subscriptions/b", {"rules": [{"name": "x"}, {"name": "x"}]}, 400),
)


def test_case_142_refused_calls_by_the_hundred(own_broker: BrokerProcess) -> None:
    """M13, M15: calls that are refused, from two sides; nothing has changed afterwards."""
    tenant = Tenant(own_broker)
    tenant.prepare()
    before = tenant.everything()
    wrong: list[tuple[int, Any]] = []

    def ask(ends_s: float) -> None:
        while time.monotonic() < ends_s:
            for method, path, body, expected in REFUSED:
                status, answer = tenant.http(method, path, body)
                if status != expected:
                    wrong.append((status, answer))

    with attacked(own_broker) as attack:
        ends_s = time.monotonic() + 3.0
        threads = [threading.Thread(target=ask, args=(ends_s,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        attack.lasted(3.0)
    assert wrong == []
    assert tenant.everything() == before
