"""One bit flipped at every byte of a small store: database, log and mark.

Each flip is *detected* (the store is refused when it is opened, or what is read is refused, with an
error that names the damage) or *harmless* (everything that a broker can ask is answered as before).
A store that answers differently, fails in another way or does not come to an end is a complaint.

After some of the harmless ones the store works on, takes what it has as free room, is closed and
opened again: damage in the list of free pages shows only then.

Nothing is checked here that a broker would not check: there is no look at all rows, and no help
from SQLite's own check of everything.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import DeleteChunks, Op, PutChunk, Recovered
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreCorrupt, StoreVersionMismatch
from verification.crash_consistency.recorded import SMALL_PAGE_BYTES
from verification.crash_consistency.scratch import (
    STORE_NAME,
    files_of,
    lay_out,
    let_go,
    scratch_directory,
    small_limits,
)
from verification.crash_consistency.tally import Complaint, Tally, Wrong
from verification.crash_consistency.workload import Workload, answers_in_time, content

PART = "flipped bits"
COMMITS = 70
# Most of what the workload schedules, or lets expire, is due.
NOW_MS = 40
LOGGED_COMMITS = 3
"""So many are still in the log when the process is killed."""
# A flip that sends a reader in circles would never end.
FLIP_S_MAX = 10

CLEAR = (StoreCorrupt, StoreVersionMismatch)


# Of so many places, one is followed by more work.
WORKS_ON_EVERY = 8


@dataclass
class Image:
    """The files of a killed store, and what it answers."""

    files: dict[str, bytes]
    answers: dict[str, Any]
    more: list[list[Op]]
    """Commits that may follow."""
    answers_then: dict[str, Any]

    def places(self) -> list[tuple[str, int]]:
        """Every byte of every file."""
        return [(name, at) for name in sorted(self.files) for at in range(len(self.files[name]))]


@cache
def image(seed: int) -> Image:
    """A store with some of everything, most of it in the database, the end of it in the log.

    Small pages: the same rows with less empty room between them, about 256 KB in all.
    """
    random = Random(f"rot {seed}")
    workload = Workload(blob_bytes_max=1_500)
    small_pages = patch.object(schema, "PAGE_BYTES", SMALL_PAGE_BYTES)
    with scratch_directory() as directory, small_limits(), small_pages:
        store = SqliteStore(directory / STORE_NAME)
        store.open()
        for _ in range(COMMITS):
            store.commit(workload.anything(random))
        _leave_free_pages(store, workload, random)
        _keep_a_large_body(store, workload, random)
        store.close()
        store.open()
        for _ in range(LOGGED_COMMITS):
            store.commit(workload.send(random))
        let_go(store)
        files = files_of(directory)
        more = [workload.anything(random) + workload.send(random) for _ in range(3)]
        answers = answers_of(directory)
        work_on(directory, more)
        return Image(files, answers, more, answers_of(directory))


def _leave_free_pages(store: SqliteStore, workload: Workload, random: Random) -> None:
    """A chunk of ten pages comes and goes."""
    ops = workload.send(random)
    assert isinstance(ops[0], PutChunk)
    row = ops[0].row
    row.blob = random.randbytes(10 * SMALL_PAGE_BYTES)
    store.commit(ops)
    books = workload.queues[row.queue_id]
    del books.chunks[row.first_seq]
    store.commit([DeleteChunks(row.queue_id, row.first_seq, row.first_seq), books.counters()])


def _keep_a_large_body(store: SqliteStore, workload: Workload, random: Random) -> None:
    """Pages that are in the database only. Small bodies share theirs with rows that change, and the
    log has a newer copy of these: a flip in the old one is harmless, whoever checks it."""
    ops = workload.send(random)
    assert isinstance(ops[0], PutChunk)
    ops[0].row.blob = random.randbytes(3 * SMALL_PAGE_BYTES)
    store.commit(ops)


def answers_of(directory: Path) -> dict[str, Any]:
    store = SqliteStore(directory / STORE_NAME)
    try:
        return all_answers(store, store.open())
    finally:
        let_go(store)


def work_on(directory: Path, more: list[list[Op]]) -> None:
    """Commit, give pages back, and bring everything into the database."""
    with small_limits():
        store = SqliteStore(directory / STORE_NAME)
        store.open()
        try:
            for ops in more:
                store.commit(ops)
            while store.maintain():
                pass
        finally:
            store.close()


def all_answers(store: SqliteStore, recovered: Recovered) -> dict[str, Any]:
    """Everything that a broker can ask."""
    in_time = {
        entity.queue_id: answers_in_time(store, entity.queue_id, NOW_MS)
        for entity in recovered.entities
    }
    return {**content(store, recovered), "in time": in_time}


class Flipper:
    """Flips one bit at a time in a copy of the image."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._seed = seed
        self._image = image(seed)
        self._directory = directory
        self.tally = Tally(PART, {"a killed store"})
        lay_out(directory, self._image.files)

    def flip(self, name: str, at: int) -> None:
        bit = Random(f"{self._seed} {name} {at}").randrange(8)
        self._put(name, at, self._image.files[name][at] ^ 1 << bit)
        place = f"bit {bit} of byte {at} of {name}"
        self.tally.points += 1
        try:
            with _bounded():
                outcome = self._outcome(place)
                if outcome == "harmless" and at % WORKS_ON_EVERY == self._seed % WORKS_ON_EVERY:
                    outcome = self._outcome_of_more_work(place)
                self.tally.outcomes[outcome] += 1
        except TimeoutError:
            self._complain(f"{place}: it does not come to an end")
        self._put(name, at, self._image.files[name][at])
        self._tidy()

    def _outcome(self, place: str) -> str:
        store = SqliteStore(self._directory / STORE_NAME)
        try:
            recovered = store.open()
        except CLEAR:
            return "refused when opened"
        except Exception as error:
            self._complain(f"{place}: {type(error).__name__}: {error}")
            return "unclear"
        try:
            if all_answers(store, recovered) == self._image.answers:
                return "harmless"
            self._complain(f"{place}: it answers something else")
            return "silent"
        except CLEAR:
            return "refused when read"
        except Exception as error:
            self._complain(f"{place}: {type(error).__name__}: {error}")
            return "unclear"
        finally:
            let_go(store)

    def _outcome_of_more_work(self, place: str) -> str:
        try:
            work_on(self._directory, self._image.more)
            if answers_of(self._directory) == self._image.answers_then:
                return "harmless for good"
            self._complain(f"{place}: after more work it answers something else")
            return "silent"
        except CLEAR:
            return "refused later"
        except Exception as error:
            self._complain(f"{place}: after more work {type(error).__name__}: {error}")
            return "unclear"
        finally:
            lay_out(self._directory, self._image.files)

    def _put(self, name: str, at: int, byte: int) -> None:
        with (self._directory / name).open("r+b") as file:
            file.seek(at)
            file.write(bytes((byte,)))

    def _tidy(self) -> None:
        """An opened store has written its mark; nothing else may have changed."""
        mark = STORE_NAME + ".mark"
        (self._directory / mark).write_bytes(self._image.files[mark])
        if self.tally.points % 500 == 0 and files_of(self._directory) != self._image.files:
            self._complain("looking at the store has changed it")
            lay_out(self._directory, self._image.files)

    def _complain(self, text: str) -> None:
        replay = f"python -m verification.crash_consistency --only rot --seed {self._seed}"
        self.tally.complaints.append(Complaint(Wrong.CONTENT, text, replay))


@contextmanager
def _bounded() -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(FLIP_S_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def flip(places: list[tuple[str, int]], seed: int) -> Tally:
    """Flip one bit at each of these places, one at a time."""
    with scratch_directory() as directory:
        flipper = Flipper(seed, directory)
        for name, at in places:
            flipper.flip(name, at)
        flipper.tally.distinct = flipper.tally.points
        return flipper.tally
