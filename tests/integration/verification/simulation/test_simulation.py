"""The simulation of pairs in processes with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


DIGESTS = """
from verification.simulation.run import Simulation
print([Simulation(seed).run().digest for seed in range(60)])
"""


def test_a_seed_replays_in_every_process() -> None:
    """The order of sets and dictionaries must not matter."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(printed) == 1
