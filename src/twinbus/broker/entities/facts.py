"""What a queue must know about a message besides its size and its times: the ids.

Most queues need none of it, and then nothing is read (``QueueDescription.needs_facts``).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from twinbus.amqp.decode import decode_value
from twinbus.amqp.limits import STORED_LIMITS, Budget
from twinbus.amqp.sections import property_field, scan_to_body
from twinbus.broker.entities.record import IncomingMessage, Record, unpack_record

# With 16 bytes, 10 million remembered ids have one chance in 10 ** 24 that two are confused.
DIGEST_BYTES: Final = 16

_MESSAGE_ID, _GROUP_ID = 0, 10
_PARTITION_KEY = "x-opt-partition-key"


class MessageKeys(NamedTuple):
    """The ids of one message."""

    message_id: str | None
    """With its type in front when it is not text: the number 1 is not the text "1"."""
    session_id: str | None
    partition_key: str | None
    arrived_ms: int = 0
    """When it came, on the wall clock."""
    partition: int | None = None
    """Which partition it was given, if the entity is partitioned."""
    digest: bytes | None = None
    """What duplicate detection remembers of it, if that is known already."""


def facts_of(record: bytes, arrived_ms: int = 0) -> MessageKeys:
    """The ids of a stored message."""
    taken_apart = unpack_record(record, 0, len(record))
    bare = taken_apart.bare
    # It was checked when it came.
    span = scan_to_body(bare, 0, len(bare), STORED_LIMITS).properties
    message_id = session_id = None
    if span is not None:
        message_id = property_field(bare, span, _MESSAGE_ID)
        session_id = property_field(bare, span, _GROUP_ID)
    return MessageKeys(
        _as_text(message_id),
        session_id if isinstance(session_id, str) else None,
        _partition_key(taken_apart),
        arrived_ms,
    )


def digest_of(facts: MessageKeys, *, is_partitioned: bool) -> bytes | None:
    """What stands for a message's id; None if it has none.

    ``is_partitioned``: equal ids in different partitions are different (as in Azure).
    """
    text = facts.message_id
    if not text:
        return None
    if is_partitioned:
        text = f"{facts.session_id or facts.partition_key or ''}\0{text}"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def session_of(message: IncomingMessage) -> str | None:
    """The session that a message belongs to."""
    return (message.facts or facts_of(message.record)).session_id


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"{type(value).__name__}:{value!r}"


def _partition_key(record: Record) -> str | None:
    key = annotation_of(record, _PARTITION_KEY)
    return key if isinstance(key, str) else None


def annotation_of(record: Record, name: str) -> object:
    """One of the annotations that a message came with, or None."""
    raw, position = record.annotation_pairs, 0
    for _ in range(record.annotation_count):
        key, position = decode_value(raw, position, len(raw), Budget(STORED_LIMITS))
        value, position = decode_value(raw, position, len(raw), Budget(STORED_LIMITS))
        if str(key) == name:
            found: object = value
            return found
    return None
