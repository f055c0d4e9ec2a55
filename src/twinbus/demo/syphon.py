"""The syphon of the demo: ``twinbus syphon``, a process of its own that runs on Spark.

Rule 1: it is started early, because Spark takes seconds, and paused as soon as it is up: a syphon
        that knocks at a primary that is away does so with longer and longer pauses.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from twinbus.demo.child import DemoProcess
from twinbus.demo.files import Files
from twinbus.demo.plan import BACKLOG_QUEUES, PRIMARY, SECONDARY
from twinbus.spark.syphon.state import StateDir, Status

__all__ = ["SyphonProcess"]

LOOK_S: Final = 0.1
END_S_MAX: Final = 60.0


class SyphonProcess:
    """Starts, pauses, resumes and ends one syphon."""

    def __init__(self, files: Files) -> None:
        self._state = StateDir(files / "syphon")
        self._receipts = files.receipts
        self._child = DemoProcess("the syphon", files / "syphon.log")
        self._pausing: asyncio.Task[None] | None = None

    async def start(self, addresses: Mapping[str, str]) -> None:
        """Start it; it is paused once it is up."""
        await self._child.start(
            [
                *("twinbus", "syphon", "--output", "json"),
                *("--primary-name", PRIMARY, "--backlog-queue-count", str(BACKLOG_QUEUES)),
                *("--state", str(self._state.path), "--receipts", str(self._receipts)),
            ],
            {
                "SERVICEBUS_CONNECTION_STRING": addresses[PRIMARY],
                "SERVICEBUS_SECONDARY_CONNECTION_STRING": addresses[SECONDARY],
            },
        )
        self._pausing = asyncio.create_task(self._pause_once_up())

    async def _pause_once_up(self) -> None:
        while self.status.doing == "starting":
            await asyncio.sleep(LOOK_S)
        self._set_paused(True)
        while self.status.doing != "paused":
            await asyncio.sleep(LOOK_S)

    @property
    def is_ready(self) -> bool:
        """Whether it is up, and paused."""
        return self._pausing is not None and self._pausing.done()

    def resume(self) -> None:
        """Bring home what waits."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        self._state.set_control(replace(self._state.control(), is_paused=is_paused))

    @property
    def status(self) -> Status:
        """What it told last."""
        return self._state.status() or Status()

    @property
    def moved(self) -> int:
        """Messages that it has brought home, as it told last."""
        return self.status.counts.get("moved", 0)

    def check(self) -> None:
        """Raise when it is not running any more."""
        self._child.check()

    async def end(self) -> int:
        """Let it finish what it is doing; the messages that it has brought home."""
        said = await self._child.answer(ends_by=signal.SIGTERM, within_s=END_S_MAX)
        return int(json.loads(said)["moved"])

    async def close(self) -> None:
        """End it, whatever state it is in."""
        if self._pausing is not None:
            self._pausing.cancel()
        await self._child.close()
