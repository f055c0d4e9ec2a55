"""Gives the orders of the syphon's shifts: who empties which queue, and what is tried again when.

    a bell rang, a destination is due, a queue was never looked through
        --orders()--> one ShiftOrder for each task --take()--> what they left behind

Rule 1: nothing is ordered for a queue that has nothing to do: an idle backlog costs no task.
Rule 2: a queue is in one order of a batch at most; numbers that were handed out and not reported
        on are set aside again.
Rule 3: a queue that could not be read, or whose task was never heard of again, is left alone for
        longer and longer; only its bell brings it back sooner.
Rule 4: while the primary is away no order is given. Somebody knocks, with longer and longer
        pauses, and the first answer opens it.
Rule 5: this file reads no clock: ``now_s`` comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from twinbus.core.chunk_aside import SetAside
from twinbus.core.chunk_board import DESTINATIONS_MAX, Backoff
from twinbus.core.parcel import Delivered
from twinbus.core.shift import BoardNote, ShiftOrder, ShiftReport

__all__ = ["Dispatcher", "ShiftLimits"]

# What is asked for by number comes at some 2,000 a second: about one shift's worth.
RETURNING_MAX: Final = 20_000
KNOCK_PATHS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftLimits:
    """How much one batch may do before it shows its receipts."""

    tasks: int = 2
    """Shifts at once."""
    messages_max: int = 1_000_000
    """Messages of one batch, all tasks together."""
    seconds_max: float = 15.0
    rate_per_s: float | None = None
    """Messages a second, all tasks together."""
    discovery_interval_s: float = 3_600.0
    """How often a queue that is at work is looked through for what somebody else set aside."""


@dataclass(slots=True)
class _Setback:
    """A queue that is left alone for a while (rule 3)."""

    count: int = 0
    until_s: float = 0.0


@dataclass(slots=True)
class _Closed:
    note: BoardNote
    noted_s: float

    @property
    def due_s(self) -> float:
        return self.noted_s + self.note.due_in_s

    def aged(self, now_s: float) -> BoardNote:
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
        limits: ShiftLimits | None = None,
    ) -> None:
        self.queues = tuple(queues)
        self.limits = limits or ShiftLimits()
        self._backoff, self._random = backoff, random
        self._aside = {queue: SetAside() for queue in queues}
        self._lent: dict[str, dict[str, tuple[int, ...]]] = {}
        self._closed: dict[str, _Closed] = {}
        self._looked_s: dict[str, float] = {}
        self._unfinished: set[str] = set()
        self._unheard: set[str] = set()
        self._setbacks: dict[str, _Setback] = {}
        self._away_count = 0
        self._knock_s: float | None = None

    # -- what is known --------------------------------------------------------------------

    @property
    def set_aside_count(self) -> int:
        """Messages that wait for their destinations."""
        lent = sum(len(numbers) for each in self._lent.values() for numbers in each.values())
        return lent + sum(len(each) for each in self._aside.values())

    @property
    def unfinished_count(self) -> int:
        """Queues that are known to hold messages."""
        return len(self._unfinished)

    def set_aside_by_destination(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for aside in self._aside.values():
            for path in aside.paths():
                counts[path] = counts.get(path, 0) + aside.count(path)
        return counts

    def closed(self, now_s: float) -> tuple[BoardNote, ...]:
        """Destinations that take nothing."""
        return tuple(each.aged(now_s) for each in self._closed.values())

    @property
    def is_primary_away(self) -> bool:
        return self._knock_s is not None

    # -- orders ---------------------------------------------------------------------------

    def has_work(self, now_s: float) -> bool:
        """Whether there is something to do although no bell rang."""
        return not self.is_primary_away and bool(self._busy(now_s))

    def next_due_s(self, now_s: float) -> float | None:
        """When there will be, as far as is known; None: when a bell rings."""
        if self._knock_s is not None:
            return self._knock_s
        dues = [self._due_s(queue, now_s) for queue in self.queues]
        return min((each for each in dues if each is not None), default=None)

    def orders(
        self, rung: Mapping[str, Delivered | None], now_s: float, *, everything: bool = False
    ) -> list[ShiftOrder]:
        """Orders for the queues that rang and for what else is due; with ``everything`` for all
        queues, as after a crash."""
        self._take_back(now_s)
        wanted = set(rung) | self._busy(now_s)
        busy = [queue for queue in self.queues if everything or queue in wanted]
        if not busy:
            return []
        self._unheard = set(busy)
        tasks = min(self.limits.tasks, len(busy))
        shares = [tuple(busy[first::tasks]) for first in range(tasks)]
        return [self._order(share, rung, now_s, tasks, everything) for share in shares]

    def _busy(self, now_s: float) -> set[str]:
        dues = {queue: self._due_s(queue, now_s) for queue in self.queues}
        return {queue for queue, due_s in dues.items() if due_s is not None and due_s <= now_s}

    def _due_s(self, queue: str, now_s: float) -> float | None:
        """When a queue has something to do, its bell apart."""
        if queue in self._unfinished or queue not in self._looked_s:
            due_s: float | None = now_s
        else:
            closed = [self._closed.get(path) for path in self._aside[queue].paths()]
            dues = [now_s if each is None else each.due_s for each in closed]
            due_s = min(dues, default=None)
        setback = self._setbacks.get(queue)
        return due_s if due_s is None or setback is None else max(due_s, setback.until_s)

    def _is_due(self, path: str, now_s: float) -> bool:
        closed = self._closed.get(path)
        return closed is None or closed.due_s <= now_s

    def _order(
        self,
        queues: tuple[str, ...],
        rung: Mapping[str, Delivered | None],
        now_s: float,
        tasks: int,
        everything: bool,
    ) -> ShiftOrder:
        returning: dict[str, dict[str, tuple[int, ...]]] = {}
        holding: dict[str, tuple[str, ...]] = {}
        for queue in queues:
            aside = self._aside[queue]
            due = [path for path in aside.paths() if self._is_due(path, now_s)]
            lent = {path: tuple(aside.take(path, RETURNING_MAX)) for path in due}
            if lent:
                returning[queue] = self._lent[queue] = lent
            if held := aside.paths():
                holding[queue] = tuple(held)
        limits = self.limits
        return ShiftOrder(
            queues=queues,
            handed=tuple(each for queue in queues if (each := rung.get(queue)) is not None),
            returning=returning,
            holding=holding,
            board=self.closed(now_s),
            discover=tuple(queue for queue in queues if everything or self._is_stale(queue, now_s)),
            messages_max=max(1, limits.messages_max // tasks),
            seconds_max=limits.seconds_max,
            rate_per_s=None if limits.rate_per_s is None else limits.rate_per_s / tasks,
        )

    def _is_stale(self, queue: str, now_s: float) -> bool:
        looked_s = self._looked_s.get(queue)
        return looked_s is None or now_s - looked_s >= self.limits.discovery_interval_s

    # -- reports --------------------------------------------------------------------------

    def take(self, order: ShiftOrder, report: ShiftReport, now_s: float) -> None:
        """Remember what a shift left behind."""
        for queue in order.queues:
            self._unheard.discard(queue)
            self._lent.pop(queue, None)
            if queue not in report.faults:
                self._setbacks.pop(queue, None)
            for path, numbers in report.aside.get(queue, {}).items():
                self._aside[queue].add(path, numbers)
        for path in report.opened:
            self._closed.pop(path, None)
        for note in report.board:
            self._closed.pop(note.path, None)
            self._closed[note.path] = _Closed(note, now_s)
        while len(self._closed) > DESTINATIONS_MAX:
            del self._closed[next(iter(self._closed))]
        self._looked_s |= dict.fromkeys(report.discovered, now_s)
        self._unfinished -= set(order.queues)
        self._unfinished |= set(order.queues) - set(report.emptied) - set(report.faults)
        for queue in report.faults:
            # Left to its bell, which has pauses of its own; then it is looked through.
            self._looked_s.setdefault(queue, now_s - self.limits.discovery_interval_s)
            self._set_back(queue, now_s)
        if report.is_primary_away:
            self._primary_is_away(now_s)

    def _take_back(self, now_s: float) -> None:
        """Set aside again what was handed out and not reported on (rule 2). What its task has
        set aside is known to nobody, so that those queues are looked through again."""
        lent, self._lent = self._lent, {}
        for queue, by_path in lent.items():
            for path, numbers in by_path.items():
                self._aside[queue].add(path, numbers)
        unheard, self._unheard = self._unheard, set()
        for queue in unheard:
            self._looked_s.pop(queue, None)
            self._set_back(queue, now_s)

    def _set_back(self, queue: str, now_s: float) -> None:
        setback = self._setbacks.setdefault(queue, _Setback())
        setback.count += 1
        setback.until_s = now_s + self._backoff.pause_s(setback.count, self._random)

    # -- a primary that is away -----------------------------------------------------------

    def _primary_is_away(self, now_s: float) -> None:
        self._away_count += 1
        self._knock_s = now_s + self._backoff.pause_s(self._away_count, self._random)

    def knock_paths(self) -> list[str]:
        """Destinations to ask whether anybody is there."""
        return [path for path in self._closed if path][-KNOCK_PATHS_MAX:]

    def knocked(self, is_answered: bool, now_s: float) -> None:
        """What became of a knock."""
        if not is_answered:
            self._primary_is_away(now_s)
            return
        self._away_count, self._knock_s = 0, None
        for closed in self._closed.values():
            # What kept them all away is over.
            closed.note = closed.aged(now_s)._replace(due_in_s=0.0)
            closed.noted_s = now_s
