"""Counting operations (rule C1)."""

from __future__ import annotations

import pytest

from twinbus.cost.units import Amount, Operation, units_between, units_of
from twinbus.metering.operations_log import DELETED_COUNT_MAX, Meter, next_bound


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
    meter.counter("orders", Operation.SEND).add_incoming(1, 10, 10, 500)
    meter.counter("orders", Operation.SEND).add_incoming(1, 5, 6, 70_000)
    meter.counter("orders", Operation.RECEIVE).add_outgoing(3, 3, 90)
    meter.counter("bills", Operation.EMPTY_RECEIVE).add_request()
    totals = {(tally.entity, tally.operation.value): tally.total() for tally in meter}
    assert totals == {
        ("orders", "send"): Amount(2, 15, 16, 70_500, 0),
        ("orders", "receive"): Amount(1, 3, 3, 0, 90),
        ("bills", "empty-receive"): Amount(1, 0, 1, 0, 0),
    }


def _counted(meter: Meter, *entities: str) -> None:
    for entity in entities:
        meter.counter(entity, Operation.SEND).add_incoming(1, 2, 3, 4)
        meter.counter(entity, Operation.EMPTY_RECEIVE).add_request()


def test_names_of_deleted_entities_are_not_kept_for_ever() -> None:
    """M13: who creates and deletes entities does not fill the memory; the sums stay right."""
    meter = Meter()
    for number in range(9 * DELETED_COUNT_MAX):
        _counted(meter, f"s{number}", f"s{number}/$deadletterqueue")
        meter.note_deleted(f"s{number}", lambda _name: False)
    sums = [
        sum(tally.units for tally in meter if tally.operation is operation)
        for operation in (Operation.SEND, Operation.EMPTY_RECEIVE)
    ]
    assert sums == [2 * 3 * 9 * DELETED_COUNT_MAX, 2 * 9 * DELETED_COUNT_MAX]
    assert len(list(meter)) <= 4 * (2 * DELETED_COUNT_MAX + 1)


def test_a_deleted_entity_keeps_its_name_until_its_lines_are_written() -> None:
    """C1: what it has cost stands under its name."""
    meter = Meter()
    meter.has_lines = True
    for number in range(3 * DELETED_COUNT_MAX):
        _counted(meter, f"s{number}")
        meter.note_deleted(f"s{number}", lambda _name: False)
    assert "" not in {tally.entity for tally in meter}

    for tally in meter:
        tally.written = tally.total()
    meter.note_written(0)
    meter.note_deleted("another", lambda _name: False)
    entities = {tally.entity for tally in meter}
    assert entities.isdisjoint({"s0", "s1"}) and {"", "s2"} <= entities
    assert meter.unwritten_units == 0


def test_an_entity_that_was_made_again_keeps_its_name() -> None:
    """C1: its links count where they did before."""
    meter = Meter()
    _counted(meter, "orders", "bills")
    for name in ("orders", "bills"):
        meter.note_deleted(name, lambda _name: False)
    meter.note_written(0)
    meter.note_deleted("another", lambda name: name == "orders")
    assert {tally.entity for tally in meter} == {"orders", ""}


def test_only_tallies_that_have_changed_are_looked_at() -> None:
    """C1: a thousand entities at rest cost the next lines nothing."""
    meter = Meter()
    _counted(meter, "orders", "bills")
    assert len(meter.changed()) == 4
    assert meter.changed() == [] and not meter.has_changed
    meter.counter("bills", Operation.SEND).add_incoming(1, 1, 1, 1)
    assert [(tally.entity, tally.operation) for tally in meter.changed()] == [
        ("bills", Operation.SEND)
    ]


def test_what_a_deleted_entity_was_counted_is_told_once() -> None:
    """C1: under no name, if its lines were not written."""
    meter = Meter()
    _counted(meter, "orders")
    meter.note_deleted("orders", lambda _name: False)
    meter.note_written(0)
    meter.note_deleted("another", lambda _name: False)
    assert {tally.entity for tally in meter.changed()} == {""}


@pytest.mark.parametrize(
    ("bound", "units", "is_early", "following"),
    [
        (1_000, 0, False, 1_000),
        (1_000, 333, False, 1_000),
        (1_000, 334, False, 2_000),
        (1_000, 1_100, False, 4_000),
        (4_000, 700, False, 4_000),
        (4_000, 600, False, 2_000),
        (4_000, 0, False, 1_000),
        (1_000, 334, True, 2_000),
        (1_000, 4_500, True, 13_500),
        (60_000, 20_000, True, 100_000),
        (100_000, 90_000, True, 100_000),
    ],
)
def test_the_bound_grows_at_once_and_falls_to_half_or_less(
    bound: int, units: int, is_early: bool, following: int
) -> None:
    """C1: what a kill may cost follows from what was written last."""
    assert next_bound(bound, units, is_early=is_early) == following
