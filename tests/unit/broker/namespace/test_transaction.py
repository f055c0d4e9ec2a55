"""Which queues are written together, and which apart."""

from __future__ import annotations

from random import Random

from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.namespace.transaction import RefusedQueues, groups_of
from twinbus.broker.storage.interface import QueueCounters


def queue(path: str, number: int, dead_letters: Queue | None = None) -> Queue:
    counters = QueueCounters(number, 1, 0, 0, 0, 0)
    return Queue(QueueDescription(path=path), counters, Random(1), dead_letters)


DEAD = queue("a", 1)
A, B, C, D = queue("a", 2, DEAD), queue("b", 3), queue("c", 4), queue("d", 5)


def test_queues_between_which_messages_move_are_together() -> None:
    """M8: also over several moves; a queue that is not in the transaction joins nothing."""
    assert groups_of([A, B, C, DEAD], []) == [[A, DEAD], [B], [C]]
    assert groups_of([A, B, C, DEAD], [(B, C), (C, DEAD)]) == [[A, B, C, DEAD]]
    assert groups_of([A, B, C], [(B, D), (D, C)]) == [[A], [B], [C]]


def test_refused_queues_and_others_take_turns() -> None:
    """M13: neither keeps the other waiting."""
    refused = RefusedQueues()
    refused.refused([A, B], 0.0)
    turns = [refused.choose([A, B, C, D], [], 1.0) for _ in range(4)]
    assert turns == [[A, B], [C, D], [A, B], [C, D]]
    assert [refused.choose([A], [], 1.0) for _ in range(2)] == [[A], [A]]


def test_a_refused_queue_rests_and_keeps_those_that_belong_to_it() -> None:
    """M8, M13: the whole group waits, nothing else does."""
    refused = RefusedQueues()
    refused.refused([B], 5.0)
    assert refused.choose([A, B, C], [(B, C)], 4.9) == [A]
    assert refused.choose([B, C], [(B, C)], 4.9) == []
    assert refused.choose([A, B, C], [(B, C)], 5.0) == [B, C]
    refused.stored([B, C])
    assert not refused


def test_at_the_end_nothing_rests() -> None:
    """M8: what was taken in is tried once more before the namespace closes."""
    refused = RefusedQueues()
    refused.refused([A], 5.0)
    refused.try_now()
    assert refused.choose([A], [], 1.0) == [A]
