"""A Python that has everything but twinbus, as one outside of the application's environment."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

_CUSTOMISATION = """\
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "twinbus":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def python_without_twinbus(directory: Path) -> str:
    """The path of its command."""
    modules = directory / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(_CUSTOMISATION)
    command = directory / "python-without-twinbus"
    path = f"{shlex.quote(str(modules))}{os.pathsep}$PYTHONPATH"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    command.chmod(0o700)
    return str(command)
