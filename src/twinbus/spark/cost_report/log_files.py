"""The operations logs below some directories: their files, days, fingerprints and blocks.

    DIR/NAMESPACE/operations-2026-11-16.jsonl, operations-2026-11-16.1.jsonl       of a broker
    DIR/NAMESPACE/operations-<run>-2026-11-16.jsonl                                of a client

    files of a bundle --> blocks_of --> blocks, each some slices of files --> piece_of

A fingerprint shows whether a file has changed. A block is what one task reads at a time. Days and
minutes are counted since 1970, in UTC.

Rule 1: files whose names have the same day are one *bundle*: they grow together, and are read
        together. Files without a day in their name are a bundle of their own.
Rule 2: a line belongs to the slice in which it begins. Lines that are written after the files were
        found belong to the next report.
Rule 3: a block has the files of one bundle, so all its lines are from files of one day.
Rule 4: blocks whose spans have a number in common are counted together; all others are counted
        separately, without comparing their lines.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from twinbus.errors import ConfigurationError

__all__ = [
    "MINUTES_AN_HOUR",
    "MINUTES_A_DAY",
    "MINUTE_MS",
    "NO_DAY",
    "Block",
    "FileSlice",
    "Fingerprint",
    "LogFile",
    "blocks_of",
    "bundled",
    "day_named",
    "day_number",
    "find_logs",
    "frame_of",
    "moment_of_minute",
    "moment_of_ms",
    "piece_of",
    "sharing",
    "size_of",
]

PATTERN: Final = "operations*.jsonl"
HEAD_BYTES: Final = 4_096
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class Fingerprint(NamedTuple):
    """Values that change when a file changes."""

    size: int
    mtime_ns: int
    head: str
    """A hash of its beginning."""


class LogFile(NamedTuple):
    path: str
    bundle: str
    """The day in its name, or an empty string."""
    fingerprint: Fingerprint


def find_logs(directories: Sequence[Path]) -> list[LogFile]:
    """All operations logs, each once, also if it is below several of the directories."""
    found: dict[str, LogFile] = {}
    for directory in directories:
        if not directory.is_dir():
            raise ConfigurationError(
                f"{str(directory)!r} is not a directory",
                hint="Name the directory that `twinbus serve --metering` writes to",
            )
        for path in _logs_below(directory):
            found[str(path)] = LogFile(str(path), _bundle(path.name), _fingerprint(path))
    if not found:
        raise ConfigurationError(
            f"No operations log found below {' or '.join(repr(str(d)) for d in directories)}",
            hint="Name the directory that --metering of the broker names, or DATA/metering",
        )
    return [found[path] for path in sorted(found)]


def _logs_below(directory: Path) -> list[Path]:
    try:
        return [path.resolve() for path in directory.rglob(PATTERN) if path.is_file()]
    except OSError as error:
        raise ConfigurationError(
            f"{str(directory)!r} cannot be read: {error.strerror}",
            hint="Run the command as a user with read access to the logs",
        ) from error


def _bundle(name: str) -> str:
    """The day at the end of the name, before the first dot."""
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
            f"The log {str(path)!r} cannot be read: {error.strerror}",
            hint="Run the command as a user with read access to the logs",
        ) from error
    return Fingerprint(found.st_size, found.st_mtime_ns, head)


def bundled(files: Iterable[LogFile]) -> Mapping[str, tuple[LogFile, ...]]:
    """Files by bundle."""
    bundles: dict[str, list[LogFile]] = {}
    for file in files:
        bundles.setdefault(file.bundle, []).append(file)
    return {bundle: tuple(members) for bundle, members in bundles.items()}


MINUTE_MS: Final = 60_000
MINUTES_AN_HOUR: Final = 60
MINUTES_A_DAY: Final = 24 * MINUTES_AN_HOUR
NO_DAY: Final = -1
"""The day of a file without a day in its name."""
_EPOCH: Final = date(1970, 1, 1)


def day_named(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).isoformat()


def day_number(name: str) -> int:
    return (date.fromisoformat(name) - _EPOCH).days


def moment_of_minute(number: int) -> datetime:
    return datetime.fromtimestamp(number * 60, UTC)


def moment_of_ms(number: int) -> datetime:
    return datetime.fromtimestamp(number / 1000, UTC)


# A task has a few copies of a block in memory, as text and as columns.
BLOCK_BYTES: Final = 16 << 20
# A task costs some hundredths of a second, and writes a file for each block and day.
BLOCKS_A_TASK: Final = 4
TASKS_MIN: Final = 8
BLOCKS: Final = (
    "block int, file_day int, pieces array<struct<path: string, begin: bigint, end: bigint>>"
)


class FileSlice(NamedTuple):
    path: str
    begin: int
    end: int


class Block(NamedTuple):
    block: int
    file_day: int
    pieces: list[FileSlice]


def blocks_of(files: Iterable[LogFile], size_max: int = BLOCK_BYTES) -> list[Block]:
    """Large files are split, small ones are combined."""
    blocks: list[Block] = []
    for bundle, members in bundled(files).items():
        room = 0
        for path, begin, end in (p for file in members for p in _pieces(file, size_max)):
            if end - begin > room:
                blocks.append(Block(len(blocks), day_number(bundle) if bundle else NO_DAY, []))
                room = size_max
            blocks[-1].pieces.append(FileSlice(path, begin, end))
            room -= end - begin
    return blocks


def _pieces(file: LogFile, size_max: int) -> list[FileSlice]:
    size = file.fingerprint.size
    cuts = [*range(0, size, size_max), size]
    return [FileSlice(file.path, *each) for each in pairwise(cuts)]


def frame_of(spark: SparkSession, blocks: Sequence[Block]) -> DataFrame:
    """Blocks as rows, a few for each task."""
    tasks = max(min(len(blocks), TASKS_MIN), len(blocks) // BLOCKS_A_TASK, 1)
    return spark.createDataFrame(blocks, BLOCKS).repartition(tasks)


def size_of(blocks: Iterable[Block]) -> int:
    """In bytes."""
    return sum(piece.end - piece.begin for block in blocks for piece in block.pieces)


def piece_of(path: str, begin: int, end: int) -> bytes:
    """The lines that begin between these two offsets."""
    with open(path, "rb") as file:
        first, last = _next_line(file, begin), _next_line(file, end)
        file.seek(first)
        return file.read(max(last - first, 0))


def _next_line(file: BinaryIO, place: int) -> int:
    """Where the first line begins at or after this offset."""
    if place == 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


def sharing(spans: Iterable[Mapping[str, Any]]) -> set[int]:
    """The blocks that have a number of a run in common with another block."""
    by_run: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for span in spans:
        key = span["namespace"], span["source"], span["run"]
        by_run.setdefault(key, []).append((span["first"], span["last"], span["block"]))
    found: set[int] = set()
    for several in by_run.values():
        several.sort()
        _, furthest, holder = several[0]
        for first, last, block in several[1:]:
            if first <= furthest:
                found |= {block, holder}
            if last > furthest:
                furthest, holder = last, block
    return found
