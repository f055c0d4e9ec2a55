"""What reading AMQP costs in memory, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.amqp.worst_inputs import (
    CROWDS,
    SECTIONS,
)

ROOT = Path(__file__).parents[3]


MEMORY_RATIO_MAX = 64


def test_nothing_takes_more_than_64_times_its_bytes() -> None:
    """M13: measured at the moment at which most is allocated, refused or not."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.amqp.worst_inputs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ratios: dict[str, float] = json.loads(told.stdout)

    assert len(ratios) == 2 * (len(CROWDS) + 1) + len(SECTIONS)
    assert {name: each for name, each in ratios.items() if each > MEMORY_RATIO_MAX} == {}
