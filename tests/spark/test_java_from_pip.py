"""A program that finds no Java but the one from pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def test_a_session_runs_on_the_java_from_pip(tmp_path: Path) -> None:
    """From pip alone: what a machine without Java needs for the Spark parts."""
    for tool in ("sh", "bash", "env", "dirname", "ls", "sed"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    program = (
        "from twinbus.spark.runtime.session import local_session\n"
        "spark = local_session(fast_start=True, cores=1)\n"
        "print(spark.range(5).count(), spark._jvm.System.getProperty('java.vm.version'))\n"
    )
    without_java = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**without_java, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert told.stdout.startswith("5 21."), told.stderr
