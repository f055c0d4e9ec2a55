"""Requests to a node and their answers, frame by frame."""

from __future__ import annotations

import pytest

from tests.unit.broker.model.rig import Rig, create_queue
from twinbus.amqp.codec.types import Long
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.server.management_node import ITEMS_PER_REQUEST_MAX
from twinbus.broker.server.request_reply import REQUEST_CREDIT
from twinbus.broker.storage.memory_store import MemoryStore


def test_every_answer_gives_the_credit_back() -> None:
    """M10: threads that share a client of the stock SDK go on without waiting for each other."""
    # Given a client that may ask a hundred times
    queue = QueueDescription(path="orders")
    client = Rig(MemoryStore(), lambda namespace: create_queue(namespace, queue)).connect()
    requests, _replies = client.node("orders/$management")
    assert requests.credit == REQUEST_CREDIT

    # When it has asked and was answered, by success or not
    body = {"from-sequence-number": Long(1), "message-count": 1}
    for operation in ("com.microsoft:peek-message", "com.microsoft:unknown"):
        client.manage("orders", operation, body)

        # Then it may ask as often as before
        assert requests.credit == REQUEST_CREDIT


@pytest.mark.parametrize("count", [1_001, 1_021, 1_025, 2_000, 4_500])
def test_more_messages_than_one_request_may_have_are_refused_with_their_limit(count: int) -> None:
    """M10: the caller is told what to do, and its links stay open."""
    queue = QueueDescription(path="orders")
    client = Rig(MemoryStore(), lambda namespace: create_queue(namespace, queue)).connect()
    client.node("orders/$management")
    message = Message(body=b"x").encode()
    entry = {"message-id": "1", "session-id": "s", "partition-key": "s", "message": message}

    def schedule(number: int) -> dict[str, object]:
        body = {"messages": [entry] * number}
        reply = client.manage("orders", "com.microsoft:schedule-message", body)
        return reply.application_properties or {}

    refused = schedule(count)

    assert refused["statusCode"] == 400
    assert refused["errorCondition"] == "com.microsoft:argument-error"
    text = str(refused["statusDescription"])
    assert f"{ITEMS_PER_REQUEST_MAX}" in text and text.endswith("Send several requests.")
    assert schedule(ITEMS_PER_REQUEST_MAX)["statusCode"] == 200
