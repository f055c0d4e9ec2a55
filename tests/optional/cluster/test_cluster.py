"""The syphon on a standalone cluster of two workers: `make cluster-test`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.optional.cluster.drains import (
    CHUNK_COUNT,
    LOCK_MS,
    MESSAGE_COUNT,
    QUEUE_COUNT,
    TASK_COUNT,
    Drain,
)
from tests.optional.cluster.standalone import Standalone
from tests.spark.brokers import SparkPair
from tests.support.mover.brokers import Scene

pytestmark = pytest.mark.timeout(300)
# A minute on a machine that has nothing else to do.
DRAIN_S_MAX = 240.0
# A Python process of a killed executor notices within this time.
ORPHAN_S_MAX = 10.0

# Slow enough to be in the middle of it when something happens.
RATE = ("--rate", "1500")


@pytest.fixture
async def drain(pair: SparkPair, cluster: Standalone, tmp_path: Path) -> Drain:
    made = Drain(Scene(pair, queue_count=QUEUE_COUNT, lock_duration_ms=LOCK_MS), cluster, tmp_path)
    await made.fill()
    return made


@pytest.mark.parametrize("by", [Drain.by_command, Drain.by_submit], ids=["command", "submit"])
async def test_both_workers_bring_the_backlog_home(
    drain: Drain, credentials: dict[str, str], by: Callable[..., list[str]]
) -> None:
    """Y1 and Y2: by `twinbus syphon --master` and by spark-submit; the receipts show who moved."""
    with drain.running(by(drain, "--once"), credentials) as process:
        drain.watch(lambda: process.poll() is not None, DRAIN_S_MAX)
        assert process.stdout is not None
        told = process.stdout.read()
        assert process.returncode == 0, f"{told}\n{drain.log()}"
        summary = json.loads(told.splitlines()[-1])
    assert summary["moved"] == MESSAGE_COUNT

    for destination, found in (await drain.arrived()).items():
        assert set(found) == drain.sent[destination] and found.total() == len(found)
    receipts = drain.told()
    assert len({(row["queue"], row["sequence_number"]) for row in receipts}) == MESSAGE_COUNT
    assert {row["outcome"] for row in receipts} == {"moved"}
    movers = {row["pid"] for row in receipts}
    assert len(movers) >= 2 and all(row["host"] for row in receipts)
    for worker, seen in enumerate(drain.movers):
        assert movers & seen, f"worker {worker} moved nothing: {movers} and {drain.movers}"
    assert not any(value in drain.log() for value in credentials.values())


async def test_a_worker_that_is_killed_loses_nothing(
    drain: Drain, cluster: Standalone, credentials: dict[str, str]
) -> None:
    """Y1: kill -9 of a worker and its executor; at most a chunk of its task comes twice."""
    with drain.running(drain.by_command(*RATE), credentials) as process:
        drain.watch(lambda: drain.home_count() > MESSAGE_COUNT // 5, DRAIN_S_MAX)
        doomed = cluster.workers[0]
        orphans = [psutil.Process(pid) for pid in cluster.movers(doomed)]
        assert orphans and drain.home_count() < MESSAGE_COUNT
        cluster.kill_worker(doomed)

        _gone, alive = psutil.wait_procs(orphans, timeout=ORPHAN_S_MAX)
        assert not alive
        drain.watch(lambda: drain.scene.left() == 0, DRAIN_S_MAX)
        assert process.poll() is None, drain.log()

    arrived = await drain.arrived()
    for destination, found in arrived.items():
        assert set(found) == drain.sent[destination]
    again = sum(found.total() - len(found) for found in arrived.values())
    assert again <= CHUNK_COUNT * TASK_COUNT
