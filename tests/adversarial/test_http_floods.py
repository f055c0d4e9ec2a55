"""Requests over HTTP have turns like frames (case 189), and connections are shared (case 190).

Each HTTP connection waits for its answer, so none of them is ever fast; two hundred are two hundred
requests in every iteration of the loop, unless somebody says whose turn it is.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.prober import attacked
from tests.adversarial.raw_peer import RawPeer, Stage
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected

KEYS = {"primary_key": "A" * 43 + "=", "secondary_key": "B" * 43 + "="}
CONNECTION_COUNT = 200
ATTACK_S = 4.0


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("http") / "data") as broker:
        yield broker
        assert broker.is_alive, broker.log()
        assert "Traceback" not in broker.log(), broker.log()[-4_000:]


def own_queue(broker: BrokerProcess, *claims: str) -> tuple[str, str]:
    rule = {"name": "tenant", "claims": claims, **KEYS}
    queue = broker.fresh_queue(authorization_rules=[rule])
    return queue, broker.token(path=queue, rule=("tenant", KEYS["primary_key"]))


def flood(port: int, request: bytes, at_once: int) -> int:
    """Ask on many connections, ``at_once`` requests before an answer; how many answers came."""
    selector, answers = selectors.DefaultSelector(), 0
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTION_COUNT)]
    try:
        for each in sockets:
            each.sendall(request * at_once)
            selector.register(each, selectors.EVENT_READ)
        until_s = time.monotonic() + ATTACK_S
        while time.monotonic() < until_s:
            for key, _events in selector.select(0.1):
                each = key.fileobj
                assert isinstance(each, socket.socket)
                data = each.recv(1 << 16)
                assert data, "the connection was closed"
                count = data.count(b"HTTP/1.1 ")
                answers += count
                each.sendall(request * count)
    finally:
        selector.close()
        for each in sockets:
            each.close()
    return answers


@pytest.mark.parametrize("at_once", [1, 20])
def test_case_189_requests_of_a_key_on_many_connections(
    tenancy: BrokerProcess, at_once: int
) -> None:
    """M13: somebody who may manage one queue asks for it, again and again."""
    queue, token = own_queue(tenancy, "Send", "Listen", "Manage")
    head = f"GET /{queue}?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\n"
    request = f"{head}Authorization: {token}\r\n\r\n".encode()
    with attacked(tenancy):
        assert flood(tenancy.port, request, at_once) > CONNECTION_COUNT


def test_case_189_requests_of_strangers_on_many_connections(tenancy: BrokerProcess) -> None:
    """M13: and somebody who may do nothing asks whether the broker is well."""
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with attacked(tenancy):
        assert flood(tenancy.admin_port, request, 1) > CONNECTION_COUNT


def test_case_190_one_key_with_all_the_connections(tmp_path: Path) -> None:
    """M13: another key has its connections all the same; the first one has no more."""
    arguments = ("--connections", "20")
    with BrokerProcess(tmp_path / "data", arguments=arguments) as broker:
        queue, token = own_queue(broker, "Send")
        peers = [RawPeer(broker.port, token).to(Stage.AUTHORIZED) for _ in range(20)]
        with RawPeer(broker.port, token) as refused:
            refused.to(Stage.BEGUN).ask_for_token_answer()
            assert refused.verdict().condition == "amqp:resource-limit-exceeded"
        others = [connected(broker.port, broker.token()) for _ in range(10)]
        assert others[0].attach_sender(queue).is_attached
        for each in (*peers, *others):
            each.close()
