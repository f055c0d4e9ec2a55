"""The start of the syphon on Spark: from nothing to the first message home, and to the last.

    twinbus syphon --once -> Python -> JVM -> session -> query -> first batch -> first message home

The backlog stands filled before the program starts; the clock runs from there. The cache directory
is empty at first: one start is measured as it is then, the others after ``twinbus syphon prepare``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from verification.benchmarks.drain_movers import START_S_MAX, SparkSyphon
from verification.benchmarks.drain_site import HOME_S_MAX, site
from verification.benchmarks.processes import BenchError
from verification.benchmarks.report import Figure
from verification.benchmarks.run import Bench, progress

MESSAGES: Final = 200_000
SIZE_BYTES: Final = 200
FIRST_HOME_S_MAX: Final = 8.0
PREPARE_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Cold:
    """Seconds from the start of the program."""

    first_home_s: float
    all_home_s: float
    ended_s: float


def cold_start(messages: int, size_bytes: int) -> Cold:
    """``twinbus syphon --once`` over a filled backlog."""
    with site() as where, tempfile.TemporaryDirectory(prefix="bench-cold-") as directory:
        where.fill(messages, size_bytes)
        syphon = SparkSyphon(where, Path(directory))
        began_s = time.monotonic()
        try:
            syphon.start("--once")
            first_s = where.wait_until_home(1, START_S_MAX, check=syphon.check)
            all_s = where.wait_until_home(messages)
            if (code := syphon.wait(HOME_S_MAX)) != 0:
                raise BenchError(f"the syphon ended with {code}")
            ended_s = time.monotonic()
        finally:
            syphon.stop()
        where.check(messages)
        return Cold(first_s - began_s, all_s - began_s, ended_s - began_s)


def scenario(bench: Bench, name: str) -> list[Figure]:
    """From the start of the program to the first message home, and to the last."""
    if bench.ours is None:
        return []
    with _empty_cache():
        bench.note_busy(name)
        unprepared = cold_start(MESSAGES, SIZE_BYTES)
        progress(f"{name}, unprepared: {unprepared}")
        _prepare()
        starts = []
        for number in range(1, bench.rounds + 1):
            busy = bench.note_busy(name)
            starts.append(cold_start(MESSAGES, SIZE_BYTES))
            progress(f"{name}, round {number} of {bench.rounds}: {starts[-1]}{busy}")
    bench.raw.setdefault(name, {}).update(
        unprepared=asdict(unprepared), starts=[asdict(start) for start in starts]
    )
    first_s = statistics.median(start.first_home_s for start in starts)
    all_s = statistics.median(start.all_home_s for start in starts)
    return [
        Figure(
            name=f"{name}_first_message", value=first_s, unit="s", peer="the promise",
            peer_value=FIRST_HOME_S_MAX, wanted=f"under {FIRST_HOME_S_MAX:g} s",
            promise_kept=first_s < FIRST_HOME_S_MAX,
        ),
        Figure(
            name=f"{name}_all_home", value=all_s, unit=f"s for {MESSAGES:,}", peer="no peer",
            peer_value=None, wanted="no promise",
        ),
        Figure(
            name=f"{name}_first_message_unprepared", value=unprepared.first_home_s, unit="s",
            peer="no peer", peer_value=None, wanted="no promise",
        ),
    ]  # fmt: skip


@contextmanager
def _empty_cache() -> Iterator[None]:
    """What earlier starts have kept on this machine is not there."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as directory:
        os.environ["XDG_CACHE_HOME"] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def _prepare() -> None:
    progress("twinbus syphon prepare")
    subprocess.run(
        [sys.executable, "-m", "twinbus", "syphon", "prepare"],
        check=True, capture_output=True, timeout=PREPARE_S_MAX,
    )  # fmt: skip
