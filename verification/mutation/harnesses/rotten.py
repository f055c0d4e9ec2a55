"""Bits of a killed store flip: it is refused or answers all as before
(``verification/crash_consistency/rot.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from verification.crash_consistency.rot import Flipper, image

SEED = 1


@dataclass(frozen=True, slots=True)
class FlippedBits:
    """Places all over the files, in any order."""

    name: str = "flipped bits"
    unit: str = "flipped bits"
    rounds_max: int = 2_000
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        flipper = Flipper(SEED, directory)
        for name, at in Random(SEED).sample(image(SEED).places(), self.rounds_max):
            flipper.flip(name, at)
            complaints = [complaint.text for complaint in flipper.tally.complaints]
            flipper.tally.complaints.clear()
            yield complaints
