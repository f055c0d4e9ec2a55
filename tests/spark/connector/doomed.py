"""Running the doomed application, until nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

ROOT = Path(__file__).resolve().parents[3]
# A JVM starts in 10 seconds, and on a busy machine in a minute and a half.
APP_S_MAX = 180.0
LEFTOVERS_S_MAX = 20.0


def die(moment: Literal["read", "written"], secret: Path, queue: str, directory: Path) -> None:
    log_file = directory / "application.log"
    command = [sys.executable, "-m", "tests.spark.connector.doomed_app", moment]
    # Planted bugs come first on the path.
    path = [os.environ.get("PYTHONPATH", ""), str(ROOT / "src"), str(ROOT)]
    with log_file.open("wb") as log:
        app = subprocess.Popen(
            [*command, str(secret), queue, str(directory)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        code = app.wait(APP_S_MAX)
        told = log_file.read_text(errors="replace")[-2_000:]
        assert code == -signal.SIGKILL, f"the application ended by itself ({code}): {told}"
        # Workers that outlive their JVM for a moment hold locks.
        deadline_s = time.monotonic() + LEFTOVERS_S_MAX
        while running := _members_of(app.pid):
            assert time.monotonic() < deadline_s, running
            time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(app.pid, signal.SIGKILL)
        app.wait(20)


def _members_of(session_id: int) -> list[str]:
    """Living processes that an application has left behind."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
