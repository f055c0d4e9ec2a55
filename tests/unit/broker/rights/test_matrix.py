"""The matrix of rights: every token at every door, over every protocol, against the oracle.

It is asked in parts, each of a broker of its own: together 42,577 cells.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import pytest

from tests.unit.broker.rights.cells import Cell
from tests.unit.broker.rights.matrix import PARTS, first_slices, token_slices
from tests.unit.broker.rights.world import World

pytestmark = pytest.mark.slow

# Seven parts of the tokens and one of sessions and forwards: more than 10,000 in all.
CELLS_PER_PART_MIN = 2_500


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.CRITICAL, "twinbus.broker")
    with World() as running:
        yield running


def counted(slices: Iterable[list[Cell]]) -> Counter[tuple[str, bool]]:
    """How many cells were asked and let in; no opinion differs from the oracle's."""
    counts: Counter[tuple[str, bool]] = Counter()
    complaints = []
    for cell in chain.from_iterable(slices):
        counts[cell.protocol, cell.was_let_in] += 1
        complaint = cell.complaint()
        if complaint is not None:
            complaints.append(complaint)
    assert complaints == [], f"{len(complaints)} of {counts.total()}"
    assert counts.total() >= CELLS_PER_PART_MIN
    return counts


@pytest.mark.parametrize("part", range(PARTS))
def test_nobody_has_a_right_too_many_or_too_few(world: World, part: int) -> None:
    """M6, M14: over 10,000 cells of claim, scope, path, operation and protocol; no deviation."""
    counts = counted(token_slices(world, part))
    # Both answers were given. One token alone opens the JSON routes.
    for protocol in ("AMQP", "ATOM"):
        assert counts[protocol, True] >= 5, counts
        assert counts[protocol, False] >= 1_000, counts
    assert counts["JSON", False] >= 500, counts


def test_forwards_and_sessions_take_the_right_to_them(world: World) -> None:
    """M14: with every kind of proof for the target, and across connections."""
    counts = counted(first_slices(world))
    assert counts["ATOM", True] >= 300 and counts["AMQP", True] >= 5, counts
