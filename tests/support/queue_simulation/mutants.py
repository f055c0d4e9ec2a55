"""Bugs to plant: each is a mistake that somebody could make, as small as it would be made.

The simulation must see every one of them. A check that no planted bug can trip proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.chunk import Chunk, ChunkCache, PendingReads
from twinbus.broker.engine.locks import LockRun, LockTable
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import EngineTimers
from twinbus.broker.engine.write_batch import Batch
from twinbus.broker.namespace.namespace import Namespace
from twinbus.common.clock import Instant

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Senders and receivers are answered when the commit begins."""
    hand_over = Namespace._submit_commit

    def hasty(self: Namespace, transaction: Any) -> None:
        if transaction.planned is not None:
            # Without its queue a namespace would lose more than messages.
            hand_over(self, transaction)
            return
        # What the disk says is not listened to.
        self._on_committed = lambda *_result: None  # type: ignore[method-assign]
        hand_over(self, transaction)
        del self._on_committed
        self._on_committed(None, None)

    patch.setattr(Namespace, "_submit_commit", hasty)


def write_the_two_sides_of_a_move_apart(patch: pytest.MonkeyPatch) -> None:
    """The dead-letter queue waits for a transaction of its own."""

    def apart(self: Namespace, _now: Instant) -> list[Queue]:
        dirty, self.catalogue.dirty = self.catalogue.dirty, {}
        return [queue for queue in dirty if queue.is_dirty]

    patch.setattr(Namespace, "_take_dirty", apart)


def keep_the_numbers_of_a_refused_batch(patch: pytest.MonkeyPatch) -> None:
    def kept(queue: Queue, _batch: Batch) -> None:
        queue.saving = []

    patch.setattr("twinbus.broker.engine.write_batch._take_back_numbers", kept)


def drop_the_moves_of_a_refused_batch(patch: pytest.MonkeyPatch) -> None:
    """The broker's own arrivals are thrown away with those of the senders."""
    patch.setattr("twinbus.broker.engine.write_batch._refuse", lambda *_args: [])


def forget_during_a_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingReads, "after_reads", lambda _self, action: action())


def overlook_a_chunk_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """A read that is faster than the commit's answer brings a second copy of the chunk."""
    patch.setattr(ChunkCache, "expect", lambda _self, _chunk: None)
    patch.setattr(ChunkCache, "forget", lambda _self, _chunk: None)


def settle_after_the_lock_ran_out(patch: pytest.MonkeyPatch) -> None:
    """A settlement is taken although the lock ended half a second ago."""
    settle = Queue.settle

    def lenient(self: Queue, run: LockRun, mask: int, outcome: Any, now: Any, ticket: Any) -> int:
        earlier = now._replace(monotonic_s=now.monotonic_s - 0.5)
        return settle(self, run, mask, outcome, earlier, ticket)

    patch.setattr(Queue, "settle", lenient)


def forget_a_renewal(patch: pytest.MonkeyPatch) -> None:
    def forgetful(_self: LockTable, run: LockRun, index: int, _deadline_s: float) -> None:
        run.renewals[index] = run.renewals.get(index, 0) + 1

    patch.setattr(LockTable, "renew", forgetful)


def count_no_attempt(patch: pytest.MonkeyPatch) -> None:
    """The delivery count grows in memory and never on disk."""

    def unsaved(queue: Queue, chunk: Chunk, index: int) -> None:
        chunk.unsaved = True
        queue.batch.states.pop(chunk.first_seq + index, None)

    patch.setattr(message_transitions, "_save_state", unsaved)


def look_once(patch: pytest.MonkeyPatch) -> None:
    """A look for due messages that finds nothing is the last one."""
    loaded = Queue.due_loaded

    def final(self: Queue, rows: Any) -> None:
        if rows:
            loaded(self, rows)

    patch.setattr(Queue, "due_loaded", final)


def schedule_it_again(patch: pytest.MonkeyPatch) -> None:
    """What was taken from the schedule is taken again by the next look."""
    patch.setattr(EngineTimers, "is_scheduled", lambda _self, _seq: True)


def let_the_expired_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(message_transitions, "expire", lambda _queue, _chunk, _now: False)


PLANTS: list[Plant] = [
    acknowledge_before_commit,
    write_the_two_sides_of_a_move_apart,
    keep_the_numbers_of_a_refused_batch,
    drop_the_moves_of_a_refused_batch,
    forget_during_a_read,
    overlook_a_chunk_on_its_way,
    settle_after_the_lock_ran_out,
    forget_a_renewal,
    count_no_attempt,
    look_once,
    schedule_it_again,
    let_the_expired_live,
]
