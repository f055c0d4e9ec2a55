"""What senders and receivers know: the reference that the broker is compared with.

Every message has one entry. An entry says what its owner was promised and what may have
happened meanwhile; it knows nothing of chunks, windows, batches or commits.

    WAITING --stored--> FREE --handed out--> LOCKED --complete--> LEAVING --stored--> GONE
       |                 ^                      |  +--defer-----> DEFERRED (by number only)
       +--> REFUSED      +----- RETURNING <-----+  +--dead-letter, last attempt, expiry--> MOVING

``is_certain`` says that the phase was confirmed; without it the message may still be on its
way there. A crash may undo what is not certain and nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.queue_simulation.shadow import Held, WatchedStore, insist
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.outcomes import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Release,
    SettlementOutcome,
)
from twinbus.broker.engine.queue import Queue
from twinbus.common.clock import Instant


class Phase(enum.Enum):
    WAITING = enum.auto()
    REFUSED = enum.auto()
    SCHEDULED = enum.auto()
    FREE = enum.auto()
    LOCKED = enum.auto()
    RETURNING = enum.auto()
    DEFERRED = enum.auto()
    MOVING = enum.auto()
    LEAVING = enum.auto()
    GONE = enum.auto()


@dataclass(eq=False)
class Entry:
    """One message."""

    label: bytes
    expires_ms: int | None = None
    due_ms: int | None = None
    phase: Phase = Phase.WAITING
    is_certain: bool = False
    is_dead: bool = False
    """It is in the dead-letter queue."""
    seq: int | None = None
    attempts: int = 0
    """Failed attempts to deliver it."""
    attempts_shown: int = 0
    """The delivery count that a receiver has seen."""
    is_deferred: bool = False
    is_surely_deferred: bool = False
    is_surely_dead: bool = False
    """The move to the dead-letter queue was acknowledged."""
    cancels: int = 0
    """Requests to cancel it that were not answered, or not with success or failure."""
    swept_by_ms: int = 0
    """If it expired in a lock that a crash ended, it is not handed out, and gone by then."""
    token: bytes = b""
    locked_until_s: float = 0.0
    version: int = 0
    """Grows with every change of phase, so that a late answer is known as one."""

    def become(self, phase: Phase, *, is_certain: bool = False) -> None:
        self.phase, self.is_certain = phase, is_certain
        self.version += 1


class Book:
    """All messages of one queue and its dead-letter queue."""

    def __init__(self, description: QueueDescription) -> None:
        self._max_delivery_count = description.max_delivery_count
        self._dead_letters_expired = description.dead_lettering_on_expiration
        self._lock_duration_ms = description.lock_duration_ms
        self.entries: dict[bytes, Entry] = {}
        self._numbers: dict[tuple[bool, int], bytes] = {}
        self.wall_ms_max = 0
        """The latest time anybody has seen on the wall."""

    def at(self, now: Instant) -> None:
        """Time has passed: locks run out."""
        self.wall_ms_max = max(self.wall_ms_max, now.wall_ms)
        for entry in self.entries.values():
            if entry.phase is Phase.LOCKED and entry.locked_until_s <= now.monotonic_s:
                self.attempt_failed(entry)

    def may_be_expired(self, entry: Entry) -> bool:
        return (
            not entry.is_dead
            and entry.expires_ms is not None
            and entry.expires_ms <= self.wall_ms_max
        )

    def of(self, *phases: Phase, is_dead: bool = False) -> Iterator[Entry]:
        for entry in self.entries.values():
            if entry.phase in phases and entry.is_dead is is_dead:
                yield entry

    # -- sending --------------------------------------------------------------------------

    def numbered(self, entry: Entry, seq: int, is_dead: bool = False) -> None:
        """Somebody was told that the message has this sequence number."""
        owner = self._numbers.setdefault((is_dead, seq), entry.label)
        insist(owner == entry.label, "no sequence number is used twice")
        entry.seq = seq

    def stored(self, entry: Entry, seq: int) -> None:
        self.numbered(entry, seq)
        if entry.phase is not Phase.WAITING:
            # A receiver was faster than the acknowledgement.
            return
        entry.become(Phase.FREE if entry.due_ms is None else Phase.SCHEDULED, is_certain=True)

    # -- receiving ------------------------------------------------------------------------

    def handed_out(self, label: bytes, seq: int, count: int, now: Instant, queue: Queue) -> Entry:
        """A receiver got the message; check that it could."""
        self.at(now)
        is_dead = queue.is_dead_letter_queue
        insist(label in self.entries, "nothing comes from nowhere")
        entry = self.entries[label]
        self._arrive(entry, is_dead)
        if entry.phase is Phase.SCHEDULED and (entry.due_ms or 0) <= self.wall_ms_max:
            entry.become(Phase.FREE)
        insist(
            entry.phase in (Phase.FREE, Phase.RETURNING, Phase.WAITING),
            "it is not free to be handed out:",
            entry,
        )
        insist(
            is_dead or entry.expires_ms is None or entry.expires_ms > now.wall_ms,
            "an expired message is not delivered",
        )
        insist(count == entry.attempts, "the delivery count counts the failed attempts")
        entry.attempts_shown = count
        self._check_order(entry, seq, is_dead)
        self.numbered(entry, seq, is_dead)
        return entry

    def _arrive(self, entry: Entry, is_dead: bool) -> None:
        """If it was seen in the dead-letter queue, it may have got there meanwhile."""
        if entry.is_dead == is_dead:
            return
        insist(is_dead, "a dead-lettered message never comes back")
        is_expired = self._dead_letters_expired and self.may_be_expired(entry)
        insist(entry.phase is Phase.MOVING or is_expired, "only what was dead-lettered is dead")
        self._died(entry)

    def _died(self, entry: Entry) -> None:
        entry.is_dead = True
        entry.become(Phase.FREE)
        entry.seq, entry.attempts, entry.attempts_shown = None, 0, 0
        entry.is_deferred = entry.is_surely_deferred = False

    def _check_order(self, entry: Entry, seq: int, is_dead: bool) -> None:
        for other in self.of(Phase.FREE, is_dead=is_dead):
            if other is entry or not other.is_certain or other.seq is None:
                continue
            is_behind = other.seq > seq or self.may_be_expired(other)
            insist(is_behind, "the oldest message goes first:", seq, other.seq)

    def locked(self, entry: Entry, token: bytes, until_s: float) -> None:
        entry.become(Phase.LOCKED, is_certain=True)
        entry.token, entry.locked_until_s = token, until_s

    # -- settling -------------------------------------------------------------------------

    def attempt_failed(self, entry: Entry) -> None:
        entry.attempts += 1
        if not entry.is_dead and entry.attempts >= self._max_delivery_count:
            entry.become(Phase.MOVING)
        else:
            entry.become(Phase.DEFERRED if entry.is_deferred else Phase.RETURNING)

    def decide(self, entry: Entry, outcome: SettlementOutcome) -> None:
        """The holder of the lock has settled the message."""
        match outcome:
            case Complete():
                entry.become(Phase.LEAVING)
            case Abandon():
                self.attempt_failed(entry)
            case Defer():
                entry.is_deferred = True
                entry.become(Phase.DEFERRED)
            case DeadLetter():
                entry.become(Phase.MOVING)
            case Release():
                free = Phase.DEFERRED if entry.is_deferred else Phase.FREE
                entry.become(free, is_certain=True)

    def acknowledged(self, entry: Entry, outcome: SettlementOutcome, version: int) -> None:
        """The settlement is on disk. Others may have had the message meanwhile."""
        if isinstance(outcome, Defer):
            entry.is_surely_deferred = True
        if isinstance(outcome, DeadLetter):
            entry.is_surely_dead = True
        if entry.version != version:
            return
        match entry.phase:
            case Phase.LEAVING:
                entry.become(Phase.GONE, is_certain=True)
            case Phase.RETURNING:
                entry.become(Phase.FREE, is_certain=True)
            case Phase.DEFERRED:
                entry.is_certain = True

    # -- rest and restart -----------------------------------------------------------------

    def compare(self, store: WatchedStore, queue: Queue, now: Instant, *, crashed: bool) -> None:
        """Compare with the disk: after a crash, or when nothing is on its way any more."""
        self.at(now)
        found = _found(store, queue)
        insist(found.keys() <= self.entries.keys(), "nothing comes from nowhere")
        for label, entry in self.entries.items():
            if label in found:
                self._check_found(entry, *found[label], now=now, crashed=crashed)
            else:
                self._check_missing(entry, crashed)

    def _check_missing(self, entry: Entry, crashed: bool) -> None:
        may_be_gone = {Phase.REFUSED, Phase.GONE, Phase.LEAVING}
        if crashed:
            may_be_gone.add(Phase.WAITING)
        is_expired = self.may_be_expired(entry) and not self._dead_letters_expired
        insist(
            entry.phase in may_be_gone or is_expired or entry.cancels > 0,
            "lost:",
            entry,
        )
        if entry.phase is not Phase.REFUSED:
            entry.become(Phase.GONE, is_certain=True)

    def _check_found(
        self,
        entry: Entry,
        is_dead: bool,
        seq: int,
        held: Held,
        due: bool,
        now: Instant,
        crashed: bool,
    ) -> None:
        insist(entry.phase is not Phase.GONE, "came back:", entry)
        insist(entry.phase is not Phase.REFUSED, "was refused and is there:", entry)
        insist(is_dead or not entry.is_surely_dead, "acknowledged as dead-lettered:", entry)
        self._arrive(entry, is_dead)
        if entry.phase is Phase.SCHEDULED and not due:
            insist((entry.due_ms or 0) <= self.wall_ms_max, "appeared too early:", entry)
        if not crashed:
            self._check_settled_down(entry, due, now)
        insist(held.deferred or not entry.is_surely_deferred, "no longer deferred:", entry)
        insist(entry.is_deferred or not held.deferred, "nobody deferred it:", entry)
        attempts_min = entry.attempts_shown if crashed else entry.attempts
        insist(
            attempts_min <= held.delivery_count <= entry.attempts,
            "delivery count:",
            held,
            entry,
        )
        self._settle_on(entry, seq, held, due, crashed)

    def _check_settled_down(self, entry: Entry, due: bool, now: Instant) -> None:
        """With nothing on its way, what was decided has happened."""
        insist(entry.phase not in (Phase.LEAVING, Phase.MOVING), "still there:", entry)
        insist(entry.phase is not Phase.WAITING, "stored, but nobody was told:", entry)
        is_expired = (
            entry.expires_ms is not None
            and entry.expires_ms <= now.wall_ms
            and entry.swept_by_ms <= now.wall_ms
        )
        insist(
            entry.is_dead or due or entry.phase is Phase.LOCKED or not is_expired,
            "expired and still there:",
            entry,
        )
        insist(not due or (entry.due_ms or 0) > now.wall_ms, "overdue:", entry)

    def _settle_on(self, entry: Entry, seq: int, held: Held, due: bool, crashed: bool) -> None:
        self.numbered(entry, seq, entry.is_dead)
        if crashed:
            entry.swept_by_ms = self.wall_ms_max + self._lock_duration_ms
        entry.cancels = 0
        if entry.phase is Phase.LOCKED and not crashed:
            return
        entry.attempts = held.delivery_count
        entry.is_deferred = entry.is_surely_deferred = held.deferred
        if due:
            entry.become(Phase.SCHEDULED, is_certain=True)
        else:
            entry.become(Phase.DEFERRED if held.deferred else Phase.FREE, is_certain=True)


def _found(store: WatchedStore, queue: Queue) -> dict[bytes, tuple[bool, int, Held, bool]]:
    """Every message on disk by label: (is dead, sequence number, what is held, is scheduled)."""
    found: dict[bytes, tuple[bool, int, Held, bool]] = {}
    dead = queue.dead_letters
    assert dead is not None
    for machine in (queue, dead):
        shadow = store.shadow(machine.queue_id)
        for rows, is_scheduled in ((shadow.held, False), (shadow.scheduled, True)):
            for seq, held in rows.items():
                insist(held.label not in found, "twice on disk:", held.label)
                found[held.label] = (machine is dead, seq, held, is_scheduled)
    return found
