"""Append-only logs of JSON lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from twinbus.metering.json_lines import JsonLines, timestamp

NOON_MS = 1_794_830_400_000  # 2026-11-16T12:00:00Z
DAY_MS = 86_400_000


def records_in(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_of_one_day_stand_in_one_file(tmp_path: Path) -> None:
    log = JsonLines(tmp_path, "operations")
    log.append(NOON_MS, [{"n": 1}, {"n": 2}])
    log.append(NOON_MS + 1, [{"n": 3}])
    log.append(NOON_MS + DAY_MS, [{"n": 4}])
    assert records_in(tmp_path / "operations-2026-11-16.jsonl") == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert records_in(tmp_path / "operations-2026-11-17.jsonl") == [{"n": 4}]


def test_a_full_file_is_continued_in_the_next(tmp_path: Path) -> None:
    log = JsonLines(tmp_path, "operations", file_bytes_max=20)
    for number in range(6):
        log.append(NOON_MS, [{"number": number}])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [
        "operations-2026-11-16.1.jsonl",
        "operations-2026-11-16.2.jsonl",
        "operations-2026-11-16.jsonl",
    ]
    assert records_in(tmp_path / "operations-2026-11-16.1.jsonl") == [{"number": 2}, {"number": 3}]


def test_a_line_torn_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "operations-2026-11-16.jsonl"
    path.write_text('{"n":1}\n{"n":')
    JsonLines(tmp_path, "operations").append(NOON_MS, [{"n": 3}])
    assert path.read_text() == '{"n":1}\n{"n":\n{"n":3}\n'


def test_only_the_owner_may_read_a_log(tmp_path: Path) -> None:
    JsonLines(tmp_path / "logs", "audit").append(NOON_MS, [{"n": 1}])
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs" / "audit-2026-11-16.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_refuses_lines_is_said_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: at first, and then once a minute."""
    now_s = 5.0
    monkeypatch.setattr("twinbus.metering.json_lines.time.monotonic", lambda: now_s)
    (tmp_path / "logs").write_text("a file stands in the way")
    log = JsonLines(tmp_path / "logs", "operations")
    with caplog.at_level(logging.ERROR):
        log.append(NOON_MS, [{"n": 1}])
        now_s = 64.9
        for _ in range(3):
            log.append(NOON_MS, [{"n": 2}, {"n": 3}])
        assert caplog.text.count("missing so far") == 1
        assert "1 lines are missing so far" in caplog.text
        now_s = 65.0
        log.append(NOON_MS, [{"n": 4}])
    assert caplog.text.count("missing so far") == 2
    assert "8 lines are missing so far" in caplog.text


def test_a_timestamp_is_utc_with_milliseconds() -> None:
    assert timestamp(NOON_MS + 7) == "2026-11-16T12:00:00.007Z"
