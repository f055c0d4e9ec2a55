"""Message locks, and the fault that ends all of them at once.

Messages are delivered in runs, and a run is locked as one object: a lock token is the run's
random id (8 bytes) followed by the sequence number (8 bytes). A run id is never used again,
so a token settles at most once, and a late settlement of an old delivery cannot affect a newer
one. Deadlines are monotonic seconds: a change of the wall clock has no effect (rule M2).

``lose_locks`` ends every lock of a queue as if its time had run out (rule F4). Receivers that wait
for a session continue to wait: they have no lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

from twinbus.broker.engine import message_transitions
from twinbus.broker.engine.chunk import Chunk, span_mask

if TYPE_CHECKING:
    from twinbus.broker.engine.consumers import Consumer
    from twinbus.broker.engine.queue import Queue

TOKEN = Struct(">QQ")

# Deadlines of settled runs that are kept before they are removed together: a lock may last five
# minutes, in which a fast receiver settles a million messages.
DEADLINES_SPARE = 256
# Deadlines of settled runs that are dropped, and deadlines that are checked, in one step.
STALE_AT_ONCE = 256
DEADLINES_AT_ONCE = 1_024


class LockRun:
    """A run of messages delivered to one receiver under one lock."""

    __slots__ = (
        "check_at_s",
        "chunk",
        "consumer",
        "count",
        "deadline_s",
        "first_seq",
        "locked_until_ms",
        "renewals",
        "renewed_until_s",
        "run_id",
        "session",
        "start",
        "unsettled",
    )

    def __init__(
        self,
        run_id: int,
        chunk: Chunk,
        start: int,
        count: int,
        deadline_s: float,
        locked_until_ms: int,
        consumer: Consumer | None,
    ) -> None:
        self.session = None if consumer is None else consumer.session
        self.run_id = run_id
        self.chunk = chunk
        self.start = start
        self.count = count
        self.first_seq = chunk.first_seq + start
        self.deadline_s = deadline_s
        self.locked_until_ms = locked_until_ms
        # When the table checks it next; never later than the first of its locks expires.
        self.check_at_s = deadline_s
        self.consumer = consumer
        # Bits are indexes into the chunk, so that masks of both can be combined.
        self.unsettled = span_mask(start, count)
        # Only messages whose lock was renewed one by one have an entry.
        self.renewed_until_s: dict[int, float] = {}
        self.renewals: dict[int, int] = {}

    def token(self, seq: int) -> bytes:
        return TOKEN.pack(self.run_id, seq)

    def overdue(self, now_s: float) -> int:
        """The unsettled messages whose lock has expired by ``now_s``."""
        session = self.session
        if session is not None:
            return self.unsettled if session.is_over or session.deadline_s <= now_s else 0
        mask = self.unsettled if self.deadline_s <= now_s else 0
        for index, until_s in self.renewed_until_s.items():
            if until_s > now_s:
                mask &= ~(1 << index)
            else:
                mask |= self.unsettled & (1 << index)
        return mask

    def next_deadline_s(self) -> float:
        """The earliest time at which the lock of an unsettled message expires."""
        renewed = {i: at for i, at in self.renewed_until_s.items() if self.unsettled >> i & 1}
        others = self.unsettled & ~sum(1 << index for index in renewed)
        times = list(renewed.values())
        if others:
            times.append(self.deadline_s)
        return min(times)


class LockTable:
    """Every lock of one queue."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._runs: dict[int, LockRun] = {}
        self._deadlines: list[tuple[float, int]] = []

    def grant(
        self,
        chunk: Chunk,
        start: int,
        count: int,
        deadline_s: float,
        locked_until_ms: int,
        consumer: Consumer | None,
    ) -> LockRun:
        run_id = self._chance.getrandbits(64)
        while run_id in self._runs:
            run_id = self._chance.getrandbits(64)
        run = LockRun(run_id, chunk, start, count, deadline_s, locked_until_ms, consumer)
        self._runs[run_id] = run
        if run.session is None:
            heappush(self._deadlines, (deadline_s, run_id))
            if len(self._deadlines) > 2 * len(self._runs) + DEADLINES_SPARE:
                self._compact()
        else:
            # It ends with its session, which has the deadline for all of them.
            run.session.runs[run_id] = run
        chunk.locked |= run.unsettled
        chunk.busy |= run.unsettled
        return run

    def _compact(self) -> None:
        """Drop the deadlines of settled runs: most are settled long before they expire."""
        runs = self._runs.values()
        self._deadlines = [(run.check_at_s, run.run_id) for run in runs if run.check_at_s < inf]
        heapify(self._deadlines)

    def find(self, token: bytes, now_s: float) -> tuple[LockRun, int] | None:
        """The run and chunk index of a token whose lock is still valid."""
        if len(token) != TOKEN.size:
            return None
        run_id, seq = TOKEN.unpack(token)
        run = self._runs.get(run_id)
        if run is None:
            return None
        index = seq - run.chunk.first_seq
        if not 0 <= index < run.chunk.count or not run.unsettled >> index & 1:
            return None
        if run.overdue(now_s) >> index & 1:
            return None
        return run, index

    def release(self, run: LockRun, mask: int) -> None:
        """The messages in ``mask`` are no longer locked by ``run``."""
        run.unsettled &= ~mask
        run.chunk.locked &= ~mask
        if run.consumer is not None:
            run.consumer.gave_back(mask.bit_count())
        if not run.unsettled:
            del self._runs[run.run_id]
            if run.session is not None:
                del run.session.runs[run.run_id]

    def let_go(self, count: int) -> bool:
        """The queue is deleted and has no receivers: release a few runs of locks.

        Returns whether there are more.
        """
        for run in list(islice(self._runs.values(), count)):
            self.release(run, run.unsettled)
        return bool(self._runs)

    def renew(self, run: LockRun, index: int, deadline_s: float) -> None:
        run.renewed_until_s[index] = deadline_s
        run.renewals[index] = run.renewals.get(index, 0) + 1
        # Usually the table checks the run earlier and finds the new deadline then.
        if deadline_s < run.check_at_s:
            self._schedule_check(run, deadline_s)

    def hold(self, run: LockRun) -> None:
        """The lock does not expire: a part of the broker has it, which cannot be disconnected."""
        run.deadline_s = inf

    def unhold(self, run: LockRun, deadline_s: float) -> None:
        """What is unsettled expires like any other lock."""
        run.deadline_s = deadline_s
        if run.unsettled:
            self._schedule_check(run, deadline_s)

    def _schedule_check(self, run: LockRun, at_s: float) -> None:
        run.check_at_s = at_s
        if at_s < inf:
            heappush(self._deadlines, (at_s, run.run_id))

    def next_deadline_s(self) -> float | None:
        """When expired() may next return something, or a little earlier."""
        for _ in range(STALE_AT_ONCE):
            if not self._deadlines or self._deadlines[0][1] in self._runs:
                break
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now_s: float) -> Iterator[tuple[LockRun, int]]:
        """The messages whose locks have expired by ``now_s``; they are no longer locked.

        Of very many it returns a part: next_deadline_s() is in the past then.
        """
        for _ in range(DEADLINES_AT_ONCE):
            if not self._deadlines or self._deadlines[0][0] > now_s:
                return
            run = self._runs.get(heappop(self._deadlines)[1])
            if run is None:
                continue
            mask = run.overdue(now_s)
            if mask:
                self.release(run, mask)
            if run.unsettled and run.check_at_s <= now_s:
                self._schedule_check(run, run.next_deadline_s())
            if mask:
                yield run, mask

    def __len__(self) -> int:
        return sum(run.unsettled.bit_count() for run in self._runs.values())


def lose_locks(queue: Queue) -> int:
    """End all message and session locks; returns how many messages were locked."""
    lost = queue.locked_count
    if queue.sessions is not None:
        queue.sessions.lose_all()
    while queue.locks.next_deadline_s() is not None:
        for run, mask in queue.locks.expired(inf):
            if run.consumer is not None:
                queue.credit_available(run.consumer)
            message_transitions.count_failed_delivery(queue, run.chunk, mask)
    return lost
