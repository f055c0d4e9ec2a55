"""Pings: messages that test whether an entity accepts messages again. They are never delivered
to a receiver (M7)."""

from __future__ import annotations

from typing import Final

from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import CONTENT_TYPE, Header, Properties, property_field
from twinbus.amqp.message.sections import scan_message

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_TTL_MS: Final = 1_000


def is_ping(encoded: bytes) -> bool:
    """Whether an entity treats the message as a ping, and drops it."""
    sections = scan_message(encoded, 0, len(encoded), body_required=False, check_body=False)
    ttl_ms = sections.header.ttl_ms if sections.header else None
    return (
        sections.body_empty
        and ttl_ms is not None
        and ttl_ms <= PING_TTL_MS
        and sections.properties is not None
        and property_field(encoded, sections.properties, CONTENT_TYPE) == PING_CONTENT_TYPE
    )


def ping(session_id: str) -> bytes:
    """A ping, encoded. An entity without sessions ignores the id; one with sessions needs it.

    The session id is also the message id, so use a new one for each ping: an entity with duplicate
    detection would accept a repeated id without using its store.
    """
    return Message(
        header=Header(ttl_ms=PING_TTL_MS),
        properties=Properties(
            message_id=session_id, content_type=PING_CONTENT_TYPE, group_id=session_id
        ),
        body=b"",
    ).encode()
