"""The store as the simulation sees it: the real one, watched from outside.

Rule 1: the shadow is kept from the operations alone, by sequence number, and knows nothing of
        chunks, tombstones or windows.
Rule 2: what the counters say is compared with the shadow at every commit, and what the store
        gives back with it at every restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from twinbus.broker.engine.stored_message import chunk_starts
from twinbus.broker.storage.interface import (
    DeleteChunks,
    DeleteScheduled,
    Op,
    PutChunk,
    PutCounters,
    PutScheduled,
    PutState,
    QueueCounters,
    Store,
    Tombstone,
)
from twinbus.errors import StoreFull

LABEL_BYTES = 8


class Broken(AssertionError):
    """A promise was broken."""


def insist(holds: object, promise: str, *facts: object) -> None:
    """``assert`` that survives ``python -O``, names the promise and prints facts if broken."""
    if not holds:
        raise Broken(" ".join((promise, *map(repr, facts))))


class Held(NamedTuple):
    """One message on disk."""

    label: bytes
    size: int
    delivery_count: int = 0
    deferred: bool = False


class QueueShadow:
    """What one queue must have on disk."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.held: dict[int, Held] = {}
        self.scheduled: dict[int, Held] = {}

    def take(self, first_seq: int, count: int) -> None:
        insist(first_seq == self.next_seq, "sequence numbers have no gap and come once")
        self.next_seq += count

    def drop(self, first_seq: int, last_seq: int) -> None:
        for seq in range(first_seq, last_seq + 1):
            insist(self.held.pop(seq, None), "a message is removed once")

    def check(self, counters: QueueCounters) -> None:
        held = self.held.values()
        insist(counters.next_seq == self.next_seq, "next_seq follows the last number")
        insist(counters.message_count == len(held), "message_count is right")
        insist(counters.scheduled_count == len(self.scheduled), "scheduled_count is right")
        deferred = sum(each.deferred for each in held)
        insist(counters.deferred_count == deferred, "deferred_count is right")
        size = sum(each.size for each in (*held, *self.scheduled.values()))
        insist(counters.byte_count == size, "byte_count is right")


class WatchedStore:
    """A store whose commits are checked, and refused while the disk is full."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_full = False
        self.queues: dict[int, QueueShadow] = {}
        self.commit_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self, ops: Sequence[Op]) -> None:
        if self.is_full:
            raise StoreFull(path="simulated")
        self.store.commit(ops)
        self.commit_count += 1
        for op in ops:
            self._note(op)

    def shadow(self, queue_id: int) -> QueueShadow:
        return self.queues.setdefault(queue_id, QueueShadow())

    def _note(self, op: Op) -> None:
        match op:
            case PutChunk(row):
                shadow = self.shadow(row.queue_id)
                shadow.take(row.first_seq, row.count)
                starts = chunk_starts(row.blob, row.count)
                for index in range(row.count):
                    record = row.blob[starts[index] : starts[index + 1]]
                    held = Held(record[-LABEL_BYTES:], len(record))
                    shadow.held[row.first_seq + index] = held
            case PutScheduled(queue_id, seq, _due_ms, blob):
                self.shadow(queue_id).take(seq, 1)
                self.shadow(queue_id).scheduled[seq] = Held(blob[-LABEL_BYTES:], len(blob))
            case DeleteScheduled(queue_id, seq):
                gone = self.shadow(queue_id).scheduled.pop(seq, None)
                insist(gone, "a scheduled message is removed once")
            case Tombstone(queue_id, first_seq, last_seq):
                self.shadow(queue_id).drop(first_seq, last_seq)
            case DeleteChunks(queue_id, first_seq, last_seq):
                self._drop_chunks(queue_id, first_seq, last_seq)
            case PutState(queue_id, seq, delivery_count, deferred):
                shadow = self.shadow(queue_id)
                insist(seq in shadow.held, "only a message that is there has a state")
                held = shadow.held[seq]
                insist(delivery_count >= held.delivery_count, "delivery counts never decrease")
                shadow.held[seq] = held._replace(delivery_count=delivery_count, deferred=deferred)
            case PutCounters(counters):
                self.shadow(counters.queue_id).check(counters)

    def _drop_chunks(self, queue_id: int, first_seq: int, last_seq: int) -> None:
        shadow = self.shadow(queue_id)
        for seq in [seq for seq in shadow.held if first_seq <= seq <= last_seq]:
            del shadow.held[seq]

    def compare(self) -> None:
        """What can be read back is what the operations said."""
        for queue_id, shadow in self.queues.items():
            read: dict[int, Held] = {}
            for loaded in self.store.load_chunks(queue_id, 0, 1 << 30, 1 << 20):
                row, starts = loaded.row, chunk_starts(loaded.row.blob, loaded.row.count)
                gone = {seq for first, last in loaded.gone for seq in range(first, last + 1)}
                for index in range(row.count):
                    seq = row.first_seq + index
                    record = row.blob[starts[index] : starts[index + 1]]
                    if seq not in gone:
                        state = loaded.states.get(seq, (0, False))
                        read[seq] = Held(record[-LABEL_BYTES:], len(record), *state)
            insist(read == shadow.held, "the disk holds what was committed")
            scheduled = {
                row.seq: Held(row.blob[-LABEL_BYTES:], len(row.blob))
                for row in self.store.load_scheduled(queue_id, 0, 1 << 20)
            }
            insist(scheduled == shadow.scheduled, "the disk holds what was scheduled")
