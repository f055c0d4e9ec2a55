"""A recorded run of a store under work, and the checker that states the promise.

The promise (M8): after a crash at any instant the store opens, holds exactly what it held after
one of its commits, and that commit is no earlier than the last one that was acknowledged. With
the content come the counters, so no sequence number and no queue id can be given out twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import Op, PutMeta
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.store_files import SLOT_BYTES, MarkRecord, encode, read_mark
from twinbus.errors import TwinbusError
from verification.crash_consistency.recorder import (
    Acknowledge,
    Begin,
    Entry,
    Recorder,
    RecordingDisk,
    recording,
)
from verification.crash_consistency.scratch import (
    STORE_NAME,
    lay_out,
    let_go,
    scratch_directory,
    small_limits,
)
from verification.crash_consistency.states import DiskState
from verification.crash_consistency.tally import Complaint, Wrong
from verification.crash_consistency.workload import Workload, content

COMMITS = 40
# Three of four runs: more pages and writes for the same changes, and a third of the bytes, so that
# more states are looked at in a second.
SMALL_PAGE_BYTES = 4096


@dataclass
class Run:
    """What happened to the disk, and what the store held after each commit."""

    entries: list[Entry] = field(default_factory=list)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    store_id: bytes = b""


def commit_then_acknowledge(
    store: SqliteStore, ops: list[Op], acknowledge: Callable[[], None]
) -> None:
    store.commit(ops)
    acknowledge()


class RecordedRun:
    """Drives a recorded store and a model in memory through the same work."""

    def __init__(self, directory: Path, random: Random, vfs: str, recorder: Recorder) -> None:
        self._path = directory / STORE_NAME
        self._random = random
        self._vfs = vfs
        self._recorder = recorder
        self._model = MemoryStore()
        self._workload = Workload(blob_bytes_max=3_000)
        self.run = Run(recorder.entries)

    def perform(self, commit: Callable[..., None]) -> Run:
        self._model.open()
        store = self._open()
        self._acknowledge(store.statistics().commit_number)
        for _ in range(COMMITS):
            self._one_commit(store, commit)
            if self._random.random() < 0.15:
                self._maintain(store)
            if self._random.random() < 0.05:
                store.close()
                store = self._open()
        store.close()
        return self.run

    def _open(self) -> SqliteStore:
        store = SqliteStore(self._path, disk=RecordingDisk(self._recorder), vfs=self._vfs)
        store.open()
        mark = read_mark(self._path.with_name(STORE_NAME + ".mark"))
        assert mark is not None
        self.run.store_id = mark.store_id
        return store

    def _one_commit(self, store: SqliteStore, commit: Callable[..., None]) -> None:
        number = store.statistics().commit_number + 1
        ops = self._work()
        self._model.commit(ops)
        self._remember(number)
        self._recorder.entries.append(Begin(number))
        commit(store, ops, lambda: self._acknowledge(number))

    def _work(self) -> list[Op]:
        ops = self._workload.anything(self._random)
        if self._random.random() < 0.1:
            # A chunk of many pages.
            self._workload._blob_bytes_max = 60_000
            ops += self._workload.send(self._random)
            self._workload._blob_bytes_max = 3_000
        return ops

    def _maintain(self, store: SqliteStore) -> None:
        more = True
        while more:
            number = store.statistics().commit_number + 1
            self._remember(number)
            self._recorder.entries.append(Begin(number))
            more = store.maintain()
            self._acknowledge(store.statistics().commit_number)

    def _remember(self, number: int) -> None:
        self._model.close()
        self.run.history[number] = content(self._model, self._model.open())

    def _acknowledge(self, number: int) -> None:
        if number not in self.run.history:
            self._remember(number)
        self._recorder.entries.append(Acknowledge(number))


def record(seed: int, commit: Callable[..., None] = commit_then_acknowledge) -> Run:
    recorder = Recorder()
    page_bytes = schema.PAGE_BYTES if seed % 4 == 0 else SMALL_PAGE_BYTES
    pages = patch.object(schema, "PAGE_BYTES", page_bytes)
    with scratch_directory() as directory, recording(recorder) as vfs, small_limits(), pages:
        return RecordedRun(directory, Random(seed), vfs, recorder).perform(commit)


class Checker:
    """Opens crash states with the store's own recovery and compares."""

    def __init__(self, run: Run, directory: Path, random: Random) -> None:
        self._run = run
        self._directory = directory
        self._random = random
        self._digests: set[int] = set()

    @property
    def distinct(self) -> int:
        """How many of the states that were looked at differ from each other."""
        return len(self._digests)

    def complaint(self, state: DiskState) -> Complaint | None:
        """What is wrong with the store after this crash, or None."""
        self._lay_out(state)
        store = SqliteStore(self._directory / STORE_NAME)
        try:
            recovered = store.open()
            number = store.statistics().commit_number
            found = content(store, recovered)
            if self._random.random() < 0.05:
                store.verify_all()
        except TwinbusError as error:
            return Complaint(Wrong.REFUSED, str(error))
        finally:
            # A second crash: closing in order would spend its time on a log nobody needs.
            let_go(store)
        if number < state.acknowledged:
            text = f"commit {number} is there, {state.acknowledged} was acknowledged"
            return Complaint(Wrong.LOST, text)
        if number > max(state.begun, 0):
            return Complaint(Wrong.CONTENT, f"commit {number} is there, which nobody asked for")
        if found != self._run.history[number]:
            return Complaint(Wrong.CONTENT, f"the content is not that of commit {number}")
        return self._complaint_about_going_on(number) if self._random.random() < 0.05 else None

    def _complaint_about_going_on(self, number: int) -> Complaint | None:
        """A recovered store is a store: its next commit survives too."""
        store = SqliteStore(self._directory / STORE_NAME)
        store.open()
        store.commit([PutMeta("recovered", number)])
        store.close()
        recovered = store.open()
        store.close()
        if recovered.meta["recovered"] == number:
            return None
        return Complaint(Wrong.LOST, "it forgot its first new commit")

    def _lay_out(self, state: DiskState) -> None:
        files = dict(state.files)
        mark = self._mark(state)
        if mark is not None:
            files[STORE_NAME + ".mark"] = mark
        self._digests.add(hash(frozenset(files.items())))
        lay_out(self._directory, files)

    def _mark(self, state: DiskState) -> bytes | None:
        """Any version of the mark that was written up to the crash; often the last one."""
        if state.marked < 0 or self._random.random() < 0.1:
            return None
        last = state.marked
        number = last if self._random.random() < 0.6 else self._random.randint(0, last)
        content = bytearray(2 * SLOT_BYTES)
        for written in (max(number - 1, 0), number):
            at = SLOT_BYTES * (written & 1)
            content[at : at + SLOT_BYTES] = encode(MarkRecord(written, self._run.store_id))
        if self._random.random() < 0.1:
            # The power failed while a slot was being written.
            content[SLOT_BYTES * self._random.randint(0, 1) + self._random.randint(0, 59)] ^= 0xFF
        return bytes(content)
