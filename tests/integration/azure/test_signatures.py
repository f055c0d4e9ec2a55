"""The paired clients in a process that has no SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["twinbus.azure", "twinbus.azure.aio"])
def test_without_the_sdk_an_import_says_what_to_install(module: str) -> None:
    code = f"import sys; sys.modules['azure'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("Run `pip install 'twinbus[azure]'`.")
