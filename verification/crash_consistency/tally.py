"""What a part of the campaign looked at, and what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Wrong(Enum):
    """How a store can break its promise."""

    LOST = "lost"
    """Something acknowledged is not there."""
    CONTENT = "wrong"
    """It says something that nobody asked it to keep, or acknowledges what is not durable."""
    REFUSED = "refused"
    """A store that a crash may leave is taken for damaged."""


@dataclass(frozen=True, slots=True)
class Complaint:
    kind: Wrong
    text: str
    replay: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


@dataclass
class Tally:
    """Sums of one part; those of its pieces add up."""

    part: str
    workloads: set[str] = field(default_factory=set)
    points: int = 0
    distinct: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    complaints: list[Complaint] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.workloads |= other.workloads
        self.points += other.points
        self.distinct += other.distinct
        self.outcomes += other.outcomes
        self.complaints += other.complaints

    def count(self, kind: Wrong) -> int:
        return sum(complaint.kind is kind for complaint in self.complaints)


HEADER = (
    f"{'':<22}{'workloads':>10}{'points':>10}{'distinct':>10}"
    f"{'lost':>6}{'wrong':>7}{'refused':>9}  outcomes"
)


def row(tally: Tally) -> str:
    outcomes = ", ".join(f"{count:,} {what}" for what, count in sorted(tally.outcomes.items()))
    return (
        f"{tally.part:<22}{len(tally.workloads):>10,}{tally.points:>10,}{tally.distinct:>10,}"
        f"{tally.count(Wrong.LOST):>6,}{tally.count(Wrong.CONTENT):>7,}"
        f"{tally.count(Wrong.REFUSED):>9,}  {outcomes}"
    ).rstrip()
