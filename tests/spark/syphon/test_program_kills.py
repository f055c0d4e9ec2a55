"""kill -9 of a whole ``twinbus syphon``, or of its JVM: who comes next brings the rest home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.spark.syphon.drains import CHUNK_COUNT, QUEUE_COUNT, RATE_PER_S, Drain
from tests.spark.syphon.victims import family, jvm_of

# Python processes notice within a second or so that their JVM is gone.
ORPHAN_S_MAX = 10.0


@pytest.mark.parametrize("which", ["program", "jvm"])
async def test_a_program_is_killed(drain: Drain, tmp_path: Path, which: str) -> None:
    """Y1: whoever of the two is killed, the others do not go on by themselves."""
    slow = ("--state", str(tmp_path / "state"), "--rate", str(RATE_PER_S))
    with program(drain, tmp_path, *slow) as process:
        drain.until_under_way()
        head = psutil.Process(process.pid)
        jvm, everybody = jvm_of(head), family(head)
        (head if which == "program" else jvm).kill()
        assert process.wait(ORPHAN_S_MAX) != 0
        _gone, alive = psutil.wait_procs(everybody, timeout=ORPHAN_S_MAX)
        assert not alive
        if which == "jvm":
            assert b"JVM of Spark has ended" in (tmp_path / "program.log").read_bytes()
    # Y5: any syphon goes on where the locks are; this one does not wait for another JVM.
    with program(drain, tmp_path, "--local"):
        drain.until_home()
    await drain.check()


@contextmanager
def program(drain: Drain, directory: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """``twinbus syphon`` in a process of its own."""
    command = [sys.executable, "-m", "twinbus", "syphon"]
    command += ["--primary-name", drain.scene.name]
    command += ["--backlog-queue-count", str(QUEUE_COUNT), "--chunk", str(CHUNK_COUNT)]
    command += ["--output", "json", *more]
    environment = {**os.environ, **drain.pair.environment}
    with (directory / "program.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    everybody: list[psutil.Process] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            everybody = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        process.wait(10)
        for each in everybody:
            with suppress(psutil.NoSuchProcess):
                each.kill()
