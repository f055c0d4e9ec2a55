"""Stories of one queue in processes with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


TRACES = """
import logging
from tests.unit.broker.engine.test_simulation import small_limits, told

logging.disable(logging.CRITICAL)
with small_limits():
    print([told(seed).trace for seed in range(10)])
"""


def test_a_story_does_not_depend_on_the_order_of_hashes() -> None:
    """A failure on one machine can be replayed on another."""
    traces = set()
    for hash_seed in ("1", "2"):
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", TRACES]
        traces.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    assert len(traces) == 1
