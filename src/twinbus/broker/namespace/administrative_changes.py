"""Administrative changes of a namespace: they wait, are planned together, written, and applied.

    submit() --> waiting --plan()--> one transaction --durable--> applied, callers notified
                    ^                      |
                    +--- one by one <------+  the store refuses an op as invalid

Rule 1: a change is planned when its transaction is put together, on the catalogue as the previous
        transactions left it. At most one transaction is in progress, so no plan is ever out of
        date, names need no reservation, and simultaneous calls share a commit.
Rule 2: a call that is refused, by its plan or by a full disk, has changed nothing (rule M15).
Rule 3: a store refuses invalid ops before it writes anything. The messages of the transaction are
        then written without the changes, and each change is tried alone: only the invalid one
        fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.errors import TwinbusError

logger = logging.getLogger("twinbus.broker")

# Calls of one transaction: far more than usually wait, and few enough for one turn.
CHANGES_PER_COMMIT_MAX: Final = 256
# How long calls are planned before others have their turn.
PLANNING_TURN_S: Final = 0.001


class NamespaceChange(NamedTuple):
    """An administrative call that waits for its transaction."""

    plan: Callable[[Draft], object]
    """Adds the change to the draft, or raises the error that refuses it."""
    done: Callable[[Exception | None], None]
    """Called once: with None when the change is on disk and applied, or with the error."""
    is_alone: bool = False
    """The store refused a transaction with this change: it gets a transaction of its own."""


class PlannedChanges(NamedTuple):
    """The changes of one transaction."""

    draft: Draft
    changes: list[NamespaceChange]
    is_alone: bool

    def notify(self, error: Exception | None) -> None:
        for change in self.changes:
            change.done(error)


class PendingChanges:
    """The calls that wait."""

    def __init__(self) -> None:
        self._waiting: deque[NamespaceChange] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, change: NamespaceChange) -> None:
        self._waiting.append(change)

    def plan(self, draft: Draft) -> PlannedChanges:
        """Plan the waiting calls, and notify those that are refused."""
        is_alone = bool(self._waiting) and self._waiting[0].is_alone
        count_max = 1 if is_alone else CHANGES_PER_COMMIT_MAX
        planned = PlannedChanges(draft, [], is_alone)
        refused: list[tuple[NamespaceChange, Exception]] = []
        stop_s = time.monotonic() + PLANNING_TURN_S
        while self._waiting and count_max > 0 and self._waiting[0].is_alone is is_alone:
            change = self._waiting.popleft()
            # Compiling a rule takes up to a millisecond; the rest waits for the next transaction.
            count_max = count_max - 1 if time.monotonic() < stop_s else 0
            trial = draft.fork()
            try:
                change.plan(trial)
            except Exception as error:
                if not isinstance(error, TwinbusError):
                    logger.exception("Administrative change could not be planned")
                refused.append((change, error))
            else:
                draft.merge(trial)
                planned.changes.append(change)
        for change, reason in refused:
            change.done(reason)
        return planned

    def try_alone(self, planned: PlannedChanges) -> None:
        """The store refused these together; they come first, each in its own transaction."""
        alone = [change._replace(is_alone=True) for change in planned.changes]
        self._waiting.extendleft(reversed(alone))

    def fail(self, error: Exception) -> None:
        """There will be no more transactions."""
        waiting, self._waiting = self._waiting, deque()
        for change in waiting:
            change.done(error)


class FutureCommit:
    """A coroutine that waits for a change to be on disk."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def stored(self, seqs: range) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def finish(self, error: Exception | None) -> None:
        """The same for an administrative change."""
        if error is None:
            self.stored(range(0))
        else:
            self.failed(error)
