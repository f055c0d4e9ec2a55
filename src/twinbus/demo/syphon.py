"""The syphon of the demo: ``twinbus syphon``, a process of its own that runs on Spark.

Rule 1: it is started early, because Spark takes seconds, and paused as soon as it is up: a syphon
        that knocks at a primary that is away does so with longer and longer pauses.
Rule 2: keys travel in the environment, never on a command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from twinbus.demo.plan import BACKLOG_QUEUES, PRIMARY, SECONDARY
from twinbus.errors import TwinbusError
from twinbus.spark.syphon.state import StateDir

__all__ = ["SyphonProcess"]

LOOK_S: Final = 0.1
END_S_MAX: Final = 60.0
LOG_CHARACTERS_SHOWN: Final = 2_000


class SyphonProcess:
    """Starts, pauses, resumes and ends one syphon."""

    def __init__(self, directory: Path, addresses: Mapping[str, str]) -> None:
        self._state_dir = directory / "syphon"
        self.receipts = directory / "receipts"
        self._log_path = directory / "syphon.log"
        self._addresses = addresses
        self._process: asyncio.subprocess.Process | None = None
        self._pausing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it; it is paused once it is up."""
        command = [sys.executable, "-m", "twinbus", "syphon", "--output", "json"]
        command += ["--primary-name", PRIMARY, "--backlog-queue-count", str(BACKLOG_QUEUES)]
        command += ["--state", str(self._state_dir), "--receipts", str(self.receipts)]
        environment = {
            "SERVICEBUS_CONNECTION_STRING": self._addresses[PRIMARY],
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": self._addresses[SECONDARY],
        }
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
            )
        self._pausing = asyncio.create_task(self._pause_once_up())

    async def _pause_once_up(self) -> None:
        while self.doing in ("", "starting"):
            self.check()
            await asyncio.sleep(LOOK_S)
        self._set_paused(True)
        while self.doing != "paused":
            self.check()
            await asyncio.sleep(LOOK_S)

    @property
    def is_ready(self) -> bool:
        """Whether it is up, and paused; raises what kept it from that."""
        if self._pausing is None or not self._pausing.done():
            return False
        self._pausing.result()
        return True

    def resume(self) -> None:
        """Bring home what waits."""
        self._set_paused(False)

    @property
    def doing(self) -> str:
        """In its own word; empty before it has said one."""
        status = StateDir(self._state_dir).status()
        return "" if status is None else status.doing

    @property
    def moved(self) -> int:
        """Messages that it has brought home, as it told last."""
        status = StateDir(self._state_dir).status()
        return 0 if status is None else status.counts.get("moved", 0)

    async def end(self) -> dict[str, Any]:
        """Let it finish what it is doing; its summary."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        out, _ = await asyncio.wait_for(process.communicate(), END_S_MAX)
        if process.returncode != 0:
            raise self._trouble(f"ended with {process.returncode}")
        summary: dict[str, Any] = json.loads(out)
        return summary

    async def close(self) -> None:
        """End it, whatever state it is in."""
        if self._pausing is not None:
            self._pausing.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def check(self) -> None:
        """Raise when it is not running any more."""
        if self._running().returncode is not None:
            raise self._trouble("has ended")

    def _set_paused(self, is_paused: bool) -> None:
        state = StateDir(self._state_dir)
        state.set_control(replace(state.control(), is_paused=is_paused))

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "the syphon was not started"
        return self._process

    def _trouble(self, what: str) -> TwinbusError:
        said = self._log_path.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:].strip()
        return TwinbusError(f"the syphon {what}: {said or 'it said nothing'}")
