"""A process that is killed at each write, sync and name change of each story.

The process is a fork of one that has everything loaded. Our VFS, our ``Disk`` and the mark's ``os``
count its operations; at the chosen one, or with half of the bytes written, it sends itself SIGKILL
from inside of SQLite. Nothing is unwound, no file is closed, what the kernel was given stays: a
kill as real as one from outside, at a place that no timing could hit. A shim preloaded under the C
library would count the same calls (all changes go through these three doors; the index of the log
is shared memory that the next process rebuilds), but it wants a compiler, and the tests run on
machines without one.

What was acknowledged is noted in memory that both processes share, after each step has returned.
"""

from __future__ import annotations

import mmap
import os
import signal
from dataclasses import replace
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any

from twinbus.broker.storage.interface import PutMeta
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import TwinbusError
from verification.crash_consistency.faulty import FaultPlan, FaultyDisk, faulty_disk
from verification.crash_consistency.scratch import (
    STORE_NAME,
    files_of,
    lay_out,
    let_go,
    scratch_directory,
    small_limits,
)
from verification.crash_consistency.stories import Story, operations_of, story, take
from verification.crash_consistency.tally import Complaint, Tally, Wrong
from verification.crash_consistency.workload import content

PART = "kill points"
# Of so many points, one is also killed at every operation of its recovery.
RECOVERIES_EVERY = 100

_PROGRESS = Struct("qq")


