"""The loop of the blocking names in a process that forks."""

from __future__ import annotations

import subprocess
import sys
import time


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    code = """
import os, sys
from twinbus.sync.blocking_portal import PORTAL
async def one(): return 1
assert PORTAL.call(one()) == 1
child = os.fork()
if child == 0:
    os._exit(0 if PORTAL.call(one()) == 1 else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], timeout=30, check=False)
    assert done.returncode == 0
    assert time.monotonic() - began_s < 30
