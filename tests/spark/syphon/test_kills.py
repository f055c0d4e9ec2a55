"""kill -9 of everything that takes part in a drain, one after the other: nothing is lost.

What a kill may repeat is what was sent and not yet completed: a chunk of each task. A destination
with duplicate detection gets everything once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.pairing.mover.brokers import Scene
from tests.spark.brokers import SparkPair
from tests.spark.syphon.victims import family, jvm_of, movers_of, source_runner_of, until
from twinbus.spark.syphon import Syphon, SyphonSettings, start_syphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE_COUNT = 20_000
QUEUE_COUNT = 4
CHUNK_COUNT = 200
TASK_COUNT = 2
# Slow enough to be hit in the middle, by somebody who looks every 50 ms.
RATE_PER_S = 5_000.0
LOCK_MS = 10_000
DRAIN_S_MAX = 60.0
# A Spark that starts beside another one, on a machine with more to do.
START_S_MAX = 150.0
# Python processes notice within a second or so that their JVM is gone.
ORPHAN_S_MAX = 10.0


@dataclass
class Drain:
    """10,000 messages for a destination that takes everything, and 10,000 for one that looks."""

    scene: Scene
    plain: str
    detecting: str

    @property
    def pair(self) -> SparkPair:
        assert isinstance(self.scene.pair, SparkPair)
        return self.scene.pair

    def settings(self, **more: Any) -> SyphonSettings:
        return SyphonSettings(
            primary=self.pair.primary_ref,
            secondary=self.pair.secondary_ref,
            primary_name=self.scene.name,
            queues=tuple(self.scene.queues),
            chunk_count=CHUNK_COUNT,
            tasks=TASK_COUNT,
            **more,
        )

    def home_count(self) -> int:
        return self.scene.home(self.plain) + self.scene.home(self.detecting)

    def until_under_way(self) -> None:
        until(lambda: self.home_count() > MESSAGE_COUNT // 10, "under way", START_S_MAX)
        assert self.scene.left() > MESSAGE_COUNT // 4, "it was over before anything was killed"

    def until_home(self) -> None:
        until(lambda: self.scene.left() == 0, "the backlog is empty", DRAIN_S_MAX)

    async def check(self, kill_count: int = 1) -> None:
        """Nothing is lost; what came twice is what a kill may repeat."""
        plain = await self.scene.arrived(self.plain)
        assert set(plain) == names("plain")
        assert plain.total() - len(plain) <= CHUNK_COUNT * TASK_COUNT * kill_count
        assert await self.scene.arrived(self.detecting) == Counter(names("detecting"))


def names(kind: str) -> set[str]:
    return {f"{kind}-{number}" for number in range(MESSAGE_COUNT // 2)}


async def filled(pair: SparkPair) -> Drain:
    scene = Scene(pair, queue_count=QUEUE_COUNT, lock_duration_ms=LOCK_MS)
    detecting = scene.destination(requires_duplicate_detection=True)
    drain = Drain(scene, scene.destination(), detecting)
    await scene.fill(drain.plain, sorted(names("plain")))
    await scene.fill(drain.detecting, sorted(names("detecting")))
    return drain


@pytest.fixture
async def drain(pair: SparkPair) -> AsyncIterator[Drain]:
    made = await filled(pair)
    yield made
    await made.scene.close()


@contextmanager
def running(spark: SparkSession, settings: SyphonSettings, state: Path) -> Iterator[Syphon]:
    syphon = start_syphon(spark, settings, state)
    try:
        yield syphon
    finally:
        syphon.stop()


def shared_jvm(spark: SparkSession) -> psutil.Process:
    return jvm_of(psutil.Process())


async def test_a_mover_is_killed(spark: SparkSession, drain: Drain, tmp_path: Path) -> None:
    """Y1: Spark works the order again, in another process."""
    with running(spark, drain.settings(rate_per_s=RATE_PER_S), tmp_path) as syphon:
        drain.until_under_way()
        movers = movers_of(shared_jvm(spark), drain.pair.primary.port)
        assert movers
        movers[0].kill()
        drain.until_home()
        assert syphon.is_running
    await drain.check()


async def test_the_source_is_killed(spark: SparkSession, drain: Drain, tmp_path: Path) -> None:
    """Y1: the query fails, in time; the next one goes on where the locks are."""
    with running(spark, drain.settings(rate_per_s=RATE_PER_S, batch_s=2.0), tmp_path) as syphon:
        drain.until_under_way()
        source_runner_of(shared_jvm(spark)).kill()
        until(lambda: not syphon.is_running, "the query has failed", 30)
        with pytest.raises(Exception, match=r"(?i)python|socket|EOF|reset"):
            syphon.check()
    with running(spark, drain.settings(), tmp_path):
        drain.until_home()
    await drain.check()


@pytest.mark.parametrize("which", ["program", "jvm"])
async def test_a_program_is_killed(
    spark: SparkSession, drain: Drain, tmp_path: Path, which: str
) -> None:
    """Y1: whoever of the two is killed, the others do not go on by themselves."""
    with program(drain, tmp_path) as process:
        drain.until_under_way()
        head = psutil.Process(process.pid)
        jvm, everybody = jvm_of(head), family(head)
        (head if which == "program" else jvm).kill()
        assert process.wait(ORPHAN_S_MAX) != 0
        _gone, alive = psutil.wait_procs(everybody, timeout=ORPHAN_S_MAX)
        assert not alive
        if which == "jvm":
            assert b"the JVM of Spark is gone" in (tmp_path / "program.log").read_bytes()
    with running(spark, drain.settings(), tmp_path):
        drain.until_home()
    await drain.check()


@contextmanager
def program(drain: Drain, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``twinbus syphon`` in a process of its own."""
    command = [sys.executable, "-m", "twinbus", "syphon"]
    command += ["--primary-name", drain.scene.name, "--state", str(directory / "state")]
    command += ["--backlog-queue-count", str(QUEUE_COUNT), "--chunk", str(CHUNK_COUNT)]
    command += ["--rate", str(RATE_PER_S), "--output", "json"]
    environment = {**os.environ, **drain.pair.environment}
    with (directory / "program.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    everybody: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            everybody = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        process.wait(10)
        for each in everybody:
            with suppress(psutil.NoSuchProcess):
                each.kill()


@pytest.mark.parametrize("which", ["primary", "secondary"])
async def test_a_broker_is_killed(
    spark: SparkSession, mortal_pair: SparkPair, tmp_path: Path, which: str
) -> None:
    """Y1 and Y4: the query goes on by itself once the broker is back."""
    drain = await filled(mortal_pair)
    broker = getattr(mortal_pair, which)
    with running(spark, drain.settings(rate_per_s=RATE_PER_S), tmp_path) as syphon:
        drain.until_under_way()
        broker.kill()
        broker.restart()
        drain.until_home()
        assert syphon.is_running
    await drain.check()
    await drain.scene.close()
