"""The messages that a streaming source has received and not settled: a ledger for each order.

    planned --begun by a task--> open --read to the end--> sealed --batch written--> settled
                                  '---- the batch was written all the same ----> abandoned

An order is one queue's part of one batch. Spark may run it more than once: a task is retried, a
second action reads the batch again, a plan contains one source twice, a slow task is started a
second time. In all cases a message may be settled only if the rows that were written contain it:

Rule 1: a message is added to the ledger before its row leaves the task, so every written row is in
        the ledger.
Rule 2: an order has one reader that may receive, the owner. Others wait until it has sealed the
        order or has ended; then they start with everything that is in the ledger. So every later
        run contains every earlier one, whichever of them Spark keeps.
Rule 3: a sealed order receives nothing more. All runs that came to an end yielded the same rows.
Rule 4: only sealed orders are settled. If no run read an order to its end, it is unknown which rows
        left the task, so its messages are abandoned. What a plan does with the rows it gets
        (limit, show) cannot be seen here: they count as read.
Rule 5: an owner without a report for LEASE_S counts as ended: killed, or disconnected. If it still
        runs, its next report is refused, and its task fails before it yields a message that other
        readers do not have.
Rule 6: a lock is renewed when half of its time is over, and soon again when that failed. A lost
        lock is counted, and its message is delivered again.
Rule 7: messages that are being settled are in no ledger: their locks are not renewed, and a lock
        that ended because its message was completed does not count as lost.

This module reads no clock and uses no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import inf
from typing import Final

from twinbus.encoding.transit import ReceivedMessage

__all__ = ["Counts", "Lock", "LockLedger", "PartitionLedger", "ReadPermission", "Renewal"]

LEASE_S: Final = 5.0
"""Owners report every second, also while Spark does not read from them."""
LOCK_S_MIN: Final = 5.0
"""The shortest of Azure. Our broker allows shorter ones, which are renewed too late."""
LOCK_S_MAX: Final = 60.0
"""The remaining time of a lock is computed from two clocks, the service's and the receiver's. If
they differ it seems longer or shorter than it is: a longer time than this is not used."""
RENEWAL_COUNT_MAX: Final = 1_000
RENEW_AGAIN_S: Final = 1.0
"""After a renewal that failed."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of a received message."""

    path: str
    sequence_number: int
    token: bytes

    @classmethod
    def of(cls, message: ReceivedMessage) -> Lock:
        return cls(message.path, message.sequence_number, message.lock_token)

    def as_message(self) -> ReceivedMessage:
        """In the form that drivers need to settle by the token alone."""
        return ReceivedMessage(
            path=self.path,
            encoded=b"",
            sequence_number=self.sequence_number,
            lock_token=self.token,
        )


class ReadPermission(StrEnum):
    """The answer to a task that requests to read an order."""

    GO = "go"
    WAIT = "wait"
    """Another task is reading it."""
    OVER = "over"
    """Its batch was written, or belongs to another run of the query."""
    DELETED = "deleted"
    """Its messages were deleted when they were received: there is no second run."""


@dataclass(slots=True)
class Lease:
    """Locks that are renewed together."""

    numbers: list[int]
    renew_at_s: float
    """Infinite while they are being renewed."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Locks that are to be renewed now; renewed() takes the result."""

    order_id: str
    locks: list[Lock]
    lease: Lease
    half_s: float
    """Half the time of these locks."""


@dataclass(slots=True)
class PartitionLedger:
    """One order."""

    epoch: int
    locks: dict[int, Lock] = field(default_factory=dict)
    """By sequence number, in the order in which they were received."""
    is_sealed: bool = False
    was_begun: bool = False
    is_written: bool = False
    """Its batch was written, so no task reads it any more."""
    owner: str | None = None
    last_report_s: float = 0.0
    read_count: int = 0
    """Messages that the owner has read so far, those of earlier runs among them."""
    leases: list[Lease] = field(default_factory=list)
    half_s: float = LOCK_S_MAX / 2
    """Half the time of its locks, which are of one queue: the shortest reported."""


@dataclass(slots=True)
class Counts:
    """Messages by outcome since the query was started."""

    received: int = 0
    settled: int = 0
    given_back: int = 0
    locks_lost: int = 0


