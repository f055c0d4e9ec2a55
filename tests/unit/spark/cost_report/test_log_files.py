"""Logs in blocks: every line in one of them, and which have lines in common; no Spark in here."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from twinbus.spark.cost_report.log_files import (
    NO_DAY,
    blocks_of,
    day_number,
    find_logs,
    piece_of,
    sharing,
)

TEXT = b"".join(b"%d\n" % number * (number % 7) for number in range(60))


@pytest.mark.parametrize("size_max", [1, 2, 7, 50, len(TEXT), 10_000])
def test_every_line_is_in_one_piece(tmp_path: Path, size_max: int) -> None:
    """C3: wherever a file is cut, no line is lost or read twice."""
    contents = {
        "operations-2026-11-16.jsonl": TEXT, "operations-x-2026-11-16.jsonl": b"no end",
        "operations-2026-11-16.1.jsonl": b"", "operations-2026-11-17.jsonl": b"\n\n",
        "operations.jsonl": b"a\nb",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)

    blocks = blocks_of(find_logs([tmp_path]), size_max)
    (tmp_path / "operations-2026-11-16.jsonl").write_bytes(TEXT + b"written later\n")

    read = dict.fromkeys(contents, b"")
    for block in blocks:
        assert sum(piece.end - piece.begin for piece in block.pieces) <= size_max
        for piece in block.pieces:
            read[Path(piece.path).name] += piece_of(*piece)
    assert read == contents
    assert [block.block for block in blocks] == list(range(len(blocks)))
    days = {Path(p.path).name: block.file_day for block in blocks for p in block.pieces}
    assert days["operations-x-2026-11-16.jsonl"] == day_number("2026-11-16")
    assert days["operations-2026-11-17.jsonl"] == day_number("2026-11-17")
    assert days["operations.jsonl"] == NO_DAY


def span(block: int, first: int, last: int, run: str = "r") -> dict[str, Any]:
    return {"namespace": "n", "source": "s", "run": run, "block": block, "first": first,
            "last": last}  # fmt: skip


def random_spans(chance: Random) -> list[dict[str, Any]]:
    firsts = [chance.randrange(40) for _ in range(chance.randrange(9))]
    return [
        span(block, first, first + chance.randrange(12), chance.choice("ab"))
        for block, first in enumerate(firsts)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_have_a_number_in_common_are_found(seed: int) -> None:
    """C3: no copy stays unseen, and blocks that share nothing are left alone."""
    chance = Random(seed)
    for _ in range(50):
        check(random_spans(chance))
    check([span(0, 1, 100), span(1, 5, 6), span(2, 50, 60), span(3, 101, 101)])


def check(spans: list[dict[str, Any]]) -> None:
    by_block = {
        each["block"]: {(each["run"], n) for n in range(each["first"], each["last"] + 1)}
        for each in spans
    }

    assert sharing(spans) == {
        block
        for block, own in by_block.items()
        if any(other != block and own & theirs for other, theirs in by_block.items())
    }
