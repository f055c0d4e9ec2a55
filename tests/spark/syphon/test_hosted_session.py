"""Credentials of a hosted syphon whose process ends or is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.spark.syphon.hosted_session import (
    private_directory,
)

HOSTING = """
import os, sys, tempfile, threading, time
from twinbus.spark.syphon.hosted_session import private_directory

tempfile.tempdir = sys.argv[1]
is_made = threading.Event()

def host():
    with private_directory() as path:
        (path / "primary").write_text("secret")
        print(path, flush=True)
        is_made.set()
        time.sleep(900)

threading.Thread(target=host, daemon=True).start()
is_made.wait()
"""


def left_by(end: str, root: Path) -> Path:
    """The directory of an application that ended in its own way."""
    program = [sys.executable, "-c", HOSTING + end, str(root)]
    ended = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=30)
    return Path(ended.stdout.strip())


def test_credentials_of_a_killed_process_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = left_by("os.kill(os.getpid(), 9)", tmp_path)
    assert (left / "primary").exists()
    with private_directory() as mine:
        assert not left.exists() and mine.stat().st_mode & 0o777 == 0o700
        with private_directory():
            assert mine.exists(), "its maker lives"
    assert list(tmp_path.iterdir()) == []


def test_credentials_are_removed_when_the_interpreter_ends_first(tmp_path: Path) -> None:
    assert not left_by("sys.exit(0)", tmp_path).exists()
