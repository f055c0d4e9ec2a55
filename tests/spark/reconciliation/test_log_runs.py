"""What runs say about themselves. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.spark.reconciliation.log_tables import RunPart, have_copies, lost_lines, unclosed


def part(first: int, last: int, **more: Any) -> RunPart:
    usual: dict[str, Any] = {"source": "broker", "namespace": "home", "run": "5f0c", "file": "a"}
    usual |= {"lines": last - first + 1, "is_closed": True}
    return RunPart(**usual | {"first": first, "last": last} | more)


@pytest.mark.parametrize(
    ("parts", "has_copies", "lost"),
    [
        ([], False, 0),
        # Two files, in any order, from the middle of a run on.
        ([part(11, 20, file="b"), part(5, 10)], False, 0),
        ([part(5, 10), part(12, 20, file="b")], False, 1),
        ([part(1, 10, lines=7)], False, 3),
        # A copy, one of a part, one in the same file.
        ([part(1, 10), part(1, 10, file="b")], True, -10),
        ([part(1, 10), part(4, 5, file="b", lines=1), part(11, 12, file="c")], True, -1),
        ([part(1, 10, lines=20)], True, -10),
        # The numbers of others are others.
        ([part(1, 10), part(1, 10, run="77aa")], False, 0),
        ([part(1, 10, source="client"), part(1, 10, source="client", namespace="b")], False, 0),
    ],
)
def test_numbers_tell_of_copies_and_of_lost_lines(
    parts: list[RunPart], has_copies: bool, lost: int
) -> None:
    """C3: a log and its copy count once; a line that was lost is told."""
    assert have_copies(parts) is has_copies
    assert lost_lines(parts) == lost


def test_runs_without_an_end_are_told() -> None:
    """C3: a broker that was killed may have taken its last lines with it."""
    open_ones = [
        part(1, 9, is_closed=False),
        part(1, 9, run="77aa", is_closed=False),
        part(10, 12, run="77aa", file="b"),
        part(1, 2, source="client", run="1", is_closed=False),
        part(1, 2, source="client", run="2", is_closed=False),
    ]
    assert list(unclosed(open_ones)) == [
        f"{who} without an end: unless still open, the last lines may be missing."
        for who in ("2 runs of clients", "1 run of the broker of home")
    ]
    assert list(unclosed(open_ones[2:3])) == []
