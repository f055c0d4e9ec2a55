"""Brokers and roles as processes of their own: start, kill, stop for a while, end.

Rule 1: only processes that were started here are signalled, by their own id.
Rule 2: a broker comes back on its port, with its data; a role comes back under a new name
        (``sender-1.2``), because whatever it had in mind is gone.
Rule 3: keys travel in the environment, never on a command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from campaign.plan import BROKER_HOST
from twinbus.cli.admin_client import AdminClient
from twinbus.connection_string import ConnectionString, parse_connection_string

Launchers = Mapping[str, Sequence[str]]
"""How the command line of each kind of process begins; the rest is added when it is started."""

_PROGRAM: Final = (sys.executable, "-m", "twinbus")
_ROLE: Final = (sys.executable, "-m", "campaign.roles")
LAUNCHERS: Final[Launchers] = {
    "primary": _PROGRAM,
    "secondary": _PROGRAM,
    "syphon": _PROGRAM,
    "sender": _ROLE,
    "receiver": _ROLE,
    "mover": _ROLE,
}

START_S_MAX: Final = 60.0
END_S_MAX: Final = 30.0
# Far below what a test machine has: a full disk is another test's business.
DISK_FREE_MB: Final = 16


class Child:
    """One process."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def spawn(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def first_line(self) -> bytes:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), START_S_MAX)
        if not line:
            raise RuntimeError(f"{self.name} ended at once:\n{self.log()}")
        return line

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4_000:]

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            self.process.send_signal(number)

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self._gone()

    async def end(self) -> int:
        """Ask it to finish what it is doing; its exit code."""
        self.signal(signal.SIGTERM)
        return await self._gone()

    async def _gone(self) -> int:
        try:
            return await asyncio.wait_for(self.process.wait(), END_S_MAX)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise RuntimeError(f"{self.name} did not end:\n{self.log()}") from None


class BrokerChild(Child):
    """``twinbus serve`` with one namespace."""

    def __init__(
        self, name: str, directory: Path, config_json: str, launcher: Sequence[str]
    ) -> None:
        super().__init__(name, directory)
        self._launcher = launcher
        self._data = directory / f"{name}.data"
        self._config = directory / f"{name}.json"
        self._config.write_text(config_json)
        self.port = 0
        self._admin_port = 0
        self._credential: ConnectionString | None = None

    async def start(self) -> None:
        command = [*self._launcher, "serve", "--output", "json"]
        command += ["--data", str(self._data), "--host", BROKER_HOST]
        command += ["--namespace", f"{self.name}:{self.port}"]
        command += ["--admin-port", str(self._admin_port), "--disk-free-mb", str(DISK_FREE_MB)]
        command += ["--config", str(self._config)]
        await self.spawn(command)
        ready = json.loads(await self.first_line())
        served = ready["namespaces"][self.name]
        self.port, self._admin_port = served["port"], ready["admin_port"]
        self._credential = parse_connection_string(served["connection_string"])

    def connection_string(self, host: str = BROKER_HOST) -> str:
        """How to reach it, there or through a line that listens on another address."""
        assert self._credential is not None, f"{self.name} was not started"
        return replace(self._credential, host=host).to_text()

    async def facts(self, path: str) -> dict[str, Any]:
        """Properties and counts of a queue (``queues/…``) or subscription (``topics/…``)."""
        client = AdminClient.from_options(
            f"http://{BROKER_HOST}:{self._admin_port}", self.connection_string(), self.name
        )
        found: dict[str, Any] = await asyncio.to_thread(client.get, client.in_namespace(path))
        return found
