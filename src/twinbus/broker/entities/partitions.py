"""The sixteen partitions of a partitioned entity: to which one a message belongs (rules M3, F2).

Here all partitions live in one store and are received from in one order. What a partition has of
its own is its share of the rate: a busy one is throttled and the others are not.

    session id --> partition key --> message id, if duplicates are detected --> each in turn

Rule 1: equal keys, equal partition, in every process and for ever.
Rule 2: a session id and a partition key that differ contradict each other, and are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Final
from zlib import crc32

from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.facts import MessageKeys
from twinbus.broker.entities.record import IncomingMessage

__all__ = ["PARTITION_COUNT", "PartitionAssigner", "keys_agree", "partition_of"]

# As in Azure Service Bus.
PARTITION_COUNT: Final = 16


def partition_of(facts: MessageKeys | None, *, by_message_id: bool = False) -> int | None:
    """The partition of a message that was given one or has a key; None if any would do."""
    if facts is None:
        return None
    if facts.partition is not None:
        return facts.partition
    key = facts.session_id or facts.partition_key
    if not key and by_message_id:
        key = facts.message_id
    return crc32(key.encode()) % PARTITION_COUNT if key else None


def keys_agree(facts: MessageKeys) -> bool:
    """Whether session id and partition key are not both there and different."""
    both = facts.session_id is not None and facts.partition_key is not None
    return not both or facts.session_id == facts.partition_key


class PartitionAssigner:
    """The messages of one sender over the partitions: without a key each takes the next."""

    def __init__(self) -> None:
        self._next = 0

    def assign(
        self, messages: list[IncomingMessage], description: QueueDescription, ping_count: int = 0
    ) -> Counter[int]:
        """Give every message its partition; how many each of them gets, pings included."""
        shares: Counter[int] = Counter()
        for message in messages:
            facts = message.facts or MessageKeys(None, None, None)
            partition = partition_of(facts, by_message_id=description.requires_duplicate_detection)
            if partition is None:
                partition = self._take()
            message.facts = facts._replace(partition=partition)
            shares[partition] += 1
        if ping_count:
            shares[self._take()] += ping_count
        return shares

    def _take(self) -> int:
        taken, self._next = self._next, (self._next + 1) % PARTITION_COUNT
        return taken
