"""A disk that fails at each write, sync and name change of each story, once or for ever.

    full      nothing of the step is there, the store goes on, and the same step succeeds later
    failed    the store takes nothing more, even on a disk that is well again (a sync that succeeds
              after one that failed proves nothing); opened again it has the step or has it not
    the mark  a mark that cannot be written only proves less: the step succeeds
    a sync    of a step: somebody is told that it failed. When a store is closed nobody waits for it

Rule: a step is acknowledged when it returns. Whatever comes next, it is found afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from twinbus.broker.storage.interface import PutMeta
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreFailed, StoreFull, TwinbusError
from verification.crash_consistency.faulty import FaultPlan, FaultyDisk, faulty_disk
from verification.crash_consistency.scratch import (
    STORE_NAME,
    lay_out,
    scratch_directory,
    small_limits,
)
from verification.crash_consistency.stories import Story, operations_of, story, take
from verification.crash_consistency.tally import Complaint, Tally, Wrong
from verification.crash_consistency.workload import content

PART = "I/O errors"
# Of so many points, one has a recovery that fails at each of its operations, too.
RECOVERIES_EVERY = 40

KINDS: dict[str, tuple[type[apsw.Error], bool]] = {
    "EIO": (apsw.IOError, False),
    "ENOSPC": (apsw.FullError, False),
    "short write": (apsw.FullError, True),
}


@dataclass(frozen=True, slots=True)
class Fault:
    operation: int
    kind: str
    for_ever: bool

    def plan(self) -> FaultPlan:
        plan = FaultPlan()
        plan.error, plan.tears = KINDS[self.kind]
        plan.fail_from = self.operation
        plan.fail_to = None if self.for_ever else self.operation
        return plan

    def __str__(self) -> str:
        return f"{self.kind} {'from' if self.for_ever else 'at'} operation {self.operation}"


class BrokenPromise(Exception):
    """What a store must not do on a bad disk."""

    def __init__(self, kind: Wrong, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(text)


class Teller:
    """Tells one story on a disk with one fault; the caller behaves as a broker does."""

    def __init__(self, told: Story, path: Path, plan: FaultPlan, vfs: str) -> None:
        self._story = told
        self._path = path
        self._plan = plan
        self._vfs = vfs
        self.steps = 0
        """How many steps were acknowledged."""
        self.outcome = "unnoticed"
        self.has_hidden_sync = False
        """A sync failed before the store was closed, and nobody was told."""

    def tell(self) -> None:
        store = SqliteStore(self._path, disk=FaultyDisk(self._plan), vfs=self._vfs)
        try:
            self._open(store)
            while self.steps < len(self._story.steps):
                self._step(store)
            self.has_hidden_sync = self.outcome == "unnoticed" and self._plan.has_failed("sync")
        except StoreFailed:
            self.outcome = "failed"
            self._expect_no_commit(store)
        finally:
            _close(store)

    def _open(self, store: SqliteStore) -> None:
        try:
            store.open()
        except (StoreFull, StoreFailed) as error:
            self.outcome = f"not opened ({type(error).__name__})"
            self._plan.heal()
            store.open()

    def _step(self, store: SqliteStore) -> None:
        step = self._story.steps[self.steps]
        try:
            take(store, step)
        except StoreFull:
            self.outcome = "full"
            if self._plan.fail_to is None:
                self._expect_full(store)
            self._plan.heal()
            self._again(store)
        self.steps += 1

    def _expect_full(self, store: SqliteStore) -> None:
        """While there is no room nothing is taken."""
        try:
            store.commit([PutMeta("more", 1)])
        except StoreFull:
            return
        raise BrokenPromise(Wrong.CONTENT, "acknowledged on a full disk")

    def _again(self, store: SqliteStore) -> None:
        step = self._story.steps[self.steps]
        if store._writer is None:
            # It was closed and could not be opened.
            store.open()
        else:
            take(store, step)

    def _expect_no_commit(self, store: SqliteStore) -> None:
        """After an error the store is finished, however well the disk is by now."""
        self._plan.heal()
        for attempt in (lambda: store.commit([PutMeta("more", 1)]), store.maintain):
            try:
                attempt()
            except StoreFailed:
                continue
            raise BrokenPromise(Wrong.CONTENT, "acknowledged after an error")


def _close(store: SqliteStore) -> None:
    """Closing may fail on a bad disk; it must let go of the files all the same."""
    try:
        store.close()
    except (StoreFailed, StoreFull):
        store.close()


class Failings:
    """Lets the disk fail under one story and looks at what is left."""

    def __init__(self, name: str, directory: Path) -> None:
        self._story = story(name)
        self._directory = directory
        self._path = directory / STORE_NAME
        self.tally = Tally(PART, {name})

    def fail(self, fault: Fault, *, recoveries: bool) -> None:
        where = f"{self._story.name}, {fault}"
        plan = fault.plan()
        self._guarded(where, lambda: self._told_and_found(plan))
        if recoveries:
            self._fail_recoveries(fault, where)

    def _told_and_found(self, plan: FaultPlan) -> None:
        teller = self.tell(plan)
        self.tally.outcomes[teller.outcome] += 1
        self._find(teller)

    def tell(self, plan: FaultPlan) -> Teller:
        """Tell the story on such a disk; what is left of it is in the directory."""
        lay_out(self._directory, self._story.files)
        with faulty_disk(plan) as vfs, small_limits():
            teller = Teller(self._story, self._path, plan, vfs)
            teller.tell()
        return teller

    def _fail_recoveries(self, fault: Fault, where: str) -> None:
        """The same, and then an opening that fails as well, at each of its operations in turn."""
        operation, goes_on = 1, True
        while goes_on:
            again = replace(fault, operation=operation)

            def twice(again: Fault = again) -> None:
                nonlocal goes_on
                teller = self.tell(fault.plan())
                plan = again.plan()
                goes_on = not self.recovers(plan)
                self.tally.outcomes["failed again" if goes_on else "recovered"] += 1
                self._find(teller)

            goes_on = self._guarded(f"{where}, then {again}", twice) and goes_on
            operation += 1

    def recovers(self, plan: FaultPlan) -> bool:
        """Open and close on a disk that follows this plan; whether it never came into play."""
        with faulty_disk(plan) as vfs:
            store = SqliteStore(self._path, disk=FaultyDisk(plan), vfs=vfs)
            with suppress(StoreFull, StoreFailed):
                store.open()
            _close(store)
        assert plan.fail_from is not None
        return plan.operations < plan.fail_from

    def _find(self, teller: Teller) -> None:
        """On a good disk the store has what was acknowledged, and perhaps the step after it."""
        store = SqliteStore(self._path)
        try:
            found = content(store, store.open())
        finally:
            store.close()
        if found not in self._story.contents[teller.steps :][:2]:
            earlier = found in self._story.contents[: teller.steps]
            kind = Wrong.LOST if earlier else Wrong.CONTENT
            raise BrokenPromise(kind, f"not what it held after step {teller.steps} or the next one")
        if teller.has_hidden_sync:
            raise BrokenPromise(Wrong.CONTENT, "a sync failed, and nobody was told")
        if teller.outcome in ("full", "unnoticed") and found != self._story.contents[-1]:
            raise BrokenPromise(Wrong.LOST, "the end of the story is missing")

    def _guarded(self, where: str, attempt: Callable[[], None]) -> bool:
        self.tally.points += 1
        try:
            attempt()
        except BrokenPromise as broken:
            self._complain(broken.kind, f"{where}: {broken.text}")
        except TwinbusError as error:
            self._complain(Wrong.REFUSED, f"{where}: {error}")
        else:
            return True
        return False

    def _complain(self, kind: Wrong, text: str) -> None:
        replay = (
            f"python -m verification.crash_consistency --only errors --story '{self._story.name}'"
        )
        self.tally.complaints.append(Complaint(kind, text, replay))


def fail(name: str, faults: list[Fault], seed: int) -> Tally:
    """Tell the story once with each of these faults."""
    with scratch_directory() as directory:
        failings = Failings(name, directory)
        for fault in faults:
            recoveries = fault.operation % RECOVERIES_EVERY == seed % RECOVERIES_EVERY
            failings.fail(fault, recoveries=recoveries)
        failings.tally.distinct = failings.tally.points
        return failings.tally


def faults_of(name: str) -> list[Fault]:
    """Every kind of fault at every operation; only writes can be short."""
    kinds = enumerate(operations_of(name), start=1)
    return [
        Fault(number, error, for_ever)
        for number, kind in kinds
        for error in KINDS
        for for_ever in (False, True)
        if kind == "write" or error != "short write"
    ]
