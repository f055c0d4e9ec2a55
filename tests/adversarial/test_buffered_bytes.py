"""Bytes that a connection makes the broker hold (cases 185 to 188), on hundreds of connections.

Each connection stays within its own limits; all of them are of one key. What they hold together is
bounded, too (broker/fairness/buffered_bytes.py, broker/fairness/read_turns.py), and another key's
client does not notice.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.adversarial.prober import attacked
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    flow,
    receiver,
    sender,
    transfer,
)
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.codec.types import Int, Long
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted, Attach, Target

KEYS = {"primary_key": "A" * 43 + "=", "secondary_key": "B" * 43 + "="}
LINK = FIRST_FREE_HANDLE
REQUESTS, REPLIES = 500, 501
FRAME_BYTES = 1 << 20
NEARLY_A_FRAME = b"x" * 1_000_000
WIDE = 1 << 30


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("unfinished") / "data") as broker:
        yield broker
        assert broker.is_alive, broker.log()
        assert "Traceback" not in broker.log(), broker.log()[-4_000:]


def own_queue(broker: BrokerProcess) -> tuple[str, str]:
    """A queue and a token that allows to send to it and to receive from it."""
    rule = {"name": "tenant", "claims": ["Send", "Listen"], **KEYS}
    queue = broker.fresh_queue(authorization_rules=[rule])
    return queue, broker.token(path=queue, rule=("tenant", KEYS["primary_key"]))


def filled_queue(broker: BrokerProcess) -> tuple[str, str]:
    """The same with a megabyte of messages."""
    queue, token = own_queue(broker)
    with connected(broker.port, token) as client:
        link = client.attach_sender(queue)
        for _ in range(4):
            assert client.send(link, Message(body=b"y" * 250_000).encode()) == Accepted()
    return queue, token


def attach(peer: RawPeer, *attaches: bytes) -> None:
    peer.say(*attaches)
    for _ in attaches:
        peer.wait_for(Attach)


def peek(reply_to: str, number: int) -> bytes:
    """A request for a megabyte of messages."""
    body = {"from-sequence-number": Long(1), "message-count": Int(100)}
    request = Message(
        properties=Properties(message_id=f"{number}", reply_to=reply_to),
        application_properties={"operation": "com.microsoft:peek-message"},
        body=AmqpValue(body),
    )
    return transfer(REQUESTS, number, request.encode(), settled=True)


def test_case_185_frames_that_never_end_on_hundreds_of_connections(
    tenancy: BrokerProcess,
) -> None:
    """M13: 600 MB of them, by a key that can do nothing but begin to send."""
    _queue, token = own_queue(tenancy)
    head = FRAME_BYTES.to_bytes(4, "big") + b"\x02\x00\x00\x00"
    with attacked(tenancy) as under, ExitStack() as stack:
        for _ in range(600):
            peer = stack.enter_context(RawPeer(tenancy.port, token).to(Stage.AUTHORIZED))
            say_what_is_read(peer, head + NEARLY_A_FRAME)
        under.lasted(5.0)


def test_case_186_deliveries_that_never_end_on_many_links(tenancy: BrokerProcess) -> None:
    """M13: a connection may begin eight megabytes of deliveries; a hundred of them may not."""
    queue, token = own_queue(tenancy)
    with attacked(tenancy) as under, ExitStack() as stack:
        for _ in range(80):
            peer = stack.enter_context(RawPeer(tenancy.port, token).to(Stage.AUTHORIZED))
            attach(peer, *[sender(queue, LINK + number) for number in range(8)])
            begun = [
                transfer(LINK + number, number, NEARLY_A_FRAME, more=True) for number in range(8)
            ]
            say_what_is_read(peer, b"".join(begun))
        under.lasted(5.0)


def test_case_187_answers_for_which_there_is_no_credit(tenancy: BrokerProcess) -> None:
    """M13: a connection has a thousand links for answers, each with four megabytes that wait."""
    queue, token = filled_queue(tenancy)
    with attacked(tenancy) as under, ExitStack() as stack:
        for _ in range(10):
            peer = stack.enter_context(RawPeer(tenancy.port, token).to(Stage.AUTHORIZED))
            attach(peer, sender(f"{queue}/$management", REQUESTS))
            for number in range(60):
                node = f"{queue}/$management"
                target = Target(address=f"r{number}")
                attach(peer, receiver(node, LINK + number, target=target))
                say_what_is_read(
                    peer, b"".join(peek(f"r{number}", 8 * number + i) for i in range(8))
                )
        under.lasted(5.0)


def test_case_188_answers_that_are_not_read(tenancy: BrokerProcess) -> None:
    """M13: eight megabytes are on their way to each of a hundred clients that do not listen."""
    queue, token = filled_queue(tenancy)
    node = f"{queue}/$management"
    with attacked(tenancy) as under, ExitStack() as stack:
        for _ in range(100):
            peer = stack.enter_context(RawPeer(tenancy.port, token))
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.to(Stage.AUTHORIZED)
            attach(
                peer, sender(node, REQUESTS), receiver(node, REPLIES, target=Target(address="r"))
            )
            peer.say(flow(handle=REPLIES, link_credit=1_000, incoming_window=WIDE))
            say_what_is_read(peer, b"".join(peek("r", 1 + number) for number in range(40)))
        under.lasted(5.0)


def say_what_is_read(peer: RawPeer, data: bytes) -> None:
    """Send as much as the broker reads; it may stop, or close the connection."""
    peer.socket.setblocking(False)
    left = memoryview(data)
    try:
        for _ in range(20):
            try:
                left = left[peer.socket.send(left) :]
            except BlockingIOError:
                time.sleep(0.005)
            if not left:
                break
    except OSError:
        pass
    finally:
        peer.socket.setblocking(True)
