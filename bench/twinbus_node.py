"""Our broker in a process of its own, started as a user would start it.

The queues are declared on the command line; the connection string is read from what it prints.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from bench.processes import BenchError, end_group, free_port, spawn, wait_for
from bench.wire import Address

QUEUE_COUNT = 64
# The promise is one second; a restart with a million messages may take ten.
START_WAIT_S_MAX = 60.0
CONNECTION_STRING = re.compile(r"Endpoint=sb://\S+")


class TwinbusNode:
    """One broker; ``start`` may be called again after ``stop`` or ``kill`` with the same data."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.queues = [f"bench-{number}" for number in range(QUEUE_COUNT)]
        self._log = directory / "serve.log"
        self._port = free_port()
        self._command = [
            sys.executable, "-m", "twinbus", "serve",
            "--data", str(directory / "data"), "--namespace", f"bench:{self._port}",
        ]  # fmt: skip
        for queue in self.queues:
            self._command += ["--queue", queue]
        self._process: subprocess.Popen[bytes] | None = None
        self._address: Address | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError("the broker is not running")
        return self._process.pid

    @property
    def address(self) -> Address:
        if self._address is None:
            raise BenchError("the broker is not running")
        return self._address

    def start(self) -> None:
        """Return when the broker has printed its connection string and takes connections."""
        self._log.unlink(missing_ok=True)
        env = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
        self._process = spawn(self._command, self._log, env)
        self._address = wait_for("the start of twinbus", self._printed, START_WAIT_S_MAX)

    def _printed(self) -> Address | None:
        text = self._log.read_text()
        if self._process is not None and self._process.poll() is not None:
            raise BenchError(f"twinbus ended while starting: {text.strip()[-500:]}")
        found = CONNECTION_STRING.search(text)
        return Address.from_connection_string(found[0]) if found else None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            end_group(self._process, how)
            self._process = None
