"""Creates the work orders of the syphon: which task serves which queue, and what is retried when.

    a queue received a message, a destination is due, a queue was never scanned
        --orders()--> one WorkOrder for each task --apply_report()--> the state for the next orders

Rule 1: a queue without work is in no order: an idle backlog costs no task.
Rule 2: a queue is in one order of a batch at most; numbers that were put into an order and not
        reported on are deferred again.
Rule 3: a queue that could not be read, or whose task did not report, is left out of orders for
        longer and longer; only a message that its watch receives ends this earlier.
Rule 4: while the primary is unreachable no order is created. Probes are sent, with growing pauses
        and to other destinations each time, and the first response ends this.
Rule 5: messages that another syphon deferred, or whose numbers did not fit, are found by scans:
        of a queue in an order by its task, of an idle queue by the caller of
        ``queues_to_scan()``. Without a sign of diverted messages there is no scan (scan_pace.py).
Rule 6: a run that exceeded its share of the rate delays the next orders.
Rule 7: this module reads no clock: ``now_s`` comes in.
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

# Messages are received by number at some 2,000 a second: about as many as one order can move.
RETRIES_MAX: Final = 20_000
PROBE_PATHS_MAX: Final = 8
# A scan peeks at every deferred message, and each costs an operation: with more than this scans
# are rarer, so that the cost of an hour does not grow.
SCAN_MESSAGES_MAX: Final = 1_000
# A queue with more deferred messages than can be remembered is scanned again once the memory of
# its numbers is at most this full.
RESCAN_FULLNESS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits:
    """How much one batch may do before its receipts are written."""

    tasks: int = 2
    """Orders of a batch; each is run by one task."""
    messages_max: int = 1_000_000
    """Messages of one batch, all tasks together."""
    seconds_max: float = 15.0
    rate_per_s: float | None = None
    """Messages a second, all tasks together."""
    discovery_interval_s: float = 3_600.0
    """How often a queue is scanned for messages that another syphon deferred, while there are
    signs of diverted messages; less often with many known deferred messages."""


@dataclass(slots=True)
class _QueueBackoff:
    """A queue that is left out of orders for a while (rule 3)."""

    count: int = 0
    until_s: float = 0.0


@dataclass(slots=True)
class _OpenCircuit:
    snapshot: CircuitSnapshot
    noted_s: float

    @property
    def due_s(self) -> float:
        return self.noted_s + self.snapshot.due_in_s

    def at(self, now_s: float) -> CircuitSnapshot:
        """The snapshot with its times counted from ``now_s``."""
        passed_s = now_s - self.noted_s
        gone_for_s = self.snapshot.gone_for_s
        return self.snapshot._replace(
            due_in_s=self.snapshot.due_in_s - passed_s,
            gone_for_s=None if gone_for_s is None else gone_for_s + passed_s,
        )


class Dispatcher:
    """The state of a syphon on Spark between two batches."""

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
        """When a queue was last scanned to its end; missing: it has to be scanned."""
        self._scan_from: dict[str, int] = {}
        """The numbers from which scans that did not reach the end continue."""
        self._overfull: set[str] = set()
        """Queues that may hold more deferred messages than are remembered."""
        self._foreign: Counter[str] = Counter()
        """Messages of other pairs that were received, by queue (P21)."""
        self._unfinished: set[str] = set()
        self._unreported: set[str] = set()
        self._backoffs: dict[str, _QueueBackoff] = {}
        self._failed_probe_count = 0
        self._probe_due_s: float | None = None
        self._free_s = 0.0
        """When the rate limit allows the next orders."""

    def add(self, queue: str) -> None:
        """Add a queue; the next orders include it."""
        self.queues = (*self.queues, queue)
        self._deferred[queue] = DeferredMessages()

    # -- state ----------------------------------------------------------------------------

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their destinations."""
        in_orders = sum(
            len(numbers) for each in self._checked_out.values() for numbers in each.values()
        )
        return in_orders + sum(len(each) for each in self._deferred.values())

    @property
    def unfinished_count(self) -> int:
        """Queues that are known to hold messages."""
        return len(self._unfinished)

    def deferred_by_destination(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for deferred in self._deferred.values():
            counts.update({path: deferred.count(path) for path in deferred.paths()})
        for checked_out in self._checked_out.values():
            counts.update({path: len(numbers) for path, numbers in checked_out.items()})
        return dict(counts)

    def open_circuits(self, now_s: float) -> tuple[CircuitSnapshot, ...]:
        """The open circuits of destinations."""
        return tuple(each.at(now_s) for each in self._open_circuits.values())

    @property
    def is_primary_unreachable(self) -> bool:
        return self._probe_due_s is not None

    # -- orders ---------------------------------------------------------------------------

    def has_work(self, now_s: float) -> bool:
        """Whether there is something to do although no watch received a message."""
        return not self.is_primary_unreachable and bool(self.busy(now_s))

    def set_rate(self, rate_per_s: float | None, now_s: float) -> None:
        """Change the rate. The current delay is converted from the old rate to the new one."""
        if rate_per_s != (old_per_s := self.limits.rate_per_s):
            owed = self.pause_s(now_s) * (old_per_s or 0.0)
            self._free_s = now_s + (owed / rate_per_s if rate_per_s else 0.0)
            self.limits = replace(self.limits, rate_per_s=rate_per_s)

    def pause_s(self, now_s: float) -> float:
        """For how long no orders are to be created, because of the rate limit (rule 6)."""
        return max(0.0, self._free_s - now_s)

    def next_due_s(self, now_s: float) -> float | None:
        """When the next work is due; None: when a watch receives a message."""
        if self._probe_due_s is not None:
            return self._probe_due_s
        dues = [self._due_s(queue, now_s) for queue in self.queues]
        return min((each for each in dues if each is not None), default=None)

    def orders(
        self,
        received: Mapping[str, ReceivedMessage | None],
        now_s: float,
        *,
        everything: bool = False,
    ) -> list[WorkOrder]:
        """Orders for the queues whose watches received a message, and for what else is due; with
        ``everything`` for all queues, for example after a crash."""
        self._return_unreported(now_s)
        if received:
            self.note_sign(now_s)
        wanted = set(received) | self.busy(now_s)
        busy = [queue for queue in self.queues if everything or queue in wanted]
        if not busy:
            return []
        self._unreported = set(busy)
        tasks = min(self.limits.tasks, len(busy))
        shares = [tuple(busy[first::tasks]) for first in range(tasks)]
        return [self._order(share, received, now_s, tasks, everything) for share in shares]

    def busy(self, now_s: float) -> set[str]:
        """Queues that the next orders include, whether a message was received or not."""
        dues = {queue: self._due_s(queue, now_s) for queue in self.queues}
        return {queue for queue, due_s in dues.items() if due_s is not None and due_s <= now_s}

    def _due_s(self, queue: str, now_s: float) -> float | None:
        """When a queue has work, apart from new messages."""
        if queue in self._unfinished or queue not in self._scanned_s:
            due_s: float | None = now_s
        else:
            paths = self._deferred[queue].paths()
            due_s = min((self._path_due_s(path, now_s) for path in paths), default=None)
        backoff = self._backoffs.get(queue)
        return due_s if due_s is None or backoff is None else max(due_s, backoff.until_s)

    def _path_due_s(self, path: str, now_s: float) -> float:
        circuit = self._open_circuits.get(path)
        return now_s if circuit is None else circuit.due_s

    def _order(
        self,
        queues: tuple[str, ...],
        received: Mapping[str, ReceivedMessage | None],
        now_s: float,
        tasks: int,
        everything: bool,
    ) -> WorkOrder:
        retries: dict[str, dict[str, tuple[int, ...]]] = {}
        blocked: dict[str, tuple[str, ...]] = {}
        for queue in queues:
            deferred = self._deferred[queue]
            due = [path for path in deferred.paths() if self._path_due_s(path, now_s) <= now_s]
            taken = {path: tuple(deferred.take(path, RETRIES_MAX)) for path in due}
            if taken:
                retries[queue] = self._checked_out[queue] = taken
            if rest := deferred.paths():
                blocked[queue] = tuple(rest)
        limits = self.limits
        return WorkOrder(
            queues=queues,
            prefetched=tuple(each for queue in queues if (each := received.get(queue)) is not None),
            retry_deferred=retries,
            blocked_paths=blocked,
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
        scanned_s = self._scanned_s.get(queue)
        if scanned_s is None:
            return True
        is_old = now_s - scanned_s >= self._scan_interval_s(queue)
        return is_old and (self._holds(queue) or self._scan_pace.is_wanted(scanned_s))

    def _holds(self, queue: str) -> bool:
        """Whether deferred messages, or messages of another pair, are known to be in it."""
        return bool(self._deferred[queue] or queue in self._checked_out or self._foreign[queue])

    def _scan_interval_s(self, queue: str) -> float:
        known = len(self._deferred[queue])
        if foreign := self._foreign[queue]:
            return shared_scan_s(self.limits.discovery_interval_s, known + foreign)
        return self.limits.discovery_interval_s * max(1.0, known / SCAN_MESSAGES_MAX)

    # -- idle queues ----------------------------------------------------------------------

    def queues_to_scan(self, now_s: float) -> list[str]:
        """Idle queues in which another syphon may have deferred messages (rule 5)."""
        if self.is_primary_unreachable:
            return []
        # One that was never scanned is scanned by its task.
        idle = self._scanned_s.keys() - self._unreported - self.busy(now_s)
        return [each for each in self.queues if each in idle and self._is_stale(each, now_s)]

    def scan_finished(self, queue: str, now_s: float, *, is_whole: bool) -> None:
        """Call it after defer() for all that was found; not ``is_whole``: the end of the queue was
        not reached."""
        if not is_whole:
            self.note_sign(now_s)
        early_s = 0.0 if is_whole else self._scan_interval_s(queue) - self._backoff.last_s
        self._scanned_s[queue] = now_s - max(0.0, early_s)

    def note_sign(self, now_s: float) -> None:
        """Messages may have been diverted: queues are scanned for deferred ones."""
        self._scan_pace.note_sign(now_s)

    def note_foreign(self, queue: str, count: int) -> None:
        """Messages of another pair are in a queue: its syphon may defer ours (P21)."""
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
        """Take over the state that a task has reported."""
        for queue in order.queues:
            self._unreported.discard(queue)
            self._checked_out.pop(queue, None)
            if queue not in report.faults:
                self._backoffs.pop(queue, None)
            self.defer(queue, report.deferred.get(queue, {}))
        for path in report.recovered:
            self._open_circuits.pop(path, None)
        for snapshot in report.open_circuits:
            self._open_circuits.pop(snapshot.path, None)
            self._open_circuits[snapshot.path] = _OpenCircuit(snapshot, now_s)
        while len(self._open_circuits) > DESTINATIONS_MAX:
            del self._open_circuits[next(iter(self._open_circuits))]
        self._apply_scans(order, report, now_s)
        self._unfinished -= set(order.queues)
        self._unfinished |= set(order.queues) - set(report.emptied) - set(report.faults)
        if report.deferred or report.open_circuits or report.faults or self._unfinished:
            self.note_sign(now_s)
        for queue in report.faults:
            # Left to its watch, which has pauses of its own; then it is scanned.
            self._scanned_s.setdefault(queue, -math.inf)
            self._back_off(queue, now_s)
        if report.is_primary_unreachable:
            self._note_unreachable_primary(now_s)
        if order.rate_per_s is not None and self.limits.rate_per_s is not None:
            delay_s = report.rate_delay_s * order.rate_per_s / self.limits.rate_per_s
            self._free_s = max(self._free_s, now_s) + delay_s

    def _apply_scans(self, order: WorkOrder, report: WorkReport, now_s: float) -> None:
        for queue in report.scanned:
            self._scanned_s[queue] = now_s
            self._scan_from.pop(queue, None)
        for queue, number in report.to_scan.items():
            self._scanned_s.pop(queue, None)
            self._scan_from[queue] = number
        for queue in self._overfull.intersection(order.queues):
            if self._deferred[queue].fullness <= RESCAN_FULLNESS:
                self._overfull.discard(queue)
                self._scanned_s.pop(queue, None)

    def _return_unreported(self, now_s: float) -> None:
        """Defer again what was in an order and not reported on (rule 2). What its task has
        deferred is unknown, so those queues are scanned again."""
        checked_out, self._checked_out = self._checked_out, {}
        for queue, by_path in checked_out.items():
            self.defer(queue, by_path)
        unreported, self._unreported = self._unreported, set()
        for queue in unreported:
            self._scanned_s.pop(queue, None)
            self._scan_from.pop(queue, None)
            self._back_off(queue, now_s)

    def _back_off(self, queue: str, now_s: float) -> None:
        backoff = self._backoffs.setdefault(queue, _QueueBackoff())
        backoff.count += 1
        backoff.until_s = now_s + self._backoff.pause_s(backoff.count, self._random)

    # -- an unreachable primary -----------------------------------------------------------

    def _note_unreachable_primary(self, now_s: float) -> None:
        self._failed_probe_count += 1
        self._probe_due_s = now_s + self._backoff.pause_s(self._failed_probe_count, self._random)

    def probe_paths(self) -> list[str]:
        """Destinations to probe: others each time, because one of them may not respond by
        itself."""
        paths = [path for path in reversed(self._open_circuits) if path]
        first = (self._failed_probe_count - 1) * PROBE_PATHS_MAX % max(1, len(paths))
        return (paths[first:] + paths[:first])[:PROBE_PATHS_MAX]

    def probe_finished(self, is_answered: bool, now_s: float) -> None:
        """The result of a probe of the primary."""
        if not is_answered:
            self._note_unreachable_primary(now_s)
            return
        self._failed_probe_count, self._probe_due_s = 0, None
        for circuit in self._open_circuits.values():
            # The primary is reachable again: all of them may be tried.
            circuit.snapshot = circuit.at(now_s)._replace(due_in_s=0.0)
            circuit.noted_s = now_s
