"""Which of the sixteen partitions of an entity a message belongs to (rule F2)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from twinbus.broker.entities.facts import MessageFacts

PARTITION_COUNT: Final = 16


def partition_of(facts: MessageFacts | None) -> int | None:
    """The partition of a message with a key; one without a key belongs to none in particular."""
    if facts is None:
        return None
    key = facts.session_id or facts.partition_key
    return None if not key else crc32(key.encode()) % PARTITION_COUNT
