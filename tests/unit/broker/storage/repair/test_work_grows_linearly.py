"""M15: four times the damage is about four times the work, counted and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.broker.storage.repair.test_catalogue_repair import dead_row, queue_row, rows_of
from twinbus.broker.namespace.catalogue_repair import check_catalogue
from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import EntityRow, QueueCounters
from twinbus.broker.storage.repair.catalogue_rows import CatalogueRows
from twinbus.broker.storage.repair.counter_check import CounterCheck
from twinbus.broker.storage.repair.findings import LostRange
from twinbus.broker.storage.repair.inspection import Inspection
from twinbus.broker.storage.repair.message_references import MessageCheck
from twinbus.broker.storage.repair.new_store_file import Draft
from twinbus.broker.storage.repair.page_file import Flaw
from twinbus.broker.storage.repair.salvage import Found

SMALL, LARGE = 100, 400
# Linear work grows by 4, and by a little more where something is sorted; quadratic by 16.
GROWTH_MAX = 6.5


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, generators and properties among them."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    was = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(was)
    return count


def steps_of(draft: Draft, work: Callable[[], object]) -> int:
    """How many steps SQLite takes."""
    count = 0

    def note() -> bool:
        nonlocal count
        count += 1
        return False

    draft.connection.set_progress_handler(note, 1)
    work()
    draft.connection.set_progress_handler(None)
    return count


# -- entities ---------------------------------------------------------------------------------


def plain_queues(count: int) -> CatalogueRows:
    rows = [(queue_row(2 * n, f"q{n}"), dead_row(2 * n + 1, f"q{n}")) for n in range(1, count)]
    return rows_of(*(row for pair in rows for row in pair))


def queues_that_forward(count: int) -> CatalogueRows:
    rows: list[EntityRow] = [queue_row(1, "hub"), dead_row(2, "hub")]
    for n in range(2, count):
        rows += [queue_row(2 * n, f"q{n}", forward_to="hub"), dead_row(2 * n + 1, f"q{n}")]
    return rows_of(*rows)


def dead_letters_elsewhere(count: int) -> CatalogueRows:
    """None has the number behind that of its queue."""
    rows = [(queue_row(n, f"q{n}"), dead_row(10_000 - n, f"q{n}")) for n in range(1, count)]
    return rows_of(*(row for pair in rows for row in pair))


def dead_letters_alone(count: int) -> CatalogueRows:
    rows = [dead_row(2 * n, f"q{n}") for n in range(1, count)]
    return rows_of(*rows, **{f"q{2 * n}": 1 for n in range(1, count)})


@pytest.mark.parametrize(
    "made", [plain_queues, queues_that_forward, dead_letters_elsewhere, dead_letters_alone]
)
def test_entities(made: Callable[[int], CatalogueRows]) -> None:
    """M15: a namespace with thousands of entities is checked in a moment."""
    counts = []
    for size in (SMALL, LARGE):
        rows = made(size)
        counts.append(calls_of(lambda rows=rows: check_catalogue(rows)))  # type: ignore[misc]
    assert counts[1] < GROWTH_MAX * counts[0], counts


# -- messages ---------------------------------------------------------------------------------


def inspection_of(path: Path, flaws: list[Flaw]) -> Inspection:
    return Inspection(
        Draft(path, has_bodies=False), Found({"chunk": flaws}, True, True, False, [], set())
    )


def put_chunks(draft: Draft, ids: list[int], count: int = 1) -> None:
    draft.put(
        "chunk",
        [(each, count, 5, row_checksum.of_blob(each, count, 5, b"x"), b"x") for each in ids],
    )


def put_counters(draft: Draft, *each: QueueCounters) -> None:
    draft.put("counters", [(*one.values(), row_checksum.of_values(*one.values())) for one in each])


def lost_between(path: Path, size: int) -> Inspection:
    """Every second chunk of a queue is lost, and says its number."""
    queue = 1 << 40
    kept = [queue | 2 * n + 1 for n in range(size)]
    inspection = inspection_of(path, [Flaw(9, "lost", each, each + 1, 1) for each in kept])
    put_chunks(inspection.draft, kept)
    put_counters(inspection.draft, QueueCounters(1, 2 * size + 1, 2 * size, 0, 0, 0))
    return inspection


def lost_of_many_queues(path: Path, size: int) -> Inspection:
    """Each queue has a chunk, and lost one that says nothing."""
    kept = [queue_id << 40 | 1 for queue_id in range(1, size + 1)]
    inspection = inspection_of(path, [Flaw(9, "lost", each) for each in kept])
    put_chunks(inspection.draft, kept)
    counters = [QueueCounters(each >> 40, 3, 2, 0, 0, 0) for each in kept]
    put_counters(inspection.draft, *counters)
    return inspection


def overlapping(path: Path, size: int) -> Inspection:
    """Every second chunk stands inside of the one before."""
    inspection = inspection_of(path, [])
    queue = 1 << 40
    put_chunks(inspection.draft, [queue | 3 * n + 1 for n in range(2 * size)], 4)
    return inspection


@pytest.mark.parametrize("made", [lost_between, lost_of_many_queues, overlapping])
def test_messages(made: Callable[[Path, int], Inspection], tmp_path: Path) -> None:
    """M15: a store that lost many thousands of rows is repaired in minutes."""
    calls, steps = [], []
    for size in (SMALL, LARGE):
        inspection = made(tmp_path / f"{size}.db", size)
        check = MessageCheck(inspection)
        with inspection.draft as draft:
            steps.append(
                steps_of(draft, lambda c=check: calls.append(calls_of(c.run)))  # type: ignore[misc]
            )
        assert len(inspection.lost) == (0 if made is overlapping else size)
    assert calls[1] < GROWTH_MAX * calls[0], calls
    assert steps[1] < GROWTH_MAX * steps[0], steps


class Looked(list[LostRange]):
    """A list whose every look at an element is a call."""

    def __iter__(self) -> Iterator[LostRange]:
        yield from list(super().__iter__())


def test_counters_of_many_queues_with_many_losses(tmp_path: Path) -> None:
    """M15: what a queue lost is not looked for among what all others lost."""
    calls = []
    for size in (SMALL, LARGE):
        inspection = inspection_of(tmp_path / f"{size}.db", [])
        for queue_id in range(1, size + 1):
            inspection.lose(queue_id << 40 | 1, 2)
            values = (queue_id, f"q{queue_id}", "queue", "{}")
            inspection.draft.put("entity", [(*values, row_checksum.of_values(*values))])
        inspection.lost = Looked(inspection.lost)
        with inspection.draft:
            check = CounterCheck(inspection, set(), set())
            calls.append(calls_of(lambda c=check: c.run(set())))  # type: ignore[misc]
        assert check.totals.lost == 2 * size
    assert calls[1] < GROWTH_MAX * calls[0], calls
