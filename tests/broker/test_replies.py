"""Requests to a node and their answers, frame by frame."""

from __future__ import annotations

from tests.model.rig import Rig, create_queue
from twinbus.amqp.types import Long
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.replies import REQUEST_CREDIT
from twinbus.broker.store.memory import MemoryStore


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
