"""The processes of the demo: two brokers (``twinbus serve``) and the syphon (``twinbus syphon``).

Rule 1: keys are passed in the environment, never on a command line.
Rule 2: only processes that were started here are signalled, by their own id.
Rule 3: the syphon starts early, because Spark takes seconds, and is paused as soon as it runs:
        otherwise it would try the unreachable primary at longer and longer intervals.
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

from twinbus.demo.output_files import Files
from twinbus.demo.scenario import (
    BACKLOG_QUEUES,
    DESTINATIONS,
    PRIMARY,
    QUEUES,
    SECONDARY,
    SUBSCRIPTIONS,
    TOPIC,
)
from twinbus.errors import TwinbusError
from twinbus.spark.syphon.state_directory import StateDir, Status
from twinbus.testing.broker_process import BrokerProcessHandle

__all__ = ["DemoBrokers", "DemoProcess", "SyphonProcess"]

LOG_CHARACTERS_SHOWN: Final = 2_000


class DemoProcess:
    """One process; ``name`` is its name in error messages."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run ``python -m`` with these arguments."""
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
            )

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if self._running().returncode is not None:
            raise self._exit_error()

    async def answer(
        self, request: bytes = b"", *, ends_by: signal.Signals | None = None, within_s: float
    ) -> bytes:
        """Its standard output until it ends, after a request on standard input or a signal."""
        process = self._running()
        if ends_by is not None and process.returncode is None:
            process.send_signal(ends_by)
        try:
            output, _ = await asyncio.wait_for(process.communicate(request), within_s)
        except TimeoutError:
            raise TwinbusError(
                f"{self.name}: did not end within {within_s:.0f} s: {self._log_end()}"
            ) from None
        if process.returncode:
            raise self._exit_error()
        return output

    async def close(self) -> None:
        """Kill the process if it is running."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _exit_error(self) -> TwinbusError:
        code = self._running().returncode
        return TwinbusError(f"{self.name}: ended with exit code {code}: {self._log_end()}")

    def _log_end(self) -> str:
        log = self._log_path.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:].strip()
        return log or "the log is empty"


# The demo writes a few megabytes: it must also run on a nearly full disk.
DISK_FREE_MB: Final = 16


class DemoBrokers:
    """The brokers of the primary and the secondary."""

    def __init__(self, files: Files) -> None:
        self._files = files
        entities = [f"--topic={TOPIC}"]
        entities += [f"--subscription={TOPIC}/{name}" for name in SUBSCRIPTIONS]
        self.primary = self._broker(PRIMARY, QUEUES, entities)
        self.secondary = self._broker(SECONDARY, (), [])

    def _broker(self, name: str, queues: tuple[str, ...], more: list[str]) -> BrokerProcessHandle:
        arguments = ["--audit", "--metering", str(self._files.logs)]
        arguments += ["--disk-free-mb", str(DISK_FREE_MB)]
        return BrokerProcessHandle(
            self._files / name, namespace=name, queues=queues, arguments=(*more, *arguments)
        )

    @property
    def both(self) -> tuple[BrokerProcessHandle, BrokerProcessHandle]:
        return self.primary, self.secondary

    @property
    def addresses(self) -> dict[str, str]:
        """Connection strings, by namespace."""
        return {broker.namespace: broker.connection_string for broker in self.both}

    async def start(self) -> None:
        """Start both brokers at once."""
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in self.both))

    async def stop(self) -> None:
        """Stop both brokers, so that their logs are complete."""
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in self.both))

    def close(self) -> None:
        for broker in self.both:
            broker.close()

    async def counters(self) -> dict[str, Any]:
        """The operations that each broker has counted since its start."""
        return {
            broker.namespace: await asyncio.to_thread(
                broker.admin, "GET", f"/namespaces/{broker.namespace}/operations"
            )
            for broker in self.both
        }

    async def waiting(self) -> int:
        """Messages on the primary that are not received yet."""
        return await asyncio.to_thread(self._waiting)

    def _waiting(self) -> int:
        count = 0
        for place in (place for places in DESTINATIONS.values() for place in places):
            kind = "topics" if "/" in place else "queues"
            facts = self.primary.admin("GET", f"/namespaces/{PRIMARY}/{kind}/{place}")
            count += facts["active_message_count"]
        return count


POLL_S: Final = 0.1
END_S_MAX: Final = 60.0


class SyphonProcess:
    """Starts, pauses, resumes and ends one syphon."""

    def __init__(self, files: Files) -> None:
        self._state = StateDir(files / "syphon")
        self._receipts = files.receipts
        self._child = DemoProcess("Syphon", files / "syphon.log")
        self._pausing: asyncio.Task[None] | None = None

    async def start(self, addresses: Mapping[str, str]) -> None:
        """Start the syphon; it is paused once it runs."""
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
        self._pausing = asyncio.create_task(self._pause_once_running())

    async def _pause_once_running(self) -> None:
        while self.status.doing == "starting":
            await asyncio.sleep(POLL_S)
        self._set_paused(True)
        while self.status.doing != "paused":
            await asyncio.sleep(POLL_S)

    @property
    def is_ready(self) -> bool:
        """Whether it runs, and is paused."""
        return self._pausing is not None and self._pausing.done()

    def resume(self) -> None:
        """Move the backlog to the primary."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        self._state.set_control(replace(self._state.control(), is_paused=is_paused))

    @property
    def status(self) -> Status:
        """Its last status."""
        return self._state.status() or Status()

    @property
    def moved(self) -> int:
        """Messages that it has moved, by its last status."""
        return self.status.counts.get("moved", 0)

    def check(self) -> None:
        """Raise an error if the process has ended."""
        self._child.check()

    async def end(self) -> int:
        """Stop the syphon; returns the number of messages that it has moved."""
        output = await self._child.answer(ends_by=signal.SIGTERM, within_s=END_S_MAX)
        return int(json.loads(output)["moved"])

    async def close(self) -> None:
        """Kill the process if it is running."""
        if self._pausing is not None:
            self._pausing.cancel()
        await self._child.close()
