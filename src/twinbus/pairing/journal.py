"""The failover journal: every event of a pair as one line of JSON, appended to a file (P16).

    {"event": "diverted", "at": "2026-03-01T12:00:00+00:00", "path": "orders", "reason": ...}

Rule 1: lines are written and synced by a thread of its own: the event loop never waits for a
        disk, and a full or broken disk costs lines, never sends.
Rule 2: a line is written whole or, if the power fails, torn at the end of the file; the next
        writer begins a new line and the reader leaves torn ones out.
Rule 3: with ``keep_days``, older lines are dropped when the file is opened and when a day begins:
        what is kept is written to a new file, which then takes the place of the old one. Several
        senders may write one journal: each holds a shared lock, and lines are dropped only by
        one that finds itself alone.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from twinbus.errors import ConfigurationError
from twinbus.pairing.occurrence import EventRecord

__all__ = ["Journal", "JournalEntry", "read_journal"]

if sys.platform != "win32":
    import fcntl

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

    def __init__(self, path: Path, *, keep_days: int | None = None) -> None:
        self.path = path
        self._keep_days = keep_days
        self._pruned_day = ""
        self.lines_dropped = 0
        """Lines that could not be written."""
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._file = _opened(path)
        self._thread = threading.Thread(target=self._write, name="twinbus-journal", daemon=True)
        self._thread.start()

    def append(self, occurrence: EventRecord) -> None:
        """Have it written soon."""
        line = json.dumps(occurrence.to_dict(), ensure_ascii=False, default=str) + "\n"
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
            self._prune()
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

    def _prune(self) -> None:
        """Drop old lines, once a day and if nobody else has the file open (rule 3)."""
        now = datetime.now(UTC)
        day = now.date().isoformat()
        if self._keep_days is None or day == self._pruned_day:
            return
        self._pruned_day = day
        if not _is_locked(self._file, alone=True):
            return
        try:
            self._drop_before(now - timedelta(days=self._keep_days))
        except OSError as error:
            _log.warning("old lines of the journal %s could not be dropped: %s", self.path, error)
        finally:
            _is_locked(self._file)

    def _drop_before(self, first_kept: datetime) -> None:
        if self.path.is_symlink():
            return  # What it leads to is somebody else's to replace.
        with open(self.path, "rb") as file:
            lines = file.readlines()
        kept = _kept(lines, first_kept)
        dropped_count = len(lines) - len(kept)
        if not dropped_count:
            return
        mode = os.fstat(self._file).st_mode & 0o777
        handle, draft = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(kept)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        except BaseException:
            os.unlink(draft)
            raise
        old, self._file = self._file, _opened(self.path)
        os.close(old)
        _log.info("%d lines of the journal %s were dropped: too old", dropped_count, self.path)


def read_journal(path: str | os.PathLike[str]) -> Iterator[JournalEntry]:
    """The entries of a journal, oldest first; torn or foreign lines are left out."""
    with open(path, "rb") as file:
        for line in file:
            entry = _entry(line)
            if entry is not None:
                yield entry


def _kept(lines: list[bytes], first_kept: datetime) -> list[bytes]:
    """Without the old ones; the last line of each entity stays, as it may still be diverted."""
    old: dict[int, str] = {}
    for index, line in enumerate(lines):
        entry = _entry(line)
        if entry is not None and entry.at.tzinfo is not None and entry.at < first_kept:
            old[index] = str(entry.facts.get("path", ""))
    last_of = {path: index for index, path in old.items() if path}
    dropped = old.keys() - last_of.values()
    return [line for index, line in enumerate(lines) if index not in dropped]


def _entry(line: bytes) -> JournalEntry | None:
    try:
        facts = json.loads(line)
        return JournalEntry(str(facts["event"]), datetime.fromisoformat(facts["at"]), facts)
    except (ValueError, KeyError, TypeError):
        return None


def _opened(path: Path) -> int:
    try:
        file = _opened_shared(path)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"the journal {str(path)!r} cannot be written: {error.strerror}",
            hint="Name a file in a directory that exists and is yours",
        ) from error
    return file


def _opened_shared(path: Path) -> int:
    """The file that has the path, held together with all others who write it (rule 3)."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not _is_locked(file):
            return file  # A disk that knows no locks: nobody drops lines there.
        try:
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # Another one has taken its place meanwhile.


def _is_locked(file: int, *, alone: bool = False) -> bool:
    """Hold the file with others, or alone: False if somebody else has it, or nothing is locked."""
    if sys.platform == "win32":
        return False  # Nobody drops lines there.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except OSError:
        return False
    return True


def _write_fully(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
