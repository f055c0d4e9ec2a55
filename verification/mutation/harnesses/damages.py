"""A killed store loses a part: whoever opens it must say so, or find everything as it was.

What is done to it: a log cut short, rows that vanish, an older copy in its place. (Bits that flip
are in rotten.py, power cuts in crashes.py.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import apsw

from tests.unit.broker.storage.files import as_killed
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import TwinbusError
from verification.crash_consistency.workload import Workload, content

COMMITS = 25
ROWS = ("chunk", "tombstone", "scheduled")


@dataclass(frozen=True, slots=True)
class Damages:
    """Stores of different seeds, each damaged in every way."""

    name: str = "damaged stores"
    unit: str = "damaged stores"
    rounds_max: int = 200
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        count = 0
        for seed in range(self.rounds_max):
            home = directory / str(seed)
            home.mkdir()
            known = _killed(home, Random(seed))
            for damage in DAMAGES:
                if count == self.rounds_max:
                    return
                count += 1
                yield _complaints(home, damage, Random(f"{seed} {damage.__name__}"), known)
            shutil.rmtree(home)


def _killed(home: Path, random: Random) -> dict[str, Any]:
    """Work on a store until it is killed, with a copy of how it was in the middle."""
    store, workload = SqliteStore(home / "store.db"), Workload(blob_bytes_max=3_000)
    store.open()
    for number in range(COMMITS):
        store.commit(workload.anything(random))
        if number == COMMITS // 2:
            as_killed(home / "store.db", home / "old")
    killed = as_killed(home / "store.db", home / "killed")
    store.close()
    shutil.copytree(killed.parent, home / "whole")
    return _found(home / "whole" / "store.db")


def _found(path: Path) -> dict[str, Any]:
    """Everything that a broker would find, or TwinbusError."""
    store = SqliteStore(path)
    recovered = store.open()
    try:
        found = content(store, recovered)
        store.verify_all()
    finally:
        store.close()
    return found


def _complaints(home: Path, damage: Damage, random: Random, known: dict[str, Any]) -> list[str]:
    target = home / damage.__name__
    shutil.copytree(home / "killed", target)
    path = target / "store.db"
    damage(path, random)
    try:
        found = _found(path)
    except TwinbusError:
        return []  # It is told, and nobody works with it.
    what = damage.__name__.replace("_", " ")
    return [] if found == known else [f"damage went unnoticed: {what}"]


Damage = Callable[[Path, Random], None]


def cut_the_log(path: Path, random: Random) -> None:
    log = path.with_name("store.db-wal")
    content = log.read_bytes()
    log.write_bytes(content[: random.randrange(len(content))])


def lose_a_row(path: Path, random: Random) -> None:
    with apsw.Connection(str(path)) as connection:
        for table in random.sample(ROWS, len(ROWS)):
            ids = [each for (each,) in connection.execute(f"SELECT id FROM {table}")]
            if ids:
                connection.execute(f"DELETE FROM {table} WHERE id = ?", (random.choice(ids),))
                return


def bring_back_an_older_copy(path: Path, random: Random) -> None:
    for name in ("store.db", "store.db-wal"):
        shutil.copyfile(path.parents[1] / "old" / name, path.with_name(name))


DAMAGES: tuple[Damage, ...] = (
    cut_the_log,
    lose_a_row,
    bring_back_an_older_copy,
)
