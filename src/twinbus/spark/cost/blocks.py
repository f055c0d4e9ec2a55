"""Logs in blocks: what one task reads at a time, and which blocks have a line in common.

    files of a bundle --> blocks_of --> blocks, each some pieces of files --> piece_of

Rule 1: a line belongs to the piece in which it begins. What is written after the files were found
        belongs to the next report.
Rule 2: a block has the files of one bundle, so all its lines are from files of one day.
Rule 3: blocks whose spans have a number in common are counted together; all others are counted
        apart, and nobody has to compare their lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from twinbus.spark.cost.days import NO_DAY, day_number
from twinbus.spark.cost.log_files import LogFile, bundled

__all__ = ["Block", "FileSlice", "blocks_of", "frame_of", "piece_of", "sharing", "size_of"]

# A task has some copies of it in memory, as text and as columns.
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
    """Large files are cut, small ones go together."""
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
    """The lines that begin between these two places."""
    with open(path, "rb") as file:
        first, last = _next_line(file, begin), _next_line(file, end)
        file.seek(first)
        return file.read(max(last - first, 0))


def _next_line(file: BinaryIO, place: int) -> int:
    """Where the first line begins that does so at this place or behind it."""
    if place == 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


def sharing(spans: Iterable[Mapping[str, Any]]) -> set[int]:
    """The blocks that have a number of a run in common with another one."""
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
