"""The ledger of deliveries of a session: ranges of ids in, the locks behind them out."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.broker.engine.consumers import Consumer, UnsettledQuota
from twinbus.broker.server.outgoing_link import LEDGER_SWEEP, UnsettledDeliveries

UINT_MAX = 2**32 - 1


def run(unsettled: int = 1) -> Any:
    return SimpleNamespace(unsettled=unsettled)


def ledger_with(*entries: tuple[int, int, Any]) -> UnsettledDeliveries:
    ledger = UnsettledDeliveries()
    for first_id, count, lock_run in entries:
        ledger.add(first_id, count, lock_run, SimpleNamespace())  # type: ignore[arg-type]
    return ledger


def found(ledger: UnsettledDeliveries, first: int, last: int) -> list[tuple[int, int, Any]]:
    """(wire id, count, run) for every part of a range."""
    return [
        (at & UINT_MAX, count, None if entry is None else entry.run)
        for at, count, entry in ledger.find(first, last)
    ]


def test_a_range_is_cut_at_the_runs_behind_it() -> None:
    a, b = run(), run()
    ledger = ledger_with((0, 10, a), (10, 5, b))

    assert found(ledger, 3, 3) == [(3, 1, a)]
    assert found(ledger, 8, 12) == [(8, 2, a), (10, 3, b)]
    assert found(ledger, 0, 14) == [(0, 10, a), (10, 5, b)]


def test_ids_that_were_used_for_other_things_hold_nothing() -> None:
    """Replies and settled deliveries take ids too; neighbours come as one part."""
    a, b = run(), run()
    ledger = ledger_with((2, 3, a), (9, 1, b))

    assert found(ledger, 0, 20) == [(0, 2, None), (2, 3, a), (5, 4, None), (9, 1, b)]
    assert found(ledger, 5, 8) == [(5, 4, None)]


def test_ids_that_were_never_used_are_not_there_at_all() -> None:
    """Case 72: two thousand million ids ahead are nothing."""
    a = run()
    ledger = ledger_with((0, 4, a))

    assert found(ledger, 4, 2**31 - 1) == []
    assert found(ledger, 2, 2**31 - 1) == [(2, 2, a)]
    assert found(UnsettledDeliveries(), 0, 2**31 - 1) == []


def test_runs_that_are_settled_hold_nothing_and_come_as_one_part() -> None:
    live = run()
    settled = [(number, 1, run(unsettled=0)) for number in range(30)]
    ledger = ledger_with(*settled, (30, 2, live))

    assert found(ledger, 0, 31) == [(0, 30, None), (30, 2, live)]


def test_ids_wrap_around() -> None:
    a, b, c = run(), run(), run()
    ledger = ledger_with((UINT_MAX - 3, 2, a), (UINT_MAX - 1, 4, b), (2, 1, c))

    assert found(ledger, UINT_MAX - 2, 2) == [(UINT_MAX - 2, 1, a), (UINT_MAX - 1, 4, b), (2, 1, c)]
    assert found(ledger, 0, 0) == [(0, 1, b)]


def test_one_message_that_stays_locked_does_not_make_the_ledger_grow() -> None:
    """A receiver may keep one lock for a day and settle a million others meanwhile."""
    kept = run()
    ledger = ledger_with((0, 1, kept))
    for number in range(1, 5_000):
        settled = run()
        ledger.add(number, 1, settled, SimpleNamespace())  # type: ignore[arg-type]
        settled.unsettled = 0

    assert len(ledger._entries) < 4 * LEDGER_SWEEP
    assert found(ledger, 0, 4_999) == [(0, 1, kept), (1, 4_999, None)]


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_a_range_are_what_a_simple_book_says(seed: int) -> None:
    """Against a dictionary of ids, with runs that are settled at random."""
    chance = Random(seed)
    ledger, book, next_id = UnsettledDeliveries(), {}, 0
    for _ in range(200):
        next_id += chance.choice([0, 0, 1, 5])
        lock_run, count = run(), chance.randint(1, 6)
        ledger.add(next_id, count, lock_run, SimpleNamespace())  # type: ignore[arg-type]
        book |= dict.fromkeys(range(next_id, next_id + count), lock_run)
        next_id += count
        chance.choice(list(book.values())).unsettled = 0

    for _ in range(50):
        first = chance.randrange(next_id)
        last = chance.randrange(first, next_id + 10)
        expected = {
            number: each if (each := book.get(number)) and each.unsettled else None
            for number in range(first, min(last, next_id - 1) + 1)
        }
        assert dict(spread(found(ledger, first, last))) == expected


def spread(parts: list[tuple[int, int, Any]]) -> Iterator[tuple[int, Any]]:
    for first, count, lock_run in parts:
        for number in range(first, first + count):
            yield number, lock_run


# -- what a connection may hold -------------------------------------------------------------------


def consumer(allowance: UnsettledQuota | None, unsettled_max: int = 100) -> Consumer:
    return Consumer(lambda _grant: None, unsettled_max, credit=1_000, allowance=allowance)


def test_receivers_of_one_connection_share_its_allowance() -> None:
    """Case 69."""
    told: list[str] = []
    allowance = UnsettledQuota(150, lambda: told.append("room"))
    first, second = consumer(allowance), consumer(allowance)
    first.took(100)
    assert (first.room(), second.room()) == (0, 50)
    second.took(50)
    assert second.room() == 0 and not told

    first.gave_back(10)

    assert told == ["room"]
    assert (first.room(), second.room()) == (10, 10)
    first.gave_back(10)
    assert told == ["room"], "there was room already"


def test_a_receiver_without_an_allowance_has_its_own_limit_only() -> None:
    alone = consumer(None, unsettled_max=7)
    alone.took(3)

    assert alone.room() == 4
