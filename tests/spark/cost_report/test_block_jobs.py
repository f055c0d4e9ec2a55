"""What a task does with blocks and lines: literal rows in, notes and sums out; no JVM in here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tests.support.cost_logs import line, write
from twinbus.spark.cost_report import block_jobs
from twinbus.spark.cost_report.log_files import Block, FileSlice, day_number

DAY = day_number("2026-11-16")
LATE = "2026-11-17T00:00:00"


def block_of(path: Path, number: int = 0) -> pa.RecordBatch:
    block = Block(number, DAY, [FileSlice(str(path), 0, path.stat().st_size)])
    pieces = [piece._asdict() for piece in block.pieces]
    return pa.RecordBatch.from_pylist([{**block._asdict(), "pieces": pieces}])


def written(into: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of a kind, by day and part."""
    return {
        f"{path.parent.name}/{path.stem}": pyarrow.parquet.read_table(path).to_pylist()
        for path in sorted((into / kind).rglob("*.parquet"))
    }


def test_a_block_is_counted_by_itself(tmp_path: Path) -> None:
    """C3: sums for each day by minute and by hour, damaged lines beside them with their reason, and
    notes of both."""
    log = write(
        tmp_path / "operations-2026-11-16.jsonl",
        [line(1), line(2), line(2), line(3, LATE), '{"torn', line(5, operation="teleport")],
    )
    into = tmp_path / "sums"

    tables = block_jobs._BlockCounter().eval(block_of(log, 7), pa.array([str(into)]))
    notes = [note for table in tables for note in table.to_pylist()]

    days = [f"{DAY}/7", f"{DAY + 1}/7"]
    minutes, hours = written(into, "minutes"), written(into, "hours")
    assert list(minutes) == list(hours) == days
    for sums in (minutes, hours):
        assert [(row["units"], row["records"], row["duplicates"], row["late"])
                for day in days for row in sums[day]] == [(6, 2, 1, 0), (3, 1, 0, 1)]  # fmt: skip
    assert {(row["reason"], row["text"][:6], row["file"])
            for row in written(into, "damaged")[f"{DAY}/7"]} == {
        ("not a line of JSON with a version", '{"torn', str(log)),
        ("unknown operation", '{"vers', str(log)),
    }  # fmt: skip

    assert {(note["block"], note["file_day"]) for note in notes if note["first"] is None} == {
        (7, DAY)
    }
    damaged = {note["reason"]: note["records"] for note in notes if note["reason"]}
    assert damaged == {"not a line of JSON with a version": 1, "unknown operation": 1}
    assert [note["units"] for note in notes if note["operation"]] == [6, 3]
    spans = [(note["first"], note["last"]) for note in notes if note["first"] is not None]
    assert spans == [(1, 3)]


def test_copies_in_several_blocks_are_counted_together(tmp_path: Path) -> None:
    """C3: the lines of blocks that share some are compared, and one of each is counted."""
    logs = [
        write(tmp_path / "operations-2026-11-16.jsonl", [line(1), line(2)]),
        write(tmp_path / "operations-copy-2026-11-16.jsonl", [line(2), line(3), "{"]),
    ]
    into = tmp_path / "sums"
    counter = block_jobs._LineCounter()

    for at, log in enumerate(logs):
        for lines in block_jobs._LineReader().eval(block_of(log, at)):
            [batch] = lines.append_column("stretch", pa.array([0] * len(lines))).to_batches()
            counter.eval(batch, pa.array([str(into)]))
    [notes] = [table.to_pylist() for table in counter.terminate()]

    [sums] = written(into, "minutes").values()
    assert [(row["units"], row["records"], row["duplicates"]) for row in sums] == [(9, 3, 1)]
    assert [(note["run"], note["operation"], note["units"]) for note in notes] == [
        ("00000000000000aa", "send", 9)
    ]
    assert list(block_jobs._LineCounter().terminate()) == []
