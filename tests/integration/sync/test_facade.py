"""The blocking names in a process that has just started."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_none_of_it() -> None:
    code = "import sys, twinbus; print([m for m in sys.modules if m.startswith('twinbus.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['twinbus.common', 'twinbus.common.lazy_exports']"
