"""A broker in its own process, as users run it: ``twinbus serve``, which can be killed.

    with BrokerProcessHandle(directory / "data", queues=("orders",)) as broker:
        ...                # broker.connection_string
        broker.kill()      # kill -9
        broker.restart()   # on the same port and the same data

Rule 1: only the process that was started here is signalled, by its own id.
Rule 2: keys are read from its standard output and stay in memory; no command line contains one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from twinbus.broker.access.sas import make_token
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import TwinbusError

__all__ = ["BrokerProcessHandle"]

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
HTTP_TIMEOUT_S: Final = 10.0
LOG_CHARACTERS_SHOWN: Final = 4_000


class BrokerProcessHandle:
    """Starts, kills and restarts one broker, on the same port and data directory."""

    def __init__(
        self,
        data: Path | None,
        *,
        namespace: str,
        queues: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """``data`` is the data directory, None for a broker in memory; ``arguments`` are further
        options of ``twinbus serve``."""
        self.namespace = namespace
        self._data = data
        self._queues = queues
        self._arguments = arguments
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.admin_port = 0
        self.connection_string = ""
        self.announcement: dict[str, Any] = {}
        """The JSON object that the broker printed when it was ready."""
        self.log_path = None if data is None else data.parent / f"{data.name}.log"

    # -- start and end --------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, and return when it is ready."""
        self.launch()
        return self.found(json.loads(self._first_line()))

    def launch(self) -> None:
        """Start the process, and return before it is ready."""
        command = [sys.executable, "-m", "twinbus", "serve", "--output", "json"]
        command += ["--memory"] if self._data is None else ["--data", str(self._data)]
        command += ["--namespace", f"{self.namespace}:{self.port}"]
        command += ["--admin-port", str(self.admin_port)]
        for queue in self._queues:
            command += ["--queue", queue]
        command += self._arguments
        log = subprocess.DEVNULL if self.log_path is None else self.log_path.open("ab")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        finally:
            if not isinstance(log, int):
                log.close()

    def found(self, ready: dict[str, Any]) -> Self:
        """Use the broker that printed this object, in any process."""
        self.announcement = ready
        self.admin_port = ready["admin_port"]
        served = ready["namespaces"][self.namespace]
        self.port, self.connection_string = served["port"], served["connection_string"]
        return self

    def _first_line(self) -> bytes:
        process = self._running()
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], START_TIMEOUT_S)[0]:
            raise TwinbusError(
                f"Broker {self.namespace!r} was not ready within {START_TIMEOUT_S:g} s"
            )
        line = process.stdout.readline()
        if not line:
            log_end = self.log()[-LOG_CHARACTERS_SHOWN:]
            raise TwinbusError(f"Broker {self.namespace!r} ended during start-up:\n{log_end}")
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise TwinbusError(f"Broker {self.namespace!r} is not running")
        return self._process

    def log(self) -> str:
        """The standard error output of the broker so far."""
        return "" if self.log_path is None else self.log_path.read_text(errors="replace")

    @property
    def data(self) -> Path | None:
        """The data directory; None for a broker in memory."""
        return self._data

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9: nothing is flushed, and no connection is closed."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ctrl-C; returns the exit code."""
        return self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> int:
        process = self._running()
        process.send_signal(number)
        code = process.wait(STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return code

    def restart(self) -> Self:
        """Start again after kill() or stop(), on the same port."""
        return self.start()

    def close(self) -> None:
        """Kill the broker if it is running."""
        if self.is_alive:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- administration -------------------------------------------------------------------

    def admin(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send an HTTP request with the Manage claim; returns the JSON answer."""
        request = urllib.request.Request(
            f"http://localhost:{self.admin_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self.token(port=self.admin_port)},
        )
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as response:
            content = response.read()
        return json.loads(content) if content else None

    def token(
        self,
        *,
        expires_in_s: int = 3600,
        port: int | None = None,
        path: str = "",
        rule: tuple[str, str] | None = None,
    ) -> str:
        """A SAS token, by default of the root rule and for the whole namespace."""
        rule_name, key = self.root_rule if rule is None else rule
        return make_token(
            resource=f"sb://localhost:{self.port if port is None else port}/{path}",
            rule_name=rule_name,
            key=key,
            expires_s=int(time.time()) + expires_in_s,
        )

    @property
    def root_rule(self) -> tuple[str, str]:
        """Name and primary key of the rule in the connection string."""
        parsed = parse_connection_string(self.connection_string)
        return parsed.shared_access_key_name or "", parsed.shared_access_key or ""
