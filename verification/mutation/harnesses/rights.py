"""The matrix of rights (``tests/unit/broker/rights``), slice by slice, against its oracle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.unit.broker.rights.matrix import slices
from tests.unit.broker.rights.world import World


@dataclass(frozen=True, slots=True)
class Rights:
    """One broker in this process, asked by everybody for everything."""

    name: str = "rights"
    unit: str = "slices"
    rounds_max: int = 200
    has_processes: bool = False

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        with World() as world, _silence():
            for cells in slices(world):
                complaints = (cell.complaint() for cell in cells)
                yield [each for each in complaints if each is not None]


@contextmanager
def _silence() -> Iterator[None]:
    """Thousands of refusals are what it is about."""
    logger = logging.getLogger("twinbus.broker")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
