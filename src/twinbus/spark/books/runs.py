"""Are the logs whole: what their runs say about themselves.

Rule 1: the numbers of a run have no gap; where one is missing a line was lost. What was before the
        first line is not missed: logs need not be given from their beginning.
Rule 2: files of one run that have the same numbers are copies.
Rule 3: a run without its end goes on, or was killed: its last lines may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

__all__ = ["RunPart", "have_copies", "lost_lines", "unclosed"]


class RunPart(NamedTuple):
    """What one file has of one run."""

    source: str
    namespace: str
    run: str
    file: str
    first: int
    last: int
    lines: int
    is_closed: bool

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.namespace, self.run


def _by_run(parts: Iterable[RunPart]) -> Iterator[list[RunPart]]:
    ordered = sorted(parts, key=lambda part: (*part.key, part.first, part.last))
    for _key, some in groupby(ordered, key=attrgetter("key")):
        yield list(some)


def have_copies(parts: Iterable[RunPart]) -> bool:
    """Whether a line may be there twice (rule 2)."""
    return any(
        any(later.first <= sooner.last for sooner, later in pairwise(run))
        or any(part.lines > part.last - part.first + 1 for part in run)
        for run in _by_run(parts)
    )


def lost_lines(parts: Iterable[RunPart]) -> int:
    """How many numbers are missing, in parts without copies (rule 1)."""
    return sum(
        max(part.last for part in run) - run[0].first + 1 - sum(part.lines for part in run)
        for run in _by_run(parts)
    )


def unclosed(parts: Iterable[RunPart]) -> Iterator[str]:
    """A sentence for each side that has runs without an end (rule 3)."""
    counts: dict[str, int] = {}
    for run in _by_run(parts):
        if not any(part.is_closed for part in run):
            who = "clients" if run[0].source == "client" else f"the broker of {run[0].namespace}"
            counts[who] = counts.get(who, 0) + 1
    for who, count in sorted(counts.items()):
        runs = "1 run" if count == 1 else f"{count:,} runs"
        yield f"{runs} of {who} without an end: unless still open, the last lines may be missing."
