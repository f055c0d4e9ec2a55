"""What a read that is under way may still speak of is not forgotten."""

from __future__ import annotations

from twinbus.broker.engine.chunk import PendingReads


def test_with_no_read_under_way_things_are_forgotten_at_once() -> None:
    done: list[str] = []

    PendingReads().after_reads(lambda: done.append("a"))

    assert done == ["a"]


def test_only_reads_that_began_before_are_waited_for() -> None:
    # Given one read under way when something is to be forgotten, and one that begins later
    grace, done = PendingReads(), list[str]()
    first = grace.begin_read()
    grace.after_reads(lambda: done.append("a"))
    second = grace.begin_read()
    grace.after_reads(lambda: done.append("b"))

    # When the first ends
    grace.end_read(first)

    # Then the first thing is forgotten, although another read is under way
    assert done == ["a"]
    grace.end_read(second)
    assert done == ["a", "b"]


def test_a_long_read_keeps_what_began_to_go_while_it_was_under_way() -> None:
    """M2: a short read that began later and ends first lets nothing go that the long one shows."""
    grace, done = PendingReads(), list[str]()
    long = grace.begin_read()
    short = grace.begin_read()
    grace.after_reads(lambda: done.append("a"))

    grace.end_read(short)
    assert done == []

    grace.end_read(long)
    assert done == ["a"]


def test_reads_that_never_pause_do_not_keep_everything() -> None:
    """A queue that is peeked at without end must not grow in memory."""
    grace, done = PendingReads(), list[int]()
    under_way = grace.begin_read()
    for number in range(1_000):
        following = grace.begin_read()
        grace.after_reads(lambda number=number: done.append(number))
        grace.end_read(under_way)
        under_way = following

    assert len(done) == 999
