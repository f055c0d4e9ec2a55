"""The operations logs below some directories, and how to see that one has changed.

    DIR/NAMESPACE/operations-2026-11-16.jsonl, operations-2026-11-16.1.jsonl       of a broker
    DIR/NAMESPACE/operations-<run>-2026-11-16.jsonl                                of a client

Rule 1: files whose names have the same day are one *bundle*: they grow together, and are read
        together. Files without a day in their name are a bundle of their own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

from twinbus.errors import ConfigurationError

__all__ = ["Fingerprint", "LogFile", "bundled", "find_logs"]

PATTERN: Final = "operations*.jsonl"
HEAD_BYTES: Final = 4_096
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class Fingerprint(NamedTuple):
    """What is different when a file is."""

    size: int
    mtime_ns: int
    head: str
    """A hash of its beginning."""


class LogFile(NamedTuple):
    path: str
    bundle: str
    """The day in its name, or nothing."""
    fingerprint: Fingerprint


def find_logs(directories: Sequence[Path]) -> list[LogFile]:
    """All operations logs, each once, however many of the directories it is below."""
    found: dict[str, LogFile] = {}
    for directory in directories:
        if not directory.is_dir():
            raise ConfigurationError(
                f"{str(directory)!r} is no directory",
                hint="Give the directory that `twinbus serve --metering` writes to",
            )
        for path in _logs_below(directory):
            found[str(path)] = LogFile(str(path), _bundle(path.name), _fingerprint(path))
    if not found:
        raise ConfigurationError(
            f"there is no operations log below {' or '.join(repr(str(d)) for d in directories)}",
            hint="A broker writes it to DATA/metering, or where --metering says",
        )
    return [found[path] for path in sorted(found)]


def _logs_below(directory: Path) -> list[Path]:
    try:
        return [path.resolve() for path in directory.rglob(PATTERN) if path.is_file()]
    except OSError as error:
        raise ConfigurationError(
            f"{str(directory)!r} cannot be read: {error.strerror}",
            hint="Run this as somebody who may read the logs",
        ) from error


def _bundle(name: str) -> str:
    """The end of what stands before the first dot."""
    end = name.partition(".")[0][-10:]
    try:
        return date.fromisoformat(end).isoformat() if _DAY.fullmatch(end) else ""
    except ValueError:
        return ""


def _fingerprint(path: Path) -> Fingerprint:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            head = hashlib.sha256(file.read(min(HEAD_BYTES, found.st_size))).hexdigest()[:16]
    except OSError as error:
        raise ConfigurationError(
            f"the log {str(path)!r} cannot be read: {error.strerror}",
            hint="Run this as somebody who may read the logs",
        ) from error
    return Fingerprint(found.st_size, found.st_mtime_ns, head)


def bundled(files: Iterable[LogFile]) -> Mapping[str, tuple[LogFile, ...]]:
    """Files by bundle."""
    bundles: dict[str, list[LogFile]] = {}
    for file in files:
        bundles.setdefault(file.bundle, []).append(file)
    return {bundle: tuple(members) for bundle, members in bundles.items()}
