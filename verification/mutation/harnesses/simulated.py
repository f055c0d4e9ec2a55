"""The simulation of pairs: bad days of the core, each from a seed
(``verification/simulation/``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verification.simulation.application import Parts
from verification.simulation.run import run_seeds

PARTS: Parts = Parts()
"""What the core is made of; a planted bug is one part that is replaced."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Schedules, one after the other."""

    name: str = "simulation"
    unit: str = "schedules"
    rounds_max: int = 500
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for seed in range(self.rounds_max):
            yield [str(broken) for broken in run_seeds([seed], PARTS).broken]