class LockLedger:
    """All orders that are not settled."""

    def __init__(self, *, deletes: bool = False) -> None:
        """``deletes``: messages are deleted when they are received, so there are no locks."""
        self.counts = Counts()
        self._deletes = deletes
        self._ledgers: dict[str, PartitionLedger] = {}

    # -- orders ---------------------------------------------------------------------------

    def plan(self, order_id: str, epoch: int) -> None:
        """Add an order, which tasks may request from now on."""
        self._ledgers[order_id] = PartitionLedger(epoch)

    def begin(self, order_id: str, reader: str, now_s: float) -> ReadPermission:
        """``reader`` requests to read the order from its beginning."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.is_written:
            return ReadPermission.OVER
        if self._deletes and ledger.was_begun:
            return ReadPermission.DELETED
        if ledger.is_sealed:
            return ReadPermission.GO
        if ledger.owner not in (None, reader) and now_s - ledger.last_report_s < LEASE_S:
            return ReadPermission.WAIT
        ledger.owner, ledger.last_report_s, ledger.was_begun = reader, now_s, True
        return ReadPermission.GO

    def known(self, order_id: str) -> tuple[list[Lock], bool]:
        """The locks of the order so far, and whether these are all."""
        ledger = self._ledgers[order_id]
        return list(ledger.locks.values()), ledger.is_sealed

    def progress(self, order_id: str) -> str:
        """A value that changes when the owner of an order reads on, or another one replaces it."""
        ledger = self._ledgers[order_id]
        return f"{ledger.owner}/{ledger.read_count}"

    def note_alive(
        self, order_id: str, reader: str, now_s: float, *, read_count: int | None = None
    ) -> bool:
        """Note that a reader is alive and how many messages it has read; whether it is the
        owner."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.owner != reader:
            return False
        ledger.last_report_s = now_s
        if read_count is not None:
            ledger.read_count = read_count
        return True

    def report(
        self, order_id: str, reader: str, locks: Sequence[Lock], *, lock_s: float, now_s: float
    ) -> bool:
        """Add messages that the owner has just received; False when it is not the owner."""
        if not self.note_alive(order_id, reader, now_s) or self._ledgers[order_id].is_sealed:
            return False
        self.add_locks(order_id, locks, lock_s=max(LOCK_S_MIN, lock_s), now_s=now_s)
        return True

    def add_locks(
        self, order_id: str, locks: Sequence[Lock], *, lock_s: float, now_s: float
    ) -> None:
        """Add messages to an order, which are locked for ``lock_s`` more seconds."""
        ledger = self._ledgers[order_id]
        ledger.half_s = min(ledger.half_s, max(LOCK_S_MIN, lock_s) / 2)
        ledger.locks.update((lock.sequence_number, lock) for lock in locks)
        renew_at_s = now_s + min(ledger.half_s, max(0.0, lock_s / 2))
        ledger.leases.append(Lease([lock.sequence_number for lock in locks], renew_at_s))
        self.counts.received += len(locks)

    def move(self, from_id: str, to_id: str) -> bool:
        """Move all locks of one ledger to another, and remove the first; False: there were none."""
        old, new = self._ledgers.pop(from_id), self._ledgers[to_id]
        new.locks.update(old.locks)
        new.leases += old.leases
        new.half_s = min(new.half_s, old.half_s)
        return bool(old.locks)

    def forget(self, order_id: str, *, settled: int, lost: int) -> None:
        """Drop the locks of an order: ``settled`` messages were deleted, ``lost`` locks were lost.
        A message that is neither stays counted as received only: its deletion is ambiguous."""
        self._ledgers[order_id].locks.clear()
        self.counts.settled += settled
        self.counts.locks_lost += lost

    def deleted(self, count: int) -> None:
        """Count messages that have no ledger, because they were deleted when received."""
        self.counts.received += count
        self.counts.settled += count

    def finish(self, order_id: str, reader: str) -> bool:
        """The owner has read the order to its end; False when another reader owns it."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.owner != reader:
            return False
        ledger.is_sealed, ledger.owner = True, None
        return True

    def leave(self, order_id: str, reader: str) -> None:
        """A reader ends before the order does."""
        ledger = self._ledgers.get(order_id)
        if ledger is not None and ledger.owner == reader:
            ledger.owner = None

    def remove_missing(self, order_id: str, sequence_numbers: Iterable[int]) -> int:
        """Remove messages that are no longer in the queue from an order; how many it had."""
        ledger = self._ledgers.get(order_id)
        if ledger is None:
            return 0
        gone = [n for n in sequence_numbers if ledger.locks.pop(n, None) is not None]
        self.counts.locks_lost += len(gone)
        return len(gone)

    # -- locks ----------------------------------------------------------------------------

    def due(self, now_s: float) -> list[Renewal]:
        """Locks of which half the time is over; they are not due again until renewed()."""
        found: list[Renewal] = []
        for order_id, ledger in self._ledgers.items():
            due = [lease for lease in ledger.leases if now_s >= lease.renew_at_s]
            if not due:
                continue
            # From now on together; a message that was lost and received again was in two leases.
            numbers = list(dict.fromkeys(n for lease in due for n in lease.numbers))
            held = [n for n in numbers if n in ledger.locks]
            ledger.leases = [lease for lease in ledger.leases if now_s < lease.renew_at_s]
            for start in range(0, len(held), RENEWAL_COUNT_MAX):
                part = held[start : start + RENEWAL_COUNT_MAX]
                lease = Lease(part, inf)
                ledger.leases.append(lease)
                locks = [ledger.locks[n] for n in part]
                found.append(Renewal(order_id, locks, lease, ledger.half_s))
        return found

    def renewed(self, renewal: Renewal, lost: Sequence[Lock] | None, *, began_s: float) -> int:
        """Note the result of a renewal that began at ``began_s``: which locks were lost, None for a
        failure; returns how many of these were still in the ledger."""
        lease = renewal.lease
        if lost is None:
            lease.renew_at_s = began_s + RENEW_AGAIN_S
            return 0
        lease.renew_at_s = began_s + renewal.half_s
        ledger = self._ledgers.get(renewal.order_id)
        held = {} if ledger is None else ledger.locks
        # With another token the message was received again meanwhile.
        gone = [each.sequence_number for each in lost if held.get(each.sequence_number) == each]
        return self.remove_missing(renewal.order_id, gone)

    # -- the batch was written ------------------------------------------------------------

    def of_epoch(self, epoch: int) -> dict[str, PartitionLedger]:
        """The orders of this batch alone."""
        return {name: each for name, each in self._ledgers.items() if each.epoch == epoch}

    def written(self, epoch: int) -> dict[str, PartitionLedger]:
        """The orders of this batch and of all before it, until close() of each."""
        found = {name: each for name, each in self._ledgers.items() if each.epoch <= epoch}
        for ledger in found.values():
            ledger.is_written, ledger.owner = True, None
        return found

    def take(self, order_id: str, count_max: int) -> list[Lock]:
        """Take some of an order's locks, to complete or abandon their messages now."""
        locks = self._ledgers[order_id].locks
        return [locks.pop(n) for n in list(islice(locks, count_max))]

    def put_back(self, order_id: str, locks: Sequence[Lock], now_s: float) -> None:
        """Put back locks that could not be settled: they are renewed, and taken again."""
        ledger = self._ledgers[order_id]
        ledger.locks.update((lock.sequence_number, lock) for lock in locks)
        # A lease drops taken locks when it is due. One that is not due yet still has them: in a
        # second lease they would be renewed twice, and once more after each failure.
        leased = {n for lease in ledger.leases for n in lease.numbers}
        bare = [n for lock in locks if (n := lock.sequence_number) not in leased]
        ledger.leases.append(Lease(bare, now_s))

    def ended(self, order_id: str, count: int, lost_count: int) -> None:
        """Count ``count`` taken messages as settled or abandoned, except for lost locks."""
        self.counts.locks_lost += lost_count
        if self._ledgers[order_id].is_sealed:
            self.counts.settled += count - lost_count
        else:
            self.counts.given_back += count - lost_count

    def close(self, order_id: str) -> None:
        """Remove an order of which all locks were taken."""
        del self._ledgers[order_id]
