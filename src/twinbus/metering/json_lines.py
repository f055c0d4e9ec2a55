"""An append-only log of JSON lines, with a new file for each day and at a maximum size.

    <directory>/<name>-2026-11-16.jsonl, then <name>-2026-11-16.1.jsonl, ...

Rule 1: a line is written as a whole and never changed; after a crash the last line may be
        incomplete, and no other.
Rule 2: a line that is incomplete after a crash is ended before the next one is written.
Rule 3: with ``keep_days``, files of earlier days are deleted when a new day begins
        (log_retention.py).
Rule 4: lines that the disk refuses are lost, and nothing else stops; this is logged at once and
        then once a minute. A slow disk delays only the caller of append().
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
LOG_PAUSE_S: Final = 60.0


class LogLimiter:
    """Whether an error that repeats is logged now: the first time, and then once a minute."""

    def __init__(self) -> None:
        self._next_s = -1.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LOG_PAUSE_S
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
        self._log_limiter = LogLimiter()

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
            if self._log_limiter.is_due():
                logger.error(
                    "Log %s could not be written: %s. %d lines are missing so far",
                    self._name,
                    error.strerror,
                    self._lost_count,
                )

    def _prune(self, at_ms: int) -> None:
        """Once a day; including files of other clients, which may not run any more."""
        if self._keep_days is None or self._pruned_day == (day := _day(at_ms)):
            return
        self._pruned_day = day
        kind = self._name.partition("-")[0]
        # A clock that tests have moved forward must not make files old.
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
        """The newest file of the day, or the next one when that is full."""
        number = 0
        path = self._directory / f"{self._name}-{day}.jsonl"
        while _size(path) >= self._file_bytes_max:
            number += 1
            path = self._directory / f"{self._name}-{day}.{number}.jsonl"
        return path


def check_directory(directory: Path, option: str) -> None:
    """Raises ConfigurationError if logs cannot be written there: later such errors stop nothing.
    ``option`` is the name of the option or argument that the user has set."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        refused = None if os.access(directory, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        refused = error.strerror
    if refused is not None:
        raise ConfigurationError(
            f"Invalid value for {option}: {str(directory)!r} cannot be written: {refused}",
            hint="Choose a directory with write permission",
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
    """A time as the logs have it: UTC with milliseconds, a form that Spark reads."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
