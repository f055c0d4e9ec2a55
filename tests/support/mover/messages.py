"""Backlog messages as a sender leaves them there."""

from __future__ import annotations

from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.envelope import alias


def plain(name: str, body: bytes = b"hello") -> bytes:
    """A message as an application sends it; ``name`` is its id."""
    return Message(properties=Properties(message_id=name), body=body).encode()


def backlog(name: str, path: str = "orders", body: bytes = b"hello") -> bytes:
    """The same after the detour to a backlog queue."""
    return alias(plain(name, body), path)


def id_of(encoded: bytes) -> str:
    properties = Message.decode(encoded).properties
    assert properties is not None and isinstance(properties.message_id, str)
    return properties.message_id
