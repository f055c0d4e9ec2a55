"""What a streaming source has received and not yet settled: a ledger for each order of a batch.

    planned --begun by a task--> open --read to the end--> sealed --batch written--> settled
                                  '---- the batch was written all the same ----> given back

An order is one queue's part of one batch. Spark may run it more than once: a task is retried, a
second action reads the batch again, one source stands twice in a plan, a slow task is doubled.
Whatever runs, a message may be settled only if the rows that were written contain it:

Rule 1: a message enters the ledger before its row leaves the task. A row that was written is known.
Rule 2: an order has one reader that may receive, the owner. Others wait until it has sealed the
        order or is gone; then they start with all that is in the ledger. So every later run
        contains every earlier one, whichever of them Spark decides to keep.
Rule 3: a sealed order receives nothing more. All runs that came to an end yielded the same rows.
Rule 4: only sealed orders are settled. Of an order that no run handed over to its end nobody knows
        which rows left the task, so its messages go back to their queue. What a plan does with
        rows that it was handed (limit, show) cannot be seen from here: they count as read.
Rule 5: an owner that was silent for LEASE_S is gone: killed, or cut off. Should it live, its next
        report is refused, and its task fails before it yields anything that others do not have.
Rule 6: a lock is renewed when half of its time is over, and soon again when that failed. A lost
        one is counted, and its message comes again.
Rule 7: what is being settled is in no ledger: nobody renews it, nor takes a lock for lost that is
        gone because its message was completed.

This file reads no clock and touches no network.
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
"""Owners are heard from every second, also while Spark does not read from them."""
LOCK_S_MIN: Final = 5.0
"""The shortest of Azure. A broker of ours may have shorter ones, which are renewed too late."""
LOCK_S_MAX: Final = 60.0
"""How long a lock lasts is told by two clocks, the service's and the receiver's. Where these are
apart it seems to last longer or shorter than it does: so much is believed and no more."""
RENEWAL_COUNT_MAX: Final = 1_000
RENEW_AGAIN_S: Final = 1.0
"""After a renewal that failed."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A message that is ours for a while."""

    path: str
    sequence_number: int
    token: bytes

    @classmethod
    def of(cls, message: ReceivedMessage) -> Lock:
        return cls(message.path, message.sequence_number, message.lock_token)

    def as_message(self) -> ReceivedMessage:
        """As drivers want it, to settle by the token alone."""
        return ReceivedMessage(
            path=self.path,
            encoded=b"",
            sequence_number=self.sequence_number,
            lock_token=self.token,
        )


class ReadPermission(StrEnum):
    """What a task is told that wants to read an order."""

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
    """Locks that are to be renewed now; renewed() is told whether they were."""

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
    """Its batch was, so nobody reads it any more."""
    owner: str | None = None
    heard_at_s: float = 0.0
    read_count: int = 0
    """Messages that the owner has read so far, those of earlier runs among them."""
    leases: list[Lease] = field(default_factory=list)
    half_s: float = LOCK_S_MAX / 2
    """Half the time of its locks, which are of one queue: the least that was told."""


