"""The whole matrix, in slices that take about a second each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from tests.unit.broker.rights.cells import (
    Cell,
    amqp_cells,
    atom_cells,
    forward_cells,
    json_cells,
    session_cells,
)
from tests.unit.broker.rights.credentials import credentials
from tests.unit.broker.rights.world import World

__all__ = ["PARTS", "first_slices", "slices", "token_slices"]

FORWARDS_PER_SLICE = 250
PARTS = 7
"""An odd number, so that each part has tokens of every rule; tests run beside each other."""


def slices(world: World) -> Iterator[list[Cell]]:
    """Sessions, forwards, and then every door for one token after the other."""
    yield from first_slices(world)
    for number in range(PARTS):
        yield from token_slices(world, number)


def first_slices(world: World) -> Iterator[list[Cell]]:
    """Sessions and forwards."""
    yield list(session_cells(world))
    forwards = forward_cells(world)
    while part := list(islice(forwards, FORWARDS_PER_SLICE)):
        yield part


def token_slices(world: World, part: int) -> Iterator[list[Cell]]:
    """Every door, for every so-many-th token."""
    for token in islice(chain([None], credentials()), part, None, PARTS):
        yield [
            *amqp_cells(world, token),
            *atom_cells(world, token),
            *json_cells(world, token),
        ]
