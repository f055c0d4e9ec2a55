"""A program that the demo starts: its log, its last words, and its end.

Rule 1: keys travel in the environment, never on a command line.
Rule 2: only processes that were started here are signalled, by their own id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from twinbus.errors import TwinbusError

__all__ = ["DemoProcess"]

LOG_CHARACTERS_SHOWN: Final = 2_000


class DemoProcess:
    """One process, named in a sentence: ``the syphon``."""

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
        """Raise when it is not running any more."""
        if self._running().returncode is not None:
            raise self._trouble()

    async def answer(
        self, question: bytes = b"", *, ends_by: signal.Signals | None = None, within_s: float
    ) -> bytes:
        """What it says on its standard output until it ends, after a question or a signal."""
        process = self._running()
        if ends_by is not None and process.returncode is None:
            process.send_signal(ends_by)
        try:
            said, _ = await asyncio.wait_for(process.communicate(question), within_s)
        except TimeoutError:
            said_last = self._last_words()
            raise TwinbusError(
                f"{self.name} did not end within {within_s:.0f} s: {said_last}"
            ) from None
        if process.returncode:
            raise self._trouble()
        return said

    async def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _trouble(self) -> TwinbusError:
        code = self._running().returncode
        return TwinbusError(f"{self.name} has ended with {code}: {self._last_words()}")

    def _last_words(self) -> str:
        said = self._log_path.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:].strip()
        return said or "it said nothing"
