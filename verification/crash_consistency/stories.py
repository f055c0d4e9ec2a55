"""Scripted work for a store: a dozen short stories, each about one thing that a broker does.

A story is a list of steps. What the store must hold after each of them comes from a model in memory
that takes the same ops, so a fault at any moment has only two acceptable ends: the content after
the last step that returned, or after the one that was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import apsw

from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import Op
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.faulty import FaultPlan, FaultyDisk, faulty_disk
from verification.crash_consistency.scratch import (
    STORE_NAME,
    files_of,
    lay_out,
    scratch_directory,
    small_limits,
)
from verification.crash_consistency.workload import Workload, content

MAINTAIN = "maintain"
REOPEN = "reopen"
Step = list[Op] | str
Change = Callable[[Workload, Random], list[Op]]


@dataclass
class Story:
    """Steps, the files that they begin with, and what must be there after each of them."""

    name: str
    steps: list[Step]
    contents: list[dict[str, Any]]
    """contents[n] is what the store holds after n steps; opening it is none."""
    files: dict[str, bytes] = field(default_factory=dict)


W = Workload
_QUEUES: list[Sequence[Change]] = [[W.create_queue]] * 4
_STORED: list[Sequence[Change]] = [*_QUEUES, [W.send, W.send], [W.send, W.publish], [W.send] * 3]

# Each inner list is one commit.
_SCRIPTS: dict[str, list[Sequence[Change] | str]] = {
    "creation": [[W.put_meta], REOPEN, [W.create_queue], REOPEN],
    "single sends": [[W.create_queue], *[[W.send]] * 20],
    "batches": [*_QUEUES, *[[W.send] * 8] * 8, [W.settle_chunks]],
    "topics": [*_QUEUES, *[[W.publish], [W.publish, W.settle], [W.settle_chunks]] * 5],
    "sessions": [*_QUEUES, *[[W.send, W.note_session_state], [W.send, W.settle]] * 8],
    "scheduled": [*_QUEUES, *[[W.schedule], [W.schedule, W.schedule], [W.activate]] * 6],
    "dead letters": [*_STORED, *[[W.deliver], [W.settle, W.send]] * 7],
    "duplicates": [*_QUEUES, *[[W.remember, W.send], [W.remember]] * 8],
    "completing": [
        *_STORED, *[[W.settle], [W.settle, W.settle], [W.deliver]] * 5, [W.settle_chunks]
    ],
    "expiry": [*_STORED, *[[W.move_expiry], [W.send]] * 6, [W.settle_chunks]],
    "deleting": [*_STORED, *[[W.delete_queue], MAINTAIN, [W.create_queue], [W.send]] * 3, MAINTAIN],
    "checkpoints": [*_STORED, *[[W.send] * 4, [W.settle_chunks], MAINTAIN] * 4, REOPEN, [W.send]],
    "upgrade": [
        [W.send], *_QUEUES[:3], [W.remember], [W.note_session_state], [W.publish], REOPEN,
        [W.settle],
    ],
}  # fmt: skip
NAMES = tuple(_SCRIPTS)


@cache
def story(name: str) -> Story:
    """The story of this name, always the same."""
    random = Random(f"story {name}")
    workload = Workload(blob_bytes_max=20_000 if name in ("batches", "checkpoints") else 3_000)
    model = MemoryStore()
    model.open()
    files: dict[str, bytes] = {}
    if name == "upgrade":
        files = _store_of_the_first_format(workload, model, random)
    told = Story(name, [], [_content(model)], files)
    for part in _SCRIPTS[name]:
        step = part
        if not isinstance(part, str):
            step = [op for change in part for op in change(workload, random)]
            step = step or workload.put_meta(random)
            model.commit(step)
        told.steps.append(step)
        told.contents.append(_content(model))
    return told


def take(store: SqliteStore, step: Step) -> None:
    """One step of a story."""
    if step == MAINTAIN:
        while store.maintain():
            pass
    elif step == REOPEN:
        store.close()
        store.open()
    else:
        assert not isinstance(step, str)
        store.commit(step)


@cache
def operations_of(name: str) -> list[str]:
    """The kind of each operation of the story, when nothing goes wrong."""
    # Before the counting begins: preparing the files of a story writes, too.
    told, plan = story(name), FaultPlan()
    with scratch_directory() as directory, faulty_disk(plan) as vfs, small_limits():
        lay_out(directory, told.files)
        store = SqliteStore(directory / STORE_NAME, disk=FaultyDisk(plan), vfs=vfs)
        store.open()
        for step in told.steps:
            take(store, step)
        store.close()
    return plan.kinds


def _content(model: MemoryStore) -> dict[str, Any]:
    model.close()
    return content(model, model.open())


def _store_of_the_first_format(
    workload: Workload, model: MemoryStore, random: Random
) -> dict[str, bytes]:
    """The files of an old store with something in it; the model holds the same."""
    # The first queue of a workload has no sessions, which came later.
    old: list[Change] = [W.create_queue, W.send, W.send, W.settle, W.schedule]
    with scratch_directory() as directory, small_limits():
        store = SqliteStore(directory / STORE_NAME)
        store.open()
        for change in old:
            ops = change(workload, random) or workload.put_meta(random)
            model.commit(ops)
            store.commit(ops)
        store.close()
        make_it_of_the_first_format(directory / STORE_NAME)
        return files_of(directory)


def make_it_of_the_first_format(path: Path) -> None:
    """Take away what later versions have added."""
    names = [sql.split()[2] for sql in schema.UPGRADES[1] if sql.startswith("CREATE TABLE")]
    connection = apsw.Connection(str(path))
    connection.execute("".join(f"DROP TABLE {name};" for name in names))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
