"""Spark Connect in a process that lacks what it needs."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("grpc") is not None, reason="what Spark Connect needs is installed")
def test_what_spark_connect_needs_is_said(tmp_path: Path) -> None:
    """In a process of its own, because a session on this machine hides it; and in a file, because
    Spark takes anything else for a doctest and ends without a word."""
    program = tmp_path / "program.py"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"sc://127.0.0.1:{listening.getsockname()[1]}"
        program.write_text(
            f"from twinbus.cli.syphon.spark_session import _session\n_session({address!r})\n"
        )
        ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert "twinbus[connect]" in ended.stderr
