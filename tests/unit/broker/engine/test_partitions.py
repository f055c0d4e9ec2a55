"""Partitions: which one a message belongs to, and what each may take."""

from __future__ import annotations

from collections import Counter

import pytest

from twinbus.amqp.errors import AmqpError
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.stored_message import (
    PARTITION_COUNT,
    IncomingMessage,
    MessageKeys,
    PartitionAssigner,
    keys_agree,
    partition_of,
)
from twinbus.broker.options import ThrottleThresholds
from twinbus.broker.throttle import Throttle

PLAIN = QueueDescription(path="q", enable_partitioning=True)
DETECTING = QueueDescription(path="q", enable_partitioning=True, requires_duplicate_detection=True)


def facts(
    message_id: str | None = None, session: str | None = None, key: str | None = None
) -> MessageKeys:
    return MessageKeys(message_id, session, key)


def message(each: MessageKeys) -> IncomingMessage:
    return IncomingMessage(b"x", facts=each)


def test_a_key_has_the_same_partition_for_ever() -> None:
    """M3: literal numbers, because a store may be older than the program."""
    assert partition_of(facts(key="order-1")) == 15
    assert partition_of(facts(session="order-1")) == 15
    assert partition_of(facts(key="order-2")) == 5


def test_many_keys_use_all_partitions_alike() -> None:
    """M3: no partition gets twice its share."""
    counts = Counter(partition_of(facts(key=f"customer-{number}")) for number in range(16_000))
    assert len(counts) == PARTITION_COUNT
    assert min(counts.values()) > 800 and max(counts.values()) < 1_250


def test_a_message_id_decides_only_where_duplicates_are_detected() -> None:
    """M3: a repeat must meet its original; elsewhere messages without a key are spread."""
    one = facts("id-1")
    assert partition_of(one) is None
    assert partition_of(one, by_message_id=True) is not None
    again = [message(one), message(one)]
    assert len(PartitionAssigner().assign(again, DETECTING)) == 1
    assert len(PartitionAssigner().assign([message(one), message(one)], PLAIN)) == 2


def test_messages_without_a_key_take_the_partitions_in_turn() -> None:
    """M3: and pings take one like everybody."""
    spread = PartitionAssigner()
    shares = spread.assign([message(facts()) for _ in range(32)], PLAIN)
    assert shares == dict.fromkeys(range(PARTITION_COUNT), 2)
    assert spread.assign([], PLAIN, ping_count=1) == {0: 1}


def test_two_keys_must_agree() -> None:
    """M3: as in Azure."""
    assert keys_agree(facts(session="a", key="a"))
    assert keys_agree(facts(session="a")) and keys_agree(facts(key="a")) and keys_agree(facts())
    assert not keys_agree(facts(session="a", key="b"))


def test_a_busy_partition_is_throttled_and_the_others_are_not() -> None:
    """F2: each has a sixteenth of the entity's rate."""
    throttle = Throttle(ThrottleThresholds(entity_messages_per_s_max=160))
    throttle.check(1, 10, 0.0, {3: 10})
    with pytest.raises(AmqpError, match=r"Partition 3 .* Wait 10 seconds"):
        throttle.check(1, 1, 0.0, {3: 1})
    for other in range(PARTITION_COUNT):
        if other != 3:
            throttle.check(1, 1, 0.0, {other: 1})
    # Another entity has partitions of its own, and a second later there is room again
    throttle.check(2, 1, 0.0, {3: 1})
    throttle.check(1, 1, 1.0, {3: 1})


def test_a_batch_is_taken_as_a_whole_or_refused_as_a_whole() -> None:
    """F2: nothing is taken from a partition for a batch that another one refuses."""
    throttle = Throttle(ThrottleThresholds(entity_messages_per_s_max=16))
    throttle.check(1, 5, 0.0, {7: 5})
    for _ in range(10):
        with pytest.raises(AmqpError):
            throttle.check(1, 2, 0.0, {1: 1, 7: 1})
    throttle.check(1, 1, 0.0, {1: 1})


def test_a_deleted_entity_leaves_nothing_behind() -> None:
    """F2: whoever gets its place begins afresh."""
    throttle = Throttle(ThrottleThresholds(entity_messages_per_s_max=16))
    throttle.check(1, 5, 0.0, {7: 5})
    throttle.forget(1)
    throttle.check(1, 1, 0.0, {7: 1})