class Progress:
    """What a process told the world before it died."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PROGRESS.size)
        self.note(-1, -1)

    def note(self, steps: int, commit_number: int) -> None:
        self._memory[:] = _PROGRESS.pack(steps, commit_number)

    @property
    def steps(self) -> int:
        """How many steps of the story returned; -1 while not even the opening did."""
        return int(_PROGRESS.unpack(self._memory[:])[0])

    @property
    def commit_number(self) -> int:
        return int(_PROGRESS.unpack(self._memory[:])[1])


def _tell(told: Story, path: Path, plan: FaultPlan, progress: Progress) -> None:
    """The life of the process."""
    with faulty_disk(plan) as vfs, small_limits():
        store = SqliteStore(path, disk=FaultyDisk(plan), vfs=vfs)
        store.open()
        progress.note(0, store.statistics().commit_number)
        for number, step in enumerate(told.steps, start=1):
            take(store, step)
            progress.note(number, store.statistics().commit_number)
        store.close()


def _recover(path: Path, plan: FaultPlan) -> None:
    """The life of a process that only opens the store and closes it, which empties the log."""
    with faulty_disk(plan) as vfs:
        store = SqliteStore(path, disk=FaultyDisk(plan), vfs=vfs)
        store.open()
        store.close()


def _dies(life: Any, *arguments: Any) -> bool:
    """Whether a process with this life is killed before its end."""
    pid = os.fork()
    if pid == 0:
        # Whatever happens here, the child must never return into the caller's work.
        try:
            life(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.WEXITSTATUS(status) != 0:
        raise RuntimeError("a process that was to be killed failed before")
    return False


def plan_to_die(operation: int, *, tears: bool) -> FaultPlan:
    plan = FaultPlan()
    plan.fail_from, plan.tears, plan.kills = operation, tears, True
    return plan


class Killings:
    """Kills one story at some of its operations and looks at what is left."""

    def __init__(self, name: str, directory: Path, seed: int) -> None:
        self._story = story(name)
        self._directory = directory
        self._path = directory / STORE_NAME
        self._random = Random(f"kills {seed} {name}")
        self.tally = Tally(PART, {name})
        self._digests: set[int] = set()

    def kill_at(self, operation: int, *, tears: bool, recoveries: bool) -> None:
        progress = self.die_at(operation, tears=tears)
        left = files_of(self._directory)
        self._count(left, "died")
        where = f"{self._story.name}, killed at {operation}{' (torn)' if tears else ''}"
        found = self._look(progress, where)
        if recoveries and found is not None:
            self._kill_recoveries(left, found, where)

    def die_at(self, operation: int, *, tears: bool) -> Progress:
        """Tell the story until the process dies there; what it leaves is in the directory."""
        lay_out(self._directory, self._story.files)
        progress = Progress()
        plan = plan_to_die(operation, tears=tears)
        if not _dies(_tell, self._story, self._path, plan, progress):
            raise RuntimeError(f"{self._story.name!r} has no operation {operation}")
        return progress

    def _kill_recoveries(self, left: dict[str, bytes], found: dict[str, Any], where: str) -> None:
        for tears in (False, True):
            operation = 1
            while self.recovery_dies(left, operation, tears=tears):
                self._count(files_of(self._directory), "died again")
                again = f"{where}, its recovery at {operation}{' (torn)' if tears else ''}"
                complaint, content_then = self._opened(again)
                if complaint is None and content_then != found:
                    complaint = Complaint(Wrong.CONTENT, f"{again}: the content has changed")
                self._note(complaint)
                operation += 1

    def recovery_dies(self, left: dict[str, bytes], operation: int, *, tears: bool) -> bool:
        """Open these files in a process that is to die there; whether it came so far."""
        lay_out(self._directory, left)
        plan = plan_to_die(operation, tears=tears)
        return _dies(_recover, self._path, plan)

    def _look(self, progress: Progress, where: str) -> dict[str, Any] | None:
        """Recover the store and compare; its content, if it could be opened."""
        complaint, found = self._opened(where, progress.commit_number)
        if complaint is None:
            contents = self._story.contents[max(progress.steps, 0) :][:2]
            if found not in contents:
                earlier = found in self._story.contents[: max(progress.steps, 0)]
                kind = Wrong.LOST if earlier else Wrong.CONTENT
                text = f"{where}: not what it held after step {progress.steps} or the next one"
                complaint = Complaint(kind, text)
        self._note(complaint)
        return found

    def _opened(
        self, where: str, commit_number_min: int = -1
    ) -> tuple[Complaint | None, dict[str, Any] | None]:
        store = SqliteStore(self._path)
        try:
            recovered = store.open()
            commit_number = store.statistics().commit_number
            found = content(store, recovered)
            if self._random.random() < 0.05:
                store.verify_all()
                store.commit([PutMeta("recovered", 1)])
        except TwinbusError as error:
            return Complaint(Wrong.REFUSED, f"{where}: {error}"), None
        finally:
            let_go(store)
        if commit_number < commit_number_min:
            text = f"{where}: commit {commit_number}, {commit_number_min} was acknowledged"
            return Complaint(Wrong.LOST, text), found
        return None, found

    def _count(self, left: dict[str, bytes], outcome: str) -> None:
        self.tally.points += 1
        self.tally.outcomes[outcome] += 1
        self._digests.add(hash(frozenset(left.items())))
        self.tally.distinct = len(self._digests)

    def _note(self, complaint: Complaint | None) -> None:
        if complaint is not None:
            replay = "python -m verification.crash_consistency --only kills"
            replay += f" --story '{self._story.name}'"
            self.tally.complaints.append(replace(complaint, replay=replay))


def kill(name: str, points: list[tuple[int, bool]], seed: int) -> Tally:
    """Kill the story at these points: operation, and whether half of it is written before."""
    with scratch_directory() as directory:
        killings = Killings(name, directory, seed)
        for operation, tears in points:
            recoveries = operation % RECOVERIES_EVERY == seed % RECOVERIES_EVERY
            killings.kill_at(operation, tears=tears, recoveries=recoveries)
        return killings.tally


def points_of(name: str) -> list[tuple[int, bool]]:
    """Just before every operation, and in the middle of every write."""
    kinds = enumerate(operations_of(name), start=1)
    return [
        (number, tears)
        for number, kind in kinds
        for tears in ((False, True) if kind == "write" else (False,))
    ]
