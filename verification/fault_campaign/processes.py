"""Brokers and roles as processes of their own: start, kill, stop for a while, end.

Rule 1: only processes that were started here are signalled, by their own id, and what they
        started in their turn.
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

from twinbus.cli.shared.admin_client import AdminClient
from twinbus.common.connection_string import ConnectionString, parse_connection_string
from twinbus.errors import TwinbusError
from verification.fault_campaign.machine import Board, Disk
from verification.fault_campaign.plan import BROKER_HOST, CLAIMS

Launchers = Mapping[str, Sequence[str]]
"""How the command line of each kind of process begins; the rest is added when it is started."""

_PROGRAM: Final = (sys.executable, "-m", "twinbus")
_ROLE: Final = (sys.executable, "-m", "verification.fault_campaign.roles")
LAUNCHERS: Final[Launchers] = {
    "primary": _PROGRAM,
    "secondary": _PROGRAM,
    "syphon": _PROGRAM,
    "sender": _ROLE,
    "receiver": _ROLE,
    "mover": _ROLE,
    "prober": _ROLE,
    "twin": _ROLE,
}

START_S_MAX: Final = 60.0
END_S_MAX: Final = 30.0
# Far below what a machine has, and enough for a broker to say busy before its disk is full.
DISK_FREE_MB: Final = 16
METERING_SUFFIX: Final = ".metering"


class Child:
    """One process."""

    def __init__(self, name: str, directory: Path, board: Board | None = None) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.board = board
        self._process: asyncio.subprocess.Process | None = None
        self.is_accounted = False
        """Whether somebody told it to end, or has written down that nobody did."""

    async def spawn(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        shown = self.board.environment if self.board is not None else {}
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **shown, **(environment or {})},
            )
        self.is_accounted = False

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def has_died(self) -> bool:
        """Whether it has ended, and nobody has said why."""
        return self._process is not None and not self.is_alive and not self.is_accounted

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
        self.is_accounted = True
        self.signal(signal.SIGKILL)
        await self._gone()

    async def end(self) -> int:
        """Ask it to finish what it is doing; its exit code."""
        self.is_accounted = True
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
    """``twinbus serve`` with one namespace, on a disk of its own if there is one."""

    def __init__(
        self,
        name: str,
        directory: Path,
        config_json: str,
        launcher: Sequence[str],
        board: Board | None = None,
    ) -> None:
        super().__init__(name, directory, board)
        self._launcher = launcher
        self.disk = Disk(directory / f"{name}.data")
        self.metering = directory / f"{name}{METERING_SUFFIX}"
        self._config = directory / f"{name}.json"
        self._config.write_text(config_json)
        self.port = 0
        self._admin_port = 0
        self._root: ConnectionString | None = None
        self._keys: dict[str, str] = {}
        """By kind of process."""

    async def start(self) -> None:
        command = [*self._launcher, "serve", "--output", "json"]
        command += ["--data", str(self.disk.path), "--host", BROKER_HOST]
        command += ["--namespace", f"{self.name}:{self.port}"]
        command += ["--admin-port", str(self._admin_port), "--disk-free-mb", str(DISK_FREE_MB)]
        command += ["--config", str(self._config)]
        command += ["--metering", str(self.metering), "--audit"]
        await self.spawn(command)
        ready = json.loads(await self.first_line())
        served = ready["namespaces"][self.name]
        self.port, self._admin_port = served["port"], ready["admin_port"]
        self._root = parse_connection_string(served["connection_string"])

    async def make_keys(self) -> None:
        """An access rule for every kind of process that has business here."""
        for kind, claims in CLAIMS.items():
            if self.name in claims:
                rule = await self.ask("PUT", f"rules/{kind}", {"claims": claims[self.name]})
                self._keys[kind] = rule["primary_key"]

    async def rotate_key(self, kind: str) -> None:
        """From now on the old one is refused."""
        self._keys[kind] = (await self.ask("POST", f"keys/{kind}/primary"))["key"]

    def connection_string(self, kind: str = "", host: str = BROKER_HOST) -> str:
        """How a kind of process reaches it; without a kind, as its owner."""
        assert self._root is not None, f"{self.name} was not started"
        shown = replace(self._root, host=host)
        if kind in self._keys:
            shown = replace(shown, shared_access_key_name=kind, shared_access_key=self._keys[kind])
        return shown.to_text()

    async def ask(self, method: str, path: str, json: Any = None) -> Any:
        """One request to its HTTP side, about something in its namespace."""
        client = self._client()
        return await asyncio.to_thread(client.ask, method, client.in_namespace(path), json)

    async def is_well(self) -> bool:
        """Whether its store works; a disk that has failed once needs a new start."""
        try:
            await asyncio.to_thread(self._client().get, "/health")
        except TwinbusError:
            return False
        return True

    def _client(self) -> AdminClient:
        return AdminClient.from_options(
            f"http://{BROKER_HOST}:{self._admin_port}", self.connection_string(), self.name
        )