@dataclass(slots=True)
class Counts:
    """What became of messages since the query was started."""

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
        """An order that tasks may ask for from now on."""
        self._ledgers[order_id] = PartitionLedger(epoch)

    def begin(self, order_id: str, reader: str, now_s: float) -> ReadPermission:
        """``reader`` wants to read the order from its beginning."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.is_written:
            return ReadPermission.OVER
        if self._deletes and ledger.was_begun:
            return ReadPermission.DELETED
        if ledger.is_sealed:
            return ReadPermission.GO
        if ledger.owner not in (None, reader) and now_s - ledger.heard_at_s < LEASE_S:
            return ReadPermission.WAIT
        ledger.owner, ledger.heard_at_s, ledger.was_begun = reader, now_s, True
        return ReadPermission.GO

    def known(self, order_id: str) -> tuple[list[Lock], bool]:
        """What the order has so far, and whether that is all."""
        ledger = self._ledgers[order_id]
        return list(ledger.locks.values()), ledger.is_sealed

    def progress(self, order_id: str) -> str:
        """Changes when the owner of an order gets on, or another one takes its place."""
        ledger = self._ledgers[order_id]
        return f"{ledger.owner}/{ledger.read_count}"

    def heard(
        self, order_id: str, reader: str, now_s: float, *, read_count: int | None = None
    ) -> bool:
        """A reader is alive, and has read so many messages; whether it is the owner."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.owner != reader:
            return False
        ledger.heard_at_s = now_s
        if read_count is not None:
            ledger.read_count = read_count
        return True

    def report(
        self, order_id: str, reader: str, locks: Sequence[Lock], *, lock_s: float, now_s: float
    ) -> bool:
        """The owner received messages just now; False when it is not the owner (any more)."""
        if not self.heard(order_id, reader, now_s) or self._ledgers[order_id].is_sealed:
            return False
        self.add_locks(order_id, locks, lock_s=max(LOCK_S_MIN, lock_s), now_s=now_s)
        return True

    def add_locks(
        self, order_id: str, locks: Sequence[Lock], *, lock_s: float, now_s: float
    ) -> None:
        """Messages that belong to an order, locked for ``lock_s`` more seconds."""
        ledger = self._ledgers[order_id]
        ledger.half_s = min(ledger.half_s, max(LOCK_S_MIN, lock_s) / 2)
        ledger.locks.update((lock.sequence_number, lock) for lock in locks)
        renew_at_s = now_s + min(ledger.half_s, max(0.0, lock_s / 2))
        ledger.leases.append(Lease([lock.sequence_number for lock in locks], renew_at_s))
        self.counts.received += len(locks)

    def move(self, from_id: str, to_id: str) -> bool:
        """All that is in one ledger goes to another, and the first is gone; False: nothing was."""
        old, new = self._ledgers.pop(from_id), self._ledgers[to_id]
        new.locks.update(old.locks)
        new.leases += old.leases
        new.half_s = min(new.half_s, old.half_s)
        return bool(old.locks)

    def forget(self, order_id: str, *, settled: int, lost: int) -> None:
        """Nobody needs the locks of an order any more: so many messages were deleted, so many
        locks were lost. What is neither is received and nothing else: nobody knows."""
        self._ledgers[order_id].locks.clear()
        self.counts.settled += settled
        self.counts.locks_lost += lost

    def deleted(self, count: int) -> None:
        """Messages that have no ledger, because they were deleted when they were received."""
        self.counts.received += count
        self.counts.settled += count

    def finish(self, order_id: str, reader: str) -> bool:
        """The owner has read the order to its end; False when somebody else has it."""
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
        """Messages of an order that are not there any more; how many of them were."""
        ledger = self._ledgers.get(order_id)
        if ledger is None:
            return 0
        gone = [n for n in sequence_numbers if ledger.locks.pop(n, None) is not None]
        self.counts.locks_lost += len(gone)
        return len(gone)

    # -- locks ----------------------------------------------------------------------------

    def due(self, now_s: float) -> list[Renewal]:
        """Locks of which half the time is over, until renewed() is told of each."""
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
        """How a renewal ended that began then: which locks were lost, None for a failure; how many
        of these were still of importance."""
        lease = renewal.lease
        if lost is None:
            lease.renew_at_s = began_s + RENEW_AGAIN_S
            return 0
        lease.renew_at_s = began_s + renewal.half_s
        ledger = self._ledgers.get(renewal.order_id)
        held = {} if ledger is None else ledger.locks
        # Another token: it was received again meanwhile.
        gone = [each.sequence_number for each in lost if held.get(each.sequence_number) == each]
        return self.remove_missing(renewal.order_id, gone)

    # -- the batch was written ------------------------------------------------------------

    def of_epoch(self, epoch: int) -> dict[str, PartitionLedger]:
        """The orders of this batch alone."""
        return {name: each for name, each in self._ledgers.items() if each.epoch == epoch}

    def written(self, epoch: int) -> dict[str, PartitionLedger]:
        """The orders of this batch and of all before it, until close() is told of each."""
        found = {name: each for name, each in self._ledgers.items() if each.epoch <= epoch}
        for ledger in found.values():
            ledger.is_written, ledger.owner = True, None
        return found

    def take(self, order_id: str, count_max: int) -> list[Lock]:
        """Some of an order's locks, to settle or give back their messages now."""
        locks = self._ledgers[order_id].locks
        return [locks.pop(n) for n in list(islice(locks, count_max))]

    def put_back(self, order_id: str, locks: Sequence[Lock], now_s: float) -> None:
        """These could not be settled: they are renewed, and taken again."""
        ledger = self._ledgers[order_id]
        ledger.locks.update((lock.sequence_number, lock) for lock in locks)
        # A lease drops what was taken when its time comes. One whose time has not come has them
        # still: in a second lease they would be renewed twice, and once more after each failure.
        leased = {n for lease in ledger.leases for n in lease.numbers}
        bare = [n for lock in locks if (n := lock.sequence_number) not in leased]
        ledger.leases.append(Lease(bare, now_s))

    def ended(self, order_id: str, count: int, lost_count: int) -> None:
        """So many that were taken are settled or given back, except for some lost locks."""
        self.counts.locks_lost += lost_count
        if self._ledgers[order_id].is_sealed:
            self.counts.settled += count - lost_count
        else:
            self.counts.given_back += count - lost_count

    def close(self, order_id: str) -> None:
        """All of an order was taken."""
        del self._ledgers[order_id]
