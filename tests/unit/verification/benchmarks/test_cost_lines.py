"""The logs that the cost report is measured with are the same everywhere, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verification.benchmarks import cost_lines
from verification.benchmarks.cost_lines import write_logs


def content(directory: Path) -> dict[str, bytes]:
    files = sorted(directory.rglob("*.jsonl"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_seed_gives_the_same_bytes_and_a_true_account_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, share in {"TORN_SHARE": 0.01, "AGAIN_SHARE": 0.1, "LATE_SHARE": 0.01}.items():
        monkeypatch.setattr(cost_lines, name, share)

    first = write_logs(tmp_path / "first", 5_000)
    second = write_logs(tmp_path / "second", 5_000)

    found = content(tmp_path / "first")
    assert first == second
    assert found == content(tmp_path / "second")
    lines, torn, seen = 0, 0, {}
    for data in found.values():
        for line in data.splitlines():
            lines += 1
            try:
                record = json.loads(line)
            except ValueError:
                torn += 1
                continue
            seen[record["run"], record["number"]] = record["units"]
    assert torn and first.duplicates and first.late
    assert (first.lines, first.damaged) == (lines, torn)
    assert (first.records, first.units) == (len(seen), sum(seen.values()))
    assert first.duplicates == lines - torn - len(seen)
