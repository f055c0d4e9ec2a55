"""Sequences of administrative calls with trouble (``verification/catalogue_simulation``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verification.catalogue_simulation.checks import Broken
from verification.catalogue_simulation.many import quiet, run_one


@dataclass(frozen=True, slots=True)
class Administrative:
    """Sequences, one after the other."""

    name: str = "catalogue simulation"
    unit: str = "sequences"
    rounds_max: int = 500
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for seed in range(self.rounds_max):
            yield self._told(seed, directory)

    def _told(self, seed: int, directory: Path) -> list[str]:
        try:
            with quiet():
                run_one(seed, directory)
        except Broken as broken:
            return [str(broken)]
        except Exception as error:  # A bug may show itself in any way; the check is not named then.
            return [f"{type(error).__name__}: {error}"]
        return []
