"""Who may have something looked up, and when."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.broker.fairness.read_turns import (
    BEGUN_AT_ONCE,
    LOOKUPS_OF_ONE_MAX,
    ReaderPlace,
    ReaderTurns,
)


class Asking:
    """A connection of a key that asks, and that may stop to read its answers."""

    def __init__(self, turns: ReaderTurns, key: str) -> None:
        self.reads = True
        self.begun = 0
        self.place: ReaderPlace = turns.join(lambda: self.reads)
        turns.shared.move(self.place.holder, key)

    def ask(self) -> bool:
        return self.place.begin(self._start())

    def _start(self) -> Callable[[], None]:
        def start() -> None:
            self.begun += 1

        return start


def test_a_key_below_its_share_need_not_wait() -> None:
    """M13: a hundred connections of one key have the places, and no more."""
    turns = ReaderTurns(4)
    loud = [Asking(turns, "loud") for _ in range(100)]
    for each in loud:
        each.ask()
    assert sum(each.begun for each in loud) == 4

    assert Asking(turns, "quiet").ask()
    assert not loud[50].ask()


def test_who_waited_has_its_turn_in_order() -> None:
    turns = ReaderTurns(1)
    first, second, third = (Asking(turns, "key") for _ in range(3))
    assert first.ask()
    assert not second.ask()
    assert not third.ask()

    first.place.end()
    assert (second.begun, third.begun) == (1, 0)
    second.place.end()
    assert third.begun == 1
    third.place.end()
    assert turns.shared.used == 0


def test_nothing_is_looked_up_for_who_does_not_read() -> None:
    """M13: its turn comes when it has read what it has."""
    turns = ReaderTurns(4)
    deaf = Asking(turns, "key")
    deaf.reads = False
    assert not deaf.ask()
    assert Asking(turns, "key").ask()

    deaf.reads = True
    deaf.place.start_waiting()
    assert deaf.begun == 1


def test_one_connection_has_a_few_at_a_time() -> None:
    turns = ReaderTurns(100)
    eager = Asking(turns, "key")
    for _ in range(5):
        eager.ask()
    assert eager.begun == LOOKUPS_OF_ONE_MAX
    eager.place.end()
    assert eager.begun == LOOKUPS_OF_ONE_MAX + 1


def test_what_a_connection_that_is_gone_asked_for_is_not_looked_up() -> None:
    turns = ReaderTurns(1)
    first, gone, last = (Asking(turns, "key") for _ in range(3))
    for each in (first, gone, last):
        each.ask()
    gone.place.close()
    first.place.end()

    assert (gone.begun, last.begun) == (0, 1)


def test_requests_that_are_refused_at_once_do_not_call_each_other() -> None:
    """M13: thousands that wait end one after the other, and in several turns."""
    soon: list[Callable[[], None]] = []
    turns = ReaderTurns(1, later=soon.append)
    first = Asking(turns, "key")
    first.ask()
    others = [Asking(turns, "key") for _ in range(3_000)]
    ended: list[int] = []
    for number, each in enumerate(others):

        def start(number: int = number, place: ReaderPlace = each.place) -> None:
            place.end()
            ended.append(number)

        for _ in range(3):
            each.place.begin(start)

    first.place.end()
    assert 0 < len(ended) <= 3 * BEGUN_AT_ONCE
    while soon:
        soon.pop()()
    assert sorted(ended) == sorted([*range(3_000)] * 3)
    assert turns.shared.used == 0
