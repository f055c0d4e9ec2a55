"""A drain on a cluster: the command in a process of its own, and what its receipts say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.optional.cluster.standalone import Standalone, spark_environment, spark_home
from tests.support.mover.brokers import Scene
from twinbus import jobs

QUEUE_COUNT = 10
DESTINATION_COUNT = 5
MESSAGE_COUNT = 20_000
CHUNK_COUNT = 500
TASK_COUNT = 2
LOCK_MS = 10_000
# A look at all processes of the machine costs some milliseconds.
LOOK_INTERVAL_S = 0.4


class Drain:
    """20,000 messages in 10 backlog queues, for 5 destinations."""

    def __init__(self, scene: Scene, cluster: Standalone, directory: Path) -> None:
        self.scene = scene
        self.cluster = cluster
        self.destinations = [scene.destination() for _ in range(DESTINATION_COUNT)]
        self.sent: dict[str, set[str]] = {}
        self._directory = directory
        self.receipts = directory / "receipts"
        self.movers: list[set[int]] = [set() for _ in cluster.workers]
        """By worker: the Python processes that were seen there."""

    async def fill(self) -> None:
        share = MESSAGE_COUNT // DESTINATION_COUNT
        for number, destination in enumerate(self.destinations):
            names = [f"{number}-{index}" for index in range(share)]
            await self.scene.fill(destination, names)
            self.sent[destination] = set(names)

    # -- the command ----------------------------------------------------------------------

    def command(self, *more: str) -> list[str]:
        return [
            *("--primary-name", self.scene.name),
            *("--backlog-queue-count", str(QUEUE_COUNT)),
            *("--chunk", str(CHUNK_COUNT)),
            *("--state", str(self._directory / "state")),
            *("--receipts", str(self.receipts)),
            *("--checkpoints", str(self._directory / "checkpoints")),
            *("--output", "json"),
            *more,
        ]

    def by_command(self, *more: str) -> list[str]:
        master = ["--master", self.cluster.url]
        return [sys.executable, "-m", "twinbus", "syphon", *master, *self.command(*more)]

    def by_submit(self, *more: str) -> list[str]:
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", self.cluster.url]
        job = Path(jobs.__file__).with_name("syphon.py")
        return [*submit, str(job), *self.command(*more)]

    @contextmanager
    def running(
        self, command: list[str], credentials: dict[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        with (self._directory / "driver.log").open("w") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**spark_environment(), **credentials},
            )
        family = psutil.Process(process.pid)
        try:
            yield process
        finally:
            for member in (
                [*family.children(recursive=True), process] if family.is_running() else []
            ):
                member.kill()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()

    def watch(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Look who works, until it is over."""
        ends_s = time.monotonic() + timeout_s
        while not is_over():
            assert time.monotonic() < ends_s, f"not over within {timeout_s:g} s: {self.log()}"
            for worker, seen in zip(self.cluster.workers, self.movers, strict=True):
                seen |= self.cluster.movers(worker)
            time.sleep(LOOK_INTERVAL_S)

    def log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")[-3_000:]

    # -- what became of it ----------------------------------------------------------------

    def home_count(self) -> int:
        return sum(self.scene.home(each) for each in self.destinations)

    async def arrived(self) -> dict[str, Counter[str]]:
        return {each: await self.scene.arrived(each) for each in self.destinations}

    def told(self) -> list[dict[str, Any]]:
        """The receipts of batches that ended; files of others may lie beside them."""
        tables = [pq.read_table(path) for path in sorted(self._committed())]
        rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
        return rows

    def _committed(self) -> set[Path]:
        logs = self.receipts.glob("run=*/_spark_metadata/[0-9]*")
        lines = [line for log in logs for line in log.read_text().splitlines()[1:]]
        addresses = [urlparse(json.loads(line)["path"]).path for line in lines]
        return {Path(unquote(each)) for each in addresses}
