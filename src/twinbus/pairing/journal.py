"""The failover journal: every event of a pair as one line of JSON, appended to a file (P16).

    {"event": "diverted", "at": "2026-03-01T12:00:00+00:00", "path": "orders", "reason": ...}

Rule 1: lines are written and synced by a thread of its own: the event loop never waits for a
        disk, and a full or broken disk costs lines, never sends.
Rule 2: a line is written whole or, if the power fails, torn at the end of the file; the next
        writer begins a new line and the reader leaves torn ones out.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from twinbus.errors import ConfigurationError
from twinbus.pairing.occurrence import Occurrence

__all__ = ["Journal", "JournalEntry", "read_journal"]

_log = logging.getLogger("twinbus.journal")

# Events are rare; this many waiting means that the disk has stopped.
LINES_WAITING_MAX: Final = 10_000
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line."""

    name: str
    at: datetime
    facts: dict[str, Any]
    """All of the line, these two included."""


class Journal:
    """Appends occurrences to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines_dropped = 0
        """Lines that could not be written."""
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._file = _opened(path)
        self._thread = threading.Thread(target=self._write, name="twinbus-journal", daemon=True)
        self._thread.start()

    def append(self, occurrence: Occurrence) -> None:
        """Have it written soon."""
        line = json.dumps(occurrence.facts(), ensure_ascii=False, default=str) + "\n"
        try:
            self._lines.put_nowait(line.encode(errors="backslashreplace"))
        except queue.Full:
            self.lines_dropped += 1

    def close(self) -> None:
        """Write what waits; may be called twice, and blocks for a moment."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        is_over = False
        while not is_over:
            lines = [self._lines.get()]
            while not self._lines.empty():
                lines.append(self._lines.get_nowait())
            is_over = None in lines
            self._write_all([line for line in lines if line is not None])
        os.close(self._file)

    def _write_all(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            _write_fully(self._file, b"".join(lines))
            os.fsync(self._file)
        except OSError as error:
            self.lines_dropped += len(lines)
            _log.warning("%d lines of the journal %s were lost: %s", len(lines), self.path, error)


def read_journal(path: str | os.PathLike[str]) -> Iterator[JournalEntry]:
    """The entries of a journal, oldest first; torn or foreign lines are left out."""
    with open(path, "rb") as file:
        for line in file:
            entry = _entry(line)
            if entry is not None:
                yield entry


def _entry(line: bytes) -> JournalEntry | None:
    try:
        facts = json.loads(line)
        return JournalEntry(str(facts["event"]), datetime.fromisoformat(facts["at"]), facts)
    except (ValueError, KeyError, TypeError):
        return None


def _opened(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"the journal {str(path)!r} cannot be written: {error.strerror}",
            hint="Name a file in a directory that exists and is yours",
        ) from error
    return file


def _write_fully(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
