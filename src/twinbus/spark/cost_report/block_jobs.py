"""The steps on Spark: from blocks of logs to notes about them; tasks write the sums.

    blocks --> counted_by_block                   each block by itself
    blocks --> lines_of --> counted_by_stretch    blocks that have lines in common

Rule 1: lines stay in the task that reads them. Only those of blocks with common lines are sent to
        other tasks, so that one task gets all copies of a line.
Rule 2: sums do not pass through the JVM: Arrow writes them in a tenth of the time. A task writes
        INTO/KIND/DAY/PART.parquet, where the part is a block or a stretch of its own: if it is
        tried again, it writes the same files again.
Rule 3: notes are the small amount of data that is needed before the sums can be used: totals of
        each day, numbers of each run, damaged lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.spark.cost_report.aggregation import (
    found_in_short,
    spans_of,
    summed_by_hour,
    summed_by_minute,
    without_copies,
)
from twinbus.spark.cost_report.line_parser import LINES, validate_lines
from twinbus.spark.cost_report.log_files import piece_of

if TYPE_CHECKING:
    from pyspark.sql.udtf import UserDefinedTableFunction

__all__ = ["DAMAGED", "HOURS", "MINUTES", "counted_by_block", "counted_by_stretch", "lines_of"]

MINUTES: Final = "minutes"
HOURS: Final = "hours"
DAMAGED: Final = "damaged"

_READ: Final = LINES.append(pa.field("file_day", pa.int32()))
_NOTES: Final = pa.schema(
    [
        *((name, pa.int32()) for name in ("block", "file_day", "minute", "last_minute")),
        *((name, pa.string()) for name in ("namespace", "source", "run", "operation", "reason")),
        *((name, pa.int64()) for name in ("messages", "units", "bytes_out", "records")),
        *((name, pa.int64()) for name in ("to_ms", "unwritten_units_max", "first", "last")),
    ]
)
_SPARK: Final = {pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string"}
_STRETCH: Final = ["namespace", "source", "run", "stretch"]
# Numbers of a run that are compared at the same time; a line has about 200 bytes.
STRETCH: Final = 1 << 17


def counted_by_block(blocks: DataFrame, into: Path) -> DataFrame:
    """Notes about every block."""
    return _table(_BlockCounter, _NOTES)(blocks.asTable(), F.lit(str(into)))


def lines_of(blocks: DataFrame) -> DataFrame:
    """The valid lines themselves."""
    return _table(_LineReader, _READ)(blocks.asTable())


def counted_by_stretch(lines: DataFrame, into: Path) -> DataFrame:
    """Notes about lines, all copies of a line together."""
    stretches = lines.withColumn("stretch", F.expr(f"number div {STRETCH}"))
    together = stretches.asTable().partitionBy(*_STRETCH)
    return _table(_LineCounter, _NOTES)(together, F.lit(str(into)))


def _table(handler: type, schema: pa.Schema) -> UserDefinedTableFunction:
    columns = ", ".join(f"{field.name} {_SPARK[field.type]}" for field in schema)
    return cast("UserDefinedTableFunction", F.arrow_udtf(handler, returnType=columns))


class _BlockCounter:
    def eval(self, blocks: pa.RecordBatch, into: pa.Array) -> Iterator[pa.Table]:
        for block in blocks.to_pylist():
            number, file_day = block["block"], block["file_day"]
            lines, damaged = _read(block)
            where = Path(into[0].as_py())
            if len(damaged):
                _write(damaged, where / DAMAGED, file_day, f"{number}")
                counts = damaged.group_by("reason").aggregate([("text", "count")])
                counts = counts.rename_columns(["reason", "records"])
                yield _notes(counts, block=number, file_day=file_day)
            if len(lines):
                once = without_copies(lines)
                counts = _counted(once, where, f"{number}")
                yield _notes(counts, block=number, file_day=file_day)
                yield _notes(spans_of(once), block=number)


class _LineReader:
    def eval(self, blocks: pa.RecordBatch) -> Iterator[pa.Table]:
        for block in blocks.to_pylist():
            yield _read(block)[0]


class _LineCounter:
    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._into = Path()

    def eval(self, lines: pa.RecordBatch, into: pa.Array) -> None:
        self._batches.append(lines)
        self._into = Path(into[0].as_py())

    def terminate(self) -> Iterator[pa.Table]:
        if self._batches:
            lines = pa.Table.from_batches(self._batches)
            [first] = (
                lines.select(["namespace", "source", "run", "stretch"]).slice(0, 1).to_pylist()
            )
            name = hashlib.sha256(repr(first).encode()).hexdigest()[:16]
            once = without_copies(lines.select(_READ.names).cast(_READ))
            yield _notes(_counted(once, self._into, f"stretch-{name}"))


def _read(block: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
    """The valid lines of a block, and the damaged ones."""
    valid, damaged = [], []
    for piece in block["pieces"]:
        found = validate_lines(piece_of(**piece))
        valid.append(found.valid)
        damaged += [(piece["path"], each.reason, each.text) for each in found.damaged]
    lines = pa.concat_tables(valid).combine_chunks()
    file_day = pa.repeat(pa.scalar(block["file_day"], pa.int32()), len(lines))
    columns = [pa.array(values, pa.string()) for values in zip(*damaged, strict=True)]
    return (
        lines.append_column(_READ.field("file_day"), file_day),
        pa.table(dict(zip(("file", "reason", "text"), columns, strict=False))),
    )


def _counted(lines: pa.Table, into: Path, part: str) -> pa.Table:
    """Write the sums of lines without copies; returns the notes about them."""
    sums = summed_by_minute(lines)
    for day in sums["day"].unique().to_pylist():
        of_day = sums.filter(pa.compute.equal(sums["day"], day))
        hours = summed_by_hour(of_day)
        _write(of_day.select(hours.column_names), into / MINUTES, day, part)
        _write(hours, into / HOURS, day, part)
    return found_in_short(sums)


def _write(table: pa.Table, where: Path, day: int, part: str) -> None:
    directory = where / str(day)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pa.parquet.write_table(table, directory / f"{part}.parquet")


def _notes(table: pa.Table, **constants: int) -> pa.Table:
    """All columns of notes: those of the table, constants, and null."""
    columns = []
    for field in _NOTES:
        if field.name in table.column_names:
            columns.append(table[field.name].cast(field.type))
        else:
            value = pa.scalar(constants.get(field.name), field.type)
            columns.append(pa.repeat(value, len(table)))
    return pa.table(columns, schema=_NOTES)
