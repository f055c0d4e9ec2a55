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
Rule 6: a lock is renewed when half of its time is over. A lost one is counted, and its message
        comes again.

This file reads no clock and touches no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from twinbus.core.parcel import Delivered

__all__ = ["Counts", "Holding", "Ledger", "Lock", "Turn"]

LEASE_S: Final = 5.0
"""Owners are heard from every second, also while Spark does not read from them."""
LOCK_S_MIN: Final = 1.0
"""Clocks differ: a lock that seems to be over is still renewed, and only then known to be lost."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A message that is ours for a while."""

    path: str
    sequence_number: int
    token: bytes

    @classmethod
    def of(cls, message: Delivered) -> Lock:
        return cls(message.path, message.sequence_number, message.lock_token)

    def as_message(self) -> Delivered:
        """As drivers want it, to settle by the token alone."""
        return Delivered(
            path=self.path,
            encoded=b"",
            sequence_number=self.sequence_number,
            lock_token=self.token,
        )


class Turn(StrEnum):
    """What a task is told that wants to read an order."""

    GO = "go"
    WAIT = "wait"
    """Another task is reading it."""
    OVER = "over"
    """Its batch was written, or belongs to another run of the query."""
    DELETED = "deleted"
    """Its messages were deleted when they were received: there is no second run."""


@dataclass(slots=True)
class _Lease:
    """Locks that were taken together and are renewed together."""

    numbers: list[int]
    half_s: float
    renew_at_s: float


@dataclass(slots=True)
class Ledger:
    """One order."""

    epoch: int
    locks: dict[int, Lock] = field(default_factory=dict)
    """By sequence number, in the order in which they were received."""
    is_sealed: bool = False
    was_begun: bool = False
    owner: str | None = None
    heard_at_s: float = 0.0
    leases: list[_Lease] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """What became of messages since the query was started."""

    received: int = 0
    settled: int = 0
    given_back: int = 0
    locks_lost: int = 0


class Holding:
    """All orders that are not settled."""

    def __init__(self, *, deletes: bool = False) -> None:
        """``deletes``: messages are deleted when they are received, so there are no locks."""
        self.counts = Counts()
        self._deletes = deletes
        self._ledgers: dict[str, Ledger] = {}

    # -- orders ---------------------------------------------------------------------------

    def plan(self, order_id: str, epoch: int) -> None:
        """An order that tasks may ask for from now on."""
        self._ledgers[order_id] = Ledger(epoch)

    def begin(self, order_id: str, reader: str, now_s: float) -> Turn:
        """``reader`` wants to read the order from its beginning."""
        ledger = self._ledgers.get(order_id)
        if ledger is None:
            return Turn.OVER
        if self._deletes and ledger.was_begun:
            return Turn.DELETED
        if ledger.is_sealed:
            return Turn.GO
        if ledger.owner not in (None, reader) and now_s - ledger.heard_at_s < LEASE_S:
            return Turn.WAIT
        ledger.owner, ledger.heard_at_s, ledger.was_begun = reader, now_s, True
        return Turn.GO

    def known(self, order_id: str) -> tuple[list[Lock], bool]:
        """What the order has so far, and whether that is all."""
        ledger = self._ledgers[order_id]
        return list(ledger.locks.values()), ledger.is_sealed

    def heard(self, order_id: str, reader: str, now_s: float) -> bool:
        """A reader is alive; whether it is the owner."""
        ledger = self._ledgers.get(order_id)
        if ledger is None or ledger.owner != reader:
            return False
        ledger.heard_at_s = now_s
        return True

    def report(
        self, order_id: str, reader: str, locks: Sequence[Lock], *, lock_s: float, now_s: float
    ) -> bool:
        """The owner received messages; False when it is not the owner (any more)."""
        if not self.heard(order_id, reader, now_s) or self._ledgers[order_id].is_sealed:
            return False
        self.hand(order_id, locks, lock_s=lock_s, now_s=now_s)
        return True

    def hand(self, order_id: str, locks: Sequence[Lock], *, lock_s: float, now_s: float) -> None:
        """Messages that belong to an order, locked for ``lock_s`` more seconds."""
        ledger = self._ledgers[order_id]
        ledger.locks.update((lock.sequence_number, lock) for lock in locks)
        half_s = max(LOCK_S_MIN, lock_s) / 2
        numbers = [lock.sequence_number for lock in locks]
        ledger.leases.append(_Lease(numbers, half_s, now_s + half_s))
        self.counts.received += len(locks)

    def move(self, from_id: str, to_id: str) -> bool:
        """All that is in one ledger goes to another, and the first is gone; False: nothing was."""
        old, new = self._ledgers.pop(from_id), self._ledgers[to_id]
        new.locks.update(old.locks)
        new.leases += old.leases
        return bool(old.locks)

    def forget(self, order_id: str) -> None:
        """The messages of an order were deleted when they were received."""
        self._ledgers[order_id].locks.clear()

    def seal(self, order_id: str, reader: str) -> bool:
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

    def lost(self, order_id: str, sequence_numbers: Iterable[int]) -> int:
        """Messages of an order that are not ours any more; how many of them were."""
        ledger = self._ledgers.get(order_id)
        if ledger is None:
            return 0
        gone = [n for n in sequence_numbers if ledger.locks.pop(n, None) is not None]
        self.counts.locks_lost += len(gone)
        return len(gone)

    # -- locks ----------------------------------------------------------------------------

    def due(self, now_s: float) -> dict[str, list[Lock]]:
        """By order: locks of which half the time is over. The next half begins now."""
        found: dict[str, list[Lock]] = {}
        for order_id, ledger in self._ledgers.items():
            for lease in ledger.leases:
                if now_s >= lease.renew_at_s:
                    lease.renew_at_s = now_s + lease.half_s
                    locks = [ledger.locks[n] for n in lease.numbers if n in ledger.locks]
                    found.setdefault(order_id, []).extend(locks)
        # A message that was lost and received again is in two leases.
        return {name: list(dict.fromkeys(locks)) for name, locks in found.items() if locks}

    # -- the batch was written ------------------------------------------------------------

    def written(self, epoch: int) -> dict[str, Ledger]:
        """The orders of this batch and of all before it, until close() is told of each."""
        return {name: each for name, each in self._ledgers.items() if each.epoch <= epoch}

    def close(self, order_id: str, lost_count: int) -> None:
        """An order's messages were settled or given back, except for some lost locks."""
        ledger = self._ledgers.pop(order_id)
        count = len(ledger.locks) - lost_count
        self.counts.locks_lost += lost_count
        if ledger.is_sealed:
            self.counts.settled += count
        else:
            self.counts.given_back += count
