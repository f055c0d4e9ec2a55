"""Unit tests start no process: tests/unit/conftest.py sees every way to do so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import asyncio, contextlib, multiprocessing, os, subprocess, sys

def test_that_runs_a_program():
    subprocess.run([sys.executable, "-c", ""])

def test_that_runs_a_program_in_a_shell():
    os.system("true")

def test_that_awaits_a_program():
    asyncio.run(asyncio.create_subprocess_exec(sys.executable, "-c", ""))

def test_that_forks():
    if os.fork() == 0:
        os._exit(0)

def test_that_spawns():
    multiprocessing.get_context("spawn").Process(target=print).start()

def test_that_hides_it():
    with contextlib.suppress(BaseException):
        subprocess.run([sys.executable, "-c", ""])

def test_that_stays_at_home():
    pass
"""


def test_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "tests" / "unit" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text(TESTS)

    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert "6 failed, 1 passed" in told.stdout, told.stdout + told.stderr
    assert told.stdout.count("A unit test must not start a process.") >= 6
