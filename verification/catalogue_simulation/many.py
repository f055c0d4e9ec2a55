"""Many sequences, in one process or in several, and whether they have seen everything."""

from __future__ import annotations

import gc
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from tests.support.simulated_loop import without_turns
from verification.catalogue_simulation.checks import Broken
from verification.catalogue_simulation.sequence import INJECTIONS, Sequence

# One in so many is on SQLite, which takes longer.
ON_DISK_EVERY: Final = 100
PORTION: Final = 1_000
COLLECT_EVERY: Final = 200
BROKEN_MAX: Final = 20

WANTED: Final = (
    *(f"injected: {name}" for name in INJECTIONS),
    *(
        f"{kind}: {outcome}"
        for kind in (
            "create queue",
            "create topic",
            "create subscription",
            "update forward",
            "add rule",
            "replace rule",
            "delete rule",
        )
        for outcome in ("done", "refused", "full disk")
    ),
    *(
        f"{kind}: {outcome}"
        for kind in (
            "update status",
            "update access rules",
            "delete queue",
            "delete topic",
            "delete subscription",
            "reset",
            "reset and keep",
            "purge",
            "provide",
        )
        for outcome in ("done", "full disk")
    ),
    *("update what is for life: refused", "provide: refused", "reset and keep: refused"),
    *("idle: deleted", "idle: full disk", "send", "restart", "on disk"),
)
"""A run that has not seen all of these proves less than it says."""


@dataclass(slots=True)
class Outcome:
    """What many sequences came to."""

    sequences: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.sequences += other.sequences
        self.seen += other.seen
        self.broken += other.broken

    @property
    def missing(self) -> list[str]:
        return [each for each in WANTED if not self.seen[each]]


@contextmanager
def quiet() -> Iterator[None]:
    """No log of refusals by the thousand, no clock of the machine's in a topic's turns, and no
    garbage collector that looks at living namespaces again and again.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        with without_turns():
            yield
    finally:
        logging.disable(disabled)
        gc.enable()


def run_one(seed: int, directory: Path) -> Sequence:
    """Live through one sequence; Broken when something is not as it must be."""
    is_on_disk = seed % ON_DISK_EVERY == 0
    path = directory / f"{seed}.db" if is_on_disk else None
    sequence = Sequence(seed, path)
    try:
        sequence.run()
    finally:
        if path is not None:
            sequence.seen["on disk"] += 1
            for file in directory.glob(f"{seed}.db*"):
                file.unlink()
    return sequence


def run_seeds(first: int, count: int) -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as directory, quiet():
        for seed in range(first, first + count):
            outcome.sequences += 1
            if outcome.sequences % COLLECT_EVERY == 0:
                gc.collect()
            try:
                outcome.seen += run_one(seed, Path(directory)).seen
            except Broken as broken:
                outcome.broken.append(str(broken))
                if len(outcome.broken) >= BROKEN_MAX:
                    break
    return outcome


def run_many(
    first: int, count: int, workers: int, progress: Callable[[Outcome], None] | None = None
) -> Outcome:
    """The sequences from one seed on, over processes; ``progress`` hears of each portion."""
    portions = [
        (start, min(PORTION, first + count - start))
        for start in range(first, first + count, PORTION)
    ]
    outcome = Outcome()
    parts: Iterable[Outcome]
    with ExitStack() as stack:
        if workers <= 1 or len(portions) == 1:
            parts = (run_seeds(*portion) for portion in portions)
        else:
            pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
            parts = stack.enter_context(pool).map(run_seeds, *zip(*portions, strict=True))
        for part in parts:
            outcome.add(part)
            if progress is not None:
                progress(outcome)
    return outcome
