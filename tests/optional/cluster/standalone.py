"""Spark's standalone cluster on this machine: a master and some workers, all real processes.

    master <-- worker 0 --> executor --> Python daemon --> Python workers
           <-- worker 1 --> executor --> ...

Everything listens on loopback, on free ports.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
CORES_PER_WORKER = 1
MEMORY_PER_WORKER = "1g"
EXECUTOR = "CoarseGrainedExecutorBackend"
# For every JVM: half the processor time at the start, which is most of what these tests take.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def spark_environment() -> dict[str, str]:
    """What processes of the cluster are told, and whoever talks to it."""
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }


def until(happened: Callable[[], object], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    ends_s = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < ends_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


class Standalone:
    """A context manager; every process that it or its executors started ends with it."""

    def __init__(
        self,
        directory: Path,
        *,
        worker_count: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``environment`` is what the machines know, and with them the tasks."""
        self._directory = directory
        self._environment = environment or {}
        self._master_port, self._page_port = free_ports(2)
        self.url = f"spark://{LOOPBACK}:{self._master_port}"
        self._worker_count = worker_count
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[psutil.Process] = []

    def __enter__(self) -> Standalone:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self) -> None:
        place = ["--host", LOOPBACK, "--webui-port"]
        port = ["--port", str(self._master_port)]
        self._launch(
            "master", "org.apache.spark.deploy.master.Master", *place, str(self._page_port), *port
        )
        until(lambda: self._alive_worker_count() is not None, "the master")
        for number in range(self._worker_count):
            name = f"worker-{number}"
            process = self._launch(
                name,
                "org.apache.spark.deploy.worker.Worker",
                *place,
                "0",
                "--cores",
                str(CORES_PER_WORKER),
                "--memory",
                MEMORY_PER_WORKER,
                "--work-dir",
                str(self._directory / name),
                self.url,
            )
            self.workers.append(psutil.Process(process.pid))
        until(lambda: self._alive_worker_count() == self._worker_count, "the workers")

    def _launch(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *command],
                stdout=log,
                stderr=log,
                env={**spark_environment(), **self._environment},
            )
        self._processes.append(process)
        return process

    def _alive_worker_count(self) -> int | None:
        """As the master tells it; None while it does not answer."""
        with suppress(OSError, ValueError):
            address = f"http://{LOOPBACK}:{self._page_port}/json/"
            with urllib.request.urlopen(address, timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        return None

    # -- what runs in it --------------------------------------------------------------------

    def executors(self, worker: psutil.Process) -> list[psutil.Process]:
        return [each for each in _children(worker) if _runs(each, EXECUTOR)]

    def movers(self, worker: psutil.Process) -> set[int]:
        """Process ids of the Python workers of a worker's executors."""
        return {
            each.pid
            for executor in self.executors(worker)
            for each in _children(executor)
            if _runs(each, "pyspark.daemon") or _runs(each, "pyspark.worker")
        }

    def kill_worker(self, worker: psutil.Process) -> None:
        """kill -9 of a worker and its executors, as when a machine is gone; its Python processes
        are left to notice by themselves."""
        doomed = [worker, *self.executors(worker)]
        for process in doomed:
            process.kill()
        psutil.wait_procs(doomed, timeout=10)

    def close(self) -> None:
        families: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                families += [*_children(psutil.Process(process.pid))]
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(10)
        for member in families:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(families, timeout=10)


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody has now; all different."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _runs(process: psutil.Process, what: str) -> bool:
    try:
        return any(what in word for word in process.cmdline())
    except psutil.Error:
        return False
