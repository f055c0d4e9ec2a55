"""Files of logs that are old: which go, and which never do."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from twinbus.errors import ConfigurationError
from twinbus.metering.json_lines import JsonLines
from twinbus.metering.log_retention import check_keep_days, prune

TODAY = date(2026, 11, 16)
RUN = "5f0c" * 4


def names_in(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


def test_files_before_the_first_day_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """M13: of all runs, also where a day had several files."""
    caplog.set_level(logging.INFO)
    old = {
        "operations-2026-11-08.jsonl",
        "operations-2026-11-08.12.jsonl",
        f"operations-{RUN}-2025-01-01.jsonl",
    }
    kept = {"operations-2026-11-09.jsonl", f"operations-{RUN}-2026-11-16.1.jsonl"}
    for name in old | kept:
        (tmp_path / name).write_text("{}\n")

    assert prune(tmp_path, "operations", 7, TODAY) == 3
    assert names_in(tmp_path) == kept
    assert "Deleted 3 files of the operations log" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "audit-2020-01-01.jsonl",
        "operations-2020-01-01.json",
        "operations-2020-01-01.jsonl.gz",
        "operations-2020-13-45.jsonl",
        "operations-2020-01-01.x.jsonl",
        "operations-mine-2020-01-01.jsonl",
        "my-operations-2020-01-01.jsonl",
        "operations-2020-01-01.jsonl\n",
        "operations-\u0662\u0660\u0662\u0660-01-01.jsonl",
    ],
)
def test_what_is_not_exactly_ours_stays(tmp_path: Path, name: str) -> None:
    """M13: a directory may hold other things, whoever put them there."""
    (tmp_path / name).write_text("{}\n")
    assert prune(tmp_path, "operations", 1, TODAY) == 0
    assert names_in(tmp_path) == {name}


def test_links_and_directories_are_left_alone(tmp_path: Path) -> None:
    """M13: a link would lead somewhere else."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = elsewhere / "precious.jsonl"
    precious.write_text("{}\n")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "operations-2020-01-01.jsonl").symlink_to(precious)
    (logs / "operations-2020-01-02.jsonl").mkdir()

    assert prune(logs, "operations", 1, TODAY) == 0
    assert len(names_in(logs)) == 2 and precious.exists()


def test_a_directory_that_is_gone_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert prune(tmp_path / "gone", "operations", 1, TODAY) == 0
    assert "could not be deleted" in caplog.text


def test_a_log_prunes_when_a_day_begins(tmp_path: Path) -> None:
    """M13: on the first line of the day, and not without ``keep_days``."""
    old = tmp_path / "operations-2020-01-01.jsonl"
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    old.write_text("{}\n")
    JsonLines(tmp_path, "operations").append(now_ms, [{"n": 1}])
    assert old.exists()

    JsonLines(tmp_path, f"operations-{RUN}", keep_days=30).append(now_ms, [{"n": 1}])
    assert not old.exists()
    assert len(names_in(tmp_path)) == 2


def test_a_clock_that_was_moved_ahead_makes_no_file_old(tmp_path: Path) -> None:
    """M13: tests move a broker's clock by years."""
    now = datetime.now(UTC)
    recent = tmp_path / f"operations-{now.date().isoformat()}.jsonl"
    recent.write_text("{}\n")
    ahead_ms = int((now.timestamp() + 900 * 86_400) * 1_000)

    JsonLines(tmp_path, "operations", keep_days=30).append(ahead_ms, [{"n": 1}])

    assert recent.exists()


@pytest.mark.parametrize("days", [0, -1, 36_501, 1.5, "7", True])
def test_days_are_a_whole_number(days: object) -> None:
    with pytest.raises(ConfigurationError, match="keep_days"):
        check_keep_days(days)  # type: ignore[arg-type]
