"""What is taken for a ping, and how long it takes to say so."""

from __future__ import annotations

from tests.support.cpu_time import cpu_s
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.encoding.ping import is_ping, ping


def test_a_large_body_is_not_looked_at() -> None:
    """M13: a message of 256 KB that comes home took 24 ms."""
    large = Message(body=AmqpValue(list(range(60_000)))).encode()
    assert is_ping(large) is False
    assert cpu_s(lambda: is_ping(large)) < 0.003
    assert is_ping(ping("s"))
