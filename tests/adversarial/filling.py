"""Queues with many messages in them, quickly."""

from __future__ import annotations

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.message.message import DataSections, Message
from twinbus.amqp.performatives import Accepted

BATCH_FORMAT = 0x80013700
BATCH_BYTES_MAX = 900_000
MESSAGES_PER_BATCH_MAX = 4_000


def filled_queue(broker: BrokerProcess, count: int, body: bytes = b"x") -> str:
    """A fresh queue with so many messages of that body; its name."""
    queue = broker.fresh_queue()
    fill(broker, queue, count, body)
    return queue


def fill(broker: BrokerProcess, queue: str, count: int, body: bytes) -> None:
    """Send so many messages of that body."""
    message = Message(body=body).encode()
    per_batch = max(1, min(MESSAGES_PER_BATCH_MAX, BATCH_BYTES_MAX // (len(message) + 16)))
    with connected(broker.port, broker.token()) as client:
        link = client.attach_sender(queue)
        while count:
            size = min(count, per_batch)
            batch = Message(body=DataSections((message,) * size)).encode()
            assert client.send(link, batch, message_format=BATCH_FORMAT) == Accepted()
            count -= size
