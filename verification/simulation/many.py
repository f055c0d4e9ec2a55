"""Many schedules, on all cores.

In a module of its own: a spawned process cannot find what stands in ``__main__``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool

from verification.simulation.run import Outcome, run_seeds

BATCH = 500


def _batch(first_and_count: tuple[int, int]) -> Outcome:
    first, count = first_and_count
    return run_seeds(range(first, first + count), stops=lambda _outcome: False)


def _batches(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, BATCH):
        yield first + start, min(BATCH, count - start)


@contextmanager
def _pool(workers: int) -> Iterator[Pool | None]:
    """Processes of their own, or none for one worker. They are spawned: a fork of a process with
    threads may never end."""
    if workers == 1:
        yield None
        return
    with get_context("spawn").Pool(workers) as pool:
        yield pool


def run_many(first: int, count: int, workers: int) -> Outcome:
    """Run them on all cores, and say now and then how far that is."""
    outcome, began_s = Outcome(), time.monotonic()
    told = 0
    with _pool(workers) as pool:
        parts = map if pool is None else pool.imap_unordered
        for part in parts(_batch, _batches(first, count)):
            outcome.add(part)
            for broken in part.broken:
                print(broken, flush=True)
            if outcome.schedules >= told + count / 20:
                told = outcome.schedules
                rate = told / (time.monotonic() - began_s)
                print(f"{told:>12,} schedules  {rate:,.0f} a second", flush=True)
    return outcome
