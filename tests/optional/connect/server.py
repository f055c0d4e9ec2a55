"""A Spark Connect server on this machine: one JVM with two cores, and a port to ask it by."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.optional.cluster.standalone import (
    LOOPBACK,
    free_ports,
    spark_environment,
    spark_home,
    until,
)

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Here, unlike a cluster's master, the driver's memory is that of a daemon.
MEMORY = "1g"


class ConnectServer:
    """A context manager; every process that it started ends with it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """``environment`` is what the server's machine knows, and with it the tasks."""
        self._directory = directory
        self._environment = environment
        (self._port,) = free_ports(1)
        self.url = f"sc://{LOOPBACK}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ConnectServer:
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
            "spark.local.dir": str(self._directory / "local"),
            "spark.ui.enabled": "false",
        }
        command = [str(spark_home() / "bin" / "spark-submit"), "--class", CLASS]
        command += ["--master", "local[2]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        with (self._directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**spark_environment(), "SPARK_DAEMON_MEMORY": MEMORY, **self._environment},
            )
        try:
            until(self._listens, "the server")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log()[-3_000:]
        with suppress(OSError), socket.create_connection((LOOPBACK, self._port), timeout=1):
            return True
        return False

    def log(self) -> str:
        return (self._directory / "server.log").read_text(errors="replace")

    def close(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait(10)
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)
