"""An append-only file of JSON lines that is continued in another one by day and by size.

    <directory>/<name>-2026-11-16.jsonl, then <name>-2026-11-16.1.jsonl, ...

Rule 1: a line is written whole and never changed; a reader may see a torn last line after a
        crash, and no other.
Rule 2: a line that was torn by a crash is ended before the next one is written.
Rule 3: with ``keep_days``, files of earlier days are deleted when a new day begins
        (log_retention.py).
Rule 4: a disk that refuses lines loses them and stops nothing; it is said in the log, at first and
        then once a minute. A slow one holds up whoever appends, and nobody else.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from twinbus.errors import ConfigurationError
from twinbus.metering.log_retention import prune

logger = logging.getLogger("twinbus.metering")

FILE_BYTES_MAX = 64 << 20
SAY_PAUSE_S: Final = 60.0


class Seldom:
    """Whether trouble that comes again and again is worth a line in the log now: at first, and
    then once a minute."""

    def __init__(self) -> None:
        self._next_s = -1.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + SAY_PAUSE_S
        return True


class JsonLines:
    """One log; all calls come from one thread."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        keep_days: int | None = None,
    ) -> None:
        self._directory = directory
        self._name = name
        self._keep_days = keep_days
        self._pruned_day = ""
        self._file_bytes_max = file_bytes_max
        self._lost_count = 0
        self._saying = Seldom()

    def append(self, at_ms: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Add one line for each record to the file of that day."""
        lines = [json.dumps(record, separators=(",", ":")) for record in records]
        if not lines:
            return
        self._prune(at_ms)
        try:
            self._write(_day(at_ms), "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            self._lost_count += len(lines)
            if self._saying.is_due():
                logger.error(
                    "the log %s could not be written (%s): %d lines are missing so far",
                    self._name,
                    error.strerror,
                    self._lost_count,
                )

    def _prune(self, at_ms: int) -> None:
        """Once a day; runs of other clients, which nobody else would look after, included."""
        if self._keep_days is None or self._pruned_day == (day := _day(at_ms)):
            return
        self._pruned_day = day
        kind = self._name.partition("-")[0]
        # A clock that tests have moved ahead makes no file old.
        today = min(date.fromisoformat(day), datetime.now(UTC).date())
        if self._directory.is_dir():
            prune(self._directory, kind, self._keep_days, today)

    def _write(self, day: str, data: bytes) -> None:
        # Only its owner may read it: an audit log names messages.
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path_for(day)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            if _is_torn(file):
                data = b"\n" + data
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)

    def _path_for(self, day: str) -> Path:
        """The newest file of the day, or the one behind it when that is full."""
        number = 0
        path = self._directory / f"{self._name}-{day}.jsonl"
        while _size(path) >= self._file_bytes_max:
            number += 1
            path = self._directory / f"{self._name}-{day}.{number}.jsonl"
        return path


def check_directory(directory: Path, said: str) -> None:
    """Trouble with a log stops nothing later on, so a wrong option has to be told now. ``said``
    is what the user calls it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        refused = None if os.access(directory, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        refused = error.strerror
    if refused is not None:
        raise ConfigurationError(
            f"{said} {str(directory)!r} cannot be used: {refused}",
            hint="Choose a directory in which you may write",
        )


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _is_torn(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def timestamp(at_ms: int) -> str:
    """A moment as the logs write it: UTC with milliseconds, a form that Spark reads."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
