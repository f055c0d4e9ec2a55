"""A data directory that another process uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.broker.storage.data_directory import DataDirectory
from twinbus.errors import StoreLocked

HOLD_THE_LOCK = """
import sys
from twinbus.broker.storage.data_directory import DataDirectory
directory = DataDirectory(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_in_use_by_another_process_is_refused_by_name(tmp_path: Path) -> None:
    # Given another process that has the directory
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"

        # When we want it too, then we are told who has it
        with pytest.raises(StoreLocked, match=f"process {holder.pid}") as caught:
            DataDirectory(tmp_path / "data")
        assert caught.value.pid == holder.pid

        # And when that process is killed, the directory is free
        holder.kill()
        holder.wait()
    DataDirectory(tmp_path / "data").close()
