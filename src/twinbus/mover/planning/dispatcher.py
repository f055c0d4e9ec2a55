"""Gives the orders of the syphon's shifts: who empties which queue, and what is tried again when.

    a bell rang, a destination is due, a queue was never looked through
        --orders()--> one WorkOrder for each task --take()--> what they left behind

Rule 1: nothing is ordered for a queue that has nothing to do: an idle backlog costs no task.
Rule 2: a queue is in one order of a batch at most; numbers that were handed out and not reported
        on are set aside again.
Rule 3: a queue that could not be read, or whose task was never heard of again, is left alone for
        longer and longer; only its bell brings it back sooner.
Rule 4: while the primary is away no order is given. Somebody knocks, with longer and longer
        pauses and at other doors each time, and the first answer opens it.
Rule 5: what somebody else set aside, or what nobody could remember, is looked for again: when a
        queue is at work by its task, when it is idle by whoever asks ``queues_to_scan()``. Without
        a sign of diverted messages nothing is looked for (scan_pace.py).
Rule 6: a shift that went faster than its share of the rate makes the next orders wait.
Rule 7: this file reads no clock: ``now_s`` comes in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from twinbus.encoding.pair_mark import shared_scan_s
from twinbus.encoding.transit import ReceivedMessage
from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.circuit_breaker import DESTINATIONS_MAX
from twinbus.mover.planning.deferred_messages import DeferredMessages
from twinbus.mover.planning.scan_pace import ScanPace
from twinbus.mover.planning.work_order import CircuitSnapshot, WorkOrder, WorkReport

__all__ = ["Dispatcher", "WorkLimits"]

# What is asked for by number comes at some 2,000 a second: about one shift's worth.
RETURNING_MAX: Final = 20_000
KNOCK_PATHS_MAX: Final = 8
# A look shows every message that is set aside, and each costs an operation: with more than this the
# looks are rarer, so that waiting costs no more an hour.
LOOK_MESSAGES_MAX: Final = 1_000
# A queue of which more was set aside than can be remembered is looked through again once so much
# of its memory is free.
ROOM_AGAIN: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """How much one batch may do before it shows its receipts."""

    tasks: int = 2
    """Shifts at once."""
    messages_max: int = 1_000_000
    """Messages of one batch, all tasks together."""
    seconds_max: float = 15.0
    rate_per_s: float | None = None
    """Messages a second, all tasks together."""
    discovery_interval_s: float = 3_600.0
    """How often a queue is looked through for what somebody else set aside, while there are signs
    of diverted messages; one with many messages that are known to be set aside less often."""


@dataclass(slots=True)
class _QueueBackoff:
    """A queue that is left alone for a while (rule 3)."""

    count: int = 0
    until_s: float = 0.0


@dataclass(slots=True)
class _OpenCircuit:
    note: CircuitSnapshot
    noted_s: float

    @property
    def due_s(self) -> float:
        return self.noted_s + self.note.due_in_s

    def aged(self, now_s: float) -> CircuitSnapshot:
        passed_s = now_s - self.noted_s
        gone_for_s = self.note.gone_for_s
        return self.note._replace(
            due_in_s=self.note.due_in_s - passed_s,
            gone_for_s=None if gone_for_s is None else gone_for_s + passed_s,
        )


class Dispatcher:
    """What is known between two batches."""

    def __init__(
        self,
        queues: Sequence[str],
        *,
        backoff: Backoff,
        random: Random,
        limits: WorkLimits | None = None,
    ) -> None:
        self.queues = tuple(queues)
        self.limits = limits or WorkLimits()
        self._backoff, self._random = backoff, random
        self._deferred = {queue: DeferredMessages() for queue in queues}
        self._checked_out: dict[str, dict[str, tuple[int, ...]]] = {}
        self._open_circuits: dict[str, _OpenCircuit] = {}
        self._scan_pace = ScanPace()
        self._scanned_s: dict[str, float] = {}
        """When a queue was last looked through to its end; missing: it has to be."""
        self._scan_from: dict[str, int] = {}
        """The numbers from which looks go on that were not ended."""
        self._overfull: set[str] = set()
        """Queues in which more may be set aside than is remembered."""
        self._foreign: Counter[str] = Counter()
        """Messages of other pairs that were met, by queue (P21)."""
        self._unfinished: set[str] = set()
        self._unreported: set[str] = set()
        self._backoffs: dict[str, _QueueBackoff] = {}
        self._failed_probe_count = 0
        self._probe_due_s: float | None = None
        self._free_s = 0.0
        """When the rate allows the next orders."""

    def add(self, queue: str) -> None:
        """One more queue, which the next orders are for."""
        self.queues = (*self.queues, queue)
        self._deferred[queue] = DeferredMessages()

    # -- what is known --------------------------------------------------------------------

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their destinations."""
        lent = sum(len(numbers) for each in self._checked_out.values() for numbers in each.values())
        return lent + sum(len(each) for each in self._deferred.values())

    @property
    def unfinished_count(self) -> int:
        """Queues that are known to hold messages."""
        return len(self._unfinished)

    def deferred_by_destination(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for deferred in self._deferred.values():
            counts.update({path: deferred.count(path) for path in deferred.paths()})
        for lent in self._checked_out.values():
            counts.update({path: len(numbers) for path, numbers in lent.items()})
        return dict(counts)

    def open_circuits(self, now_s: float) -> tuple[CircuitSnapshot, ...]:
        """Destinations that take nothing."""
        return tuple(each.aged(now_s) for each in self._open_circuits.values())

    @property
    def is_primary_unreachable(self) -> bool:
        return self._probe_due_s is not None

    # -- orders ---------------------------------------------------------------------------

    def has_work(self, now_s: float) -> bool:
        """Whether there is something to do although no bell rang."""
        return not self.is_primary_unreachable and bool(self.busy(now_s))

    def set_rate(self, rate_per_s: float | None, now_s: float) -> None:
        """From now on. What is owed was counted in seconds of the old rate."""
        if rate_per_s != (old_per_s := self.limits.rate_per_s):
            owed = self.pause_s(now_s) * (old_per_s or 0.0)
            self._free_s = now_s + (owed / rate_per_s if rate_per_s else 0.0)
            self.limits = replace(self.limits, rate_per_s=rate_per_s)

    def pause_s(self, now_s: float) -> float:
        """For how long no orders are to be given, because of the rate (rule 6)."""
        return max(0.0, self._free_s - now_s)

    def next_due_s(self, now_s: float) -> float | None:
        """When there will be, as far as is known; None: when a bell rings."""
        if self._probe_due_s is not None:
            return self._probe_due_s
        dues = [self._due_s(queue, now_s) for queue in self.queues]
        return min((each for each in dues if each is not None), default=None)

    def orders(
        self, rung: Mapping[str, ReceivedMessage | None], now_s: float, *, everything: bool = False
    ) -> list[WorkOrder]:
        """Orders for the queues that rang and for what else is due; with ``everything`` for all
        queues, as after a crash."""
        self._return_unreported(now_s)
        if rung:
            self.note_sign(now_s)
        wanted = set(rung) | self.busy(now_s)
        busy = [queue for queue in self.queues if everything or queue in wanted]
        if not busy:
            return []
        self._unreported = set(busy)
        tasks = min(self.limits.tasks, len(busy))
        shares = [tuple(busy[first::tasks]) for first in range(tasks)]
        return [self._order(share, rung, now_s, tasks, everything) for share in shares]

    def busy(self, now_s: float) -> set[str]:
        """Queues that the next orders are for, whether they ring or not."""
        dues = {queue: self._due_s(queue, now_s) for queue in self.queues}
        return {queue for queue, due_s in dues.items() if due_s is not None and due_s <= now_s}

    def _due_s(self, queue: str, now_s: float) -> float | None:
        """When a queue has something to do, its bell apart."""
        if queue in self._unfinished or queue not in self._scanned_s:
            due_s: float | None = now_s
        else:
            paths = self._deferred[queue].paths()
            due_s = min((self._path_due_s(path, now_s) for path in paths), default=None)
        setback = self._backoffs.get(queue)
        return due_s if due_s is None or setback is None else max(due_s, setback.until_s)

    def _path_due_s(self, path: str, now_s: float) -> float:
        closed = self._open_circuits.get(path)
        return now_s if closed is None else closed.due_s

    def _order(
        self,
        queues: tuple[str, ...],
        rung: Mapping[str, ReceivedMessage | None],
        now_s: float,
        tasks: int,
        everything: bool,
    ) -> WorkOrder:
        returning: dict[str, dict[str, tuple[int, ...]]] = {}
        holding: dict[str, tuple[str, ...]] = {}
        for queue in queues:
            deferred = self._deferred[queue]
            due = [path for path in deferred.paths() if self._path_due_s(path, now_s) <= now_s]
            lent = {path: tuple(deferred.take(path, RETURNING_MAX)) for path in due}
            if lent:
                returning[queue] = self._checked_out[queue] = lent
            if held := deferred.paths():
                holding[queue] = tuple(held)
        limits = self.limits
        return WorkOrder(
            queues=queues,
            prefetched=tuple(each for queue in queues if (each := rung.get(queue)) is not None),
            retry_deferred=returning,
            blocked_paths=holding,
            open_circuits=self.open_circuits(now_s),
            scan_from={
                queue: self._scan_from.get(queue, 1)
                for queue in queues
                if everything or self._is_stale(queue, now_s)
            },
            messages_max=max(1, limits.messages_max // tasks),
            seconds_max=limits.seconds_max,
            rate_per_s=None if limits.rate_per_s is None else limits.rate_per_s / tasks,
        )

    def _is_stale(self, queue: str, now_s: float) -> bool:
        looked_s = self._scanned_s.get(queue)
        if looked_s is None:
            return True
        is_old = now_s - looked_s >= self._scan_interval_s(queue)
        return is_old and (self._holds(queue) or self._scan_pace.is_wanted(looked_s))

    def _holds(self, queue: str) -> bool:
        """Whether messages are known to be set aside in it, or to be another pair's."""
        return bool(self._deferred[queue] or queue in self._checked_out or self._foreign[queue])

    def _scan_interval_s(self, queue: str) -> float:
        known = len(self._deferred[queue])
        if foreign := self._foreign[queue]:
            return shared_scan_s(self.limits.discovery_interval_s, known + foreign)
        return self.limits.discovery_interval_s * max(1.0, known / LOOK_MESSAGES_MAX)

    # -- queues that are idle -------------------------------------------------------------

    def queues_to_scan(self, now_s: float) -> list[str]:
        """Idle queues in which somebody may have set something aside (rule 5)."""
        if self.is_primary_unreachable:
            return []
        # One that was never looked through is its task's.
        idle = self._scanned_s.keys() - self._unreported - self.busy(now_s)
        return [each for each in self.queues if each in idle and self._is_stale(each, now_s)]

    def scan_finished(self, queue: str, now_s: float, *, is_whole: bool) -> None:
        """After defer() for all that was found; not whole: it could not be read to its end."""
        if not is_whole:
            self.note_sign(now_s)
        early_s = 0.0 if is_whole else self._scan_interval_s(queue) - self._backoff.last_s
        self._scanned_s[queue] = now_s - max(0.0, early_s)

    def note_sign(self, now_s: float) -> None:
        """Messages may have been diverted: what was set aside of them is looked for."""
        self._scan_pace.note_sign(now_s)

    def met_foreign(self, queue: str, count: int) -> None:
        """Messages of another pair are in a queue: its syphon may set ours aside (P21)."""
        self._foreign[queue] += count

    def defer(self, queue: str, numbers: Mapping[str, Sequence[int]]) -> None:
        """Remember numbers by destination, as far as there is room."""
        deferred = self._deferred[queue]
        for path, each in numbers.items():
            deferred.add(path, each)
        if deferred.fullness >= 1:
            self._overfull.add(queue)

    # -- reports --------------------------------------------------------------------------

    def apply_report(self, order: WorkOrder, report: WorkReport, now_s: float) -> None:
        """Remember what a shift left behind."""
        for queue in order.queues:
            self._unreported.discard(queue)
            self._checked_out.pop(queue, None)
            if queue not in report.faults:
                self._backoffs.pop(queue, None)
            self.defer(queue, report.deferred.get(queue, {}))
        for path in report.recovered:
            self._open_circuits.pop(path, None)
        for note in report.open_circuits:
            self._open_circuits.pop(note.path, None)
            self._open_circuits[note.path] = _OpenCircuit(note, now_s)
        while len(self._open_circuits) > DESTINATIONS_MAX:
            del self._open_circuits[next(iter(self._open_circuits))]
        self._apply_scans(order, report, now_s)
        self._unfinished -= set(order.queues)
        self._unfinished |= set(order.queues) - set(report.emptied) - set(report.faults)
        if report.deferred or report.open_circuits or report.faults or self._unfinished:
            self.note_sign(now_s)
        for queue in report.faults:
            # Left to its bell, which has pauses of its own; then it is looked through.
            self._scanned_s.setdefault(queue, -math.inf)
            self._back_off(queue, now_s)
        if report.is_primary_unreachable:
            self._note_unreachable_primary(now_s)
        if order.rate_per_s is not None and self.limits.rate_per_s is not None:
            owed_s = report.rate_delay_s * order.rate_per_s / self.limits.rate_per_s
            self._free_s = max(self._free_s, now_s) + owed_s

    def _apply_scans(self, order: WorkOrder, report: WorkReport, now_s: float) -> None:
        for queue in report.scanned:
            self._scanned_s[queue] = now_s
            self._scan_from.pop(queue, None)
        for queue, number in report.to_scan.items():
            self._scanned_s.pop(queue, None)
            self._scan_from[queue] = number
        for queue in self._overfull.intersection(order.queues):
            if self._deferred[queue].fullness <= ROOM_AGAIN:
                self._overfull.discard(queue)
                self._scanned_s.pop(queue, None)

    def _return_unreported(self, now_s: float) -> None:
        """Set aside again what was handed out and not reported on (rule 2). What its task has
        set aside is known to nobody, so that those queues are looked through again."""
        lent, self._checked_out = self._checked_out, {}
        for queue, by_path in lent.items():
            self.defer(queue, by_path)
        unheard, self._unreported = self._unreported, set()
        for queue in unheard:
            self._scanned_s.pop(queue, None)
            self._scan_from.pop(queue, None)
            self._back_off(queue, now_s)

    def _back_off(self, queue: str, now_s: float) -> None:
        setback = self._backoffs.setdefault(queue, _QueueBackoff())
        setback.count += 1
        setback.until_s = now_s + self._backoff.pause_s(setback.count, self._random)

    # -- a primary that is away -----------------------------------------------------------

    def _note_unreachable_primary(self, now_s: float) -> None:
        self._failed_probe_count += 1
        self._probe_due_s = now_s + self._backoff.pause_s(self._failed_probe_count, self._random)

    def probe_paths(self) -> list[str]:
        """Destinations to ask whether anybody is there: others each time, because one of them
        may be silent by itself."""
        paths = [path for path in reversed(self._open_circuits) if path]
        first = (self._failed_probe_count - 1) * KNOCK_PATHS_MAX % max(1, len(paths))
        return (paths[first:] + paths[:first])[:KNOCK_PATHS_MAX]

    def probe_finished(self, is_answered: bool, now_s: float) -> None:
        """What became of a knock."""
        if not is_answered:
            self._note_unreachable_primary(now_s)
            return
        self._failed_probe_count, self._probe_due_s = 0, None
        for closed in self._open_circuits.values():
            # What kept them all away is over.
            closed.note = closed.aged(now_s)._replace(due_in_s=0.0)
            closed.noted_s = now_s
