"""The demo is stopped in the middle: one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

STARTED = "The application sends"
END_S_MAX = 60.0


def descendants(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=END_S_MAX)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_no_process_and_no_file_outlives_a_demo_that_is_stopped(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C reaches every process of the terminal; another signal the demo alone."""
    with subprocess.Popen(
        # As a script starts it in the background: Ctrl-C is ignored until somebody asks for it.
        ["sh", "-c", f"trap '' INT; exec {shlex.quote(sys.executable)} -m twinbus demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        for line in demo.stdout:
            if STARTED in line:
                break
        # By now the brokers send and receive, and Spark is starting.
        time.sleep(3.0)
        children = descendants(psutil.Process(demo.pid))
        assert len(children) >= 3
        if number is signal.SIGINT:
            os.killpg(demo.pid, number)
        else:
            demo.send_signal(number)
        demo.stdout.read()
        said = demo.stderr.read()
        assert demo.wait(END_S_MAX) == 1
    assert said == "twinbus: The demo was stopped before its end.\n"
    assert alive(children) == []
    assert [each.name for each in tmp_path.glob("twinbus-demo-*")] == []
