"""The shim: a process sees the disk and the clock that it is meant to see, and no other does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verification.fault_campaign.machine import Board, Disk, built_shim, unmount_all

LOOK = """
import json, os, time, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
told = []
for _ in range(3):
    began = time.monotonic()
    try:
        os.fdatasync(file)
        told.append([True, time.monotonic() - began])
    except OSError as error:
        told.append([error.errno, time.monotonic() - began])
print(json.dumps({"wall": time.time(), "monotonic": time.monotonic(), "syncs": told}))
"""


@pytest.fixture
def board(tmp_path: Path) -> Board:
    shim = built_shim(tmp_path)
    if shim is None:
        pytest.skip("needs a C compiler")
    return Board(tmp_path / "board", shim)


def seen(board: Board, tmp_path: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "file")],
        env={**os.environ, **board.environment},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_board_that_says_nothing_changes_nothing(board: Board, tmp_path: Path) -> None:
    told = seen(board, tmp_path)
    assert abs(told["wall"] - time.time()) < 60
    assert [each for each, _took_s in told["syncs"]] == [True, True, True]


def test_the_wall_clock_jumps_and_the_monotonic_clock_does_not(
    board: Board, tmp_path: Path
) -> None:
    board.set("clock_offset_ns", -7_200 * 10**9)
    told = seen(board, tmp_path)
    assert abs(told["wall"] - (time.time() - 7_200)) < 60
    assert abs(told["monotonic"] - time.monotonic()) < 60


def test_syncs_are_slow_and_the_second_one_fails(board: Board, tmp_path: Path) -> None:
    board.set("sync_delay_us", 50_000)
    board.set("sync_fails_in", 2)
    told = seen(board, tmp_path)
    assert [each for each, _took_s in told["syncs"]] == [True, 5, True]
    assert all(took_s >= 0.05 for _each, took_s in told["syncs"])
    assert board.get("sync_failed") == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    made.mount()
    if not made.is_own:
        pytest.skip("needs the right to mount")
    yield made
    made.unmount()


def test_a_disk_is_filled_to_the_last_byte_and_freed_again(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.path / "more").write_bytes(bytes(10_000))
    disk.free()
    (disk.path / "more").write_bytes(bytes(10_000))


def test_what_a_killed_run_left_mounted_is_unmounted(disk: Disk, tmp_path: Path) -> None:
    """Else its directory could not be emptied for the next one."""
    (tmp_path / "controller.jsonl").touch()
    assert disk.path.is_mount()
    unmount_all(tmp_path)
    assert not disk.path.is_mount()
