"""Files for spark-submit: each is a program of its own, started as a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus import jobs

FILES = sorted(path for path in Path(jobs.__file__).parent.glob("*.py") if path.stem != "__init__")


def test_no_job_stands_before_a_module_of_pythons_own() -> None:
    """Y2: the directory of a submitted file comes first where Python looks for modules."""
    assert not {path.stem for path in FILES} & sys.stdlib_module_names
    assert [path.name for path in FILES] == ["syphon.py"], "write down here what is new"


@pytest.mark.parametrize("job", FILES, ids=lambda path: path.stem)
def test_a_job_is_the_command_of_its_name(job: Path) -> None:
    """Y2: with the same options, and one sentence for what is wrong with them."""
    started = [sys.executable, str(job), "--poll", "never"]
    done = subprocess.run(started, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    shown = subprocess.run([*started[:2], "--help"], capture_output=True, text=True, check=True)
    assert f"twinbus {job.stem}" in shown.stdout
