"""Counting operations (rule C1)."""

from __future__ import annotations

import pytest

from twinbus.core.costs import Amount, Operation, units_between, units_of
from twinbus.metering.tally import Meter


@pytest.mark.parametrize(
    ("sizes", "units"),
    [
        ([], 0),
        ([0], 1),
        ([1], 1),
        ([65_536], 1),
        ([65_537], 2),
        ([262_144], 4),
        ([100, 65_537, 200], 4),
    ],
)
def test_a_message_costs_a_unit_for_each_64_kb_begun(sizes: list[int], units: int) -> None:
    """C1: 64 KB steps."""
    assert units_of(sizes) == units


def test_units_of_neighbours_are_those_of_their_sizes() -> None:
    """C1: a run of messages is counted like its messages one by one."""
    starts = [40, 140, 140 + 65_537, 140 + 65_537 + 7]
    assert units_between(starts, 0, 3) == 4
    assert units_between(starts, 1, 1) == 2
    assert units_between(starts, 2, 1) == 1


def test_an_entity_has_one_tally_for_each_operation() -> None:
    """C1: per entity and operation."""
    meter = Meter()
    meter.tally("orders", Operation.SEND).took_in(1, 10, 10, 500)
    meter.tally("orders", Operation.SEND).took_in(1, 5, 6, 70_000)
    meter.tally("orders", Operation.RECEIVE).gave_out(3, 3, 90)
    meter.tally("bills", Operation.EMPTY_RECEIVE).happened()
    totals = {(tally.entity, tally.operation.value): tally.total() for tally in meter}
    assert totals == {
        ("orders", "send"): Amount(2, 15, 16, 70_500, 0),
        ("orders", "receive"): Amount(1, 3, 3, 0, 90),
        ("bills", "empty-receive"): Amount(1, 0, 1, 0, 0),
    }
