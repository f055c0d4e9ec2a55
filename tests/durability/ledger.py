"""What a client of a broker that keeps dying knows, and whether the broker kept its word."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """The books of one run: values are message ids, numbers are sequence numbers."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    settling: set[str] = field(default_factory=set)
    """A complete was sent for it; whether it was stored is open until it is answered."""
    settled: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)
    dead_lettered: set[str] = field(default_factory=set)
    numbers: dict[int, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def saw(self, number: int, value: str, delivery_count: int) -> None:
        """A message was delivered or found."""
        known = self.numbers.setdefault(number, value)
        if known != value:
            self.problems.append(f"number {number} is {known} and {value}")
        if delivery_count < self.counts.get(value, 0):
            self.problems.append(f"the delivery count of {value} went down")
        self.counts[value] = delivery_count
        if value in self.settled:
            self.problems.append(f"{value} came back after its completion was acknowledged")
        if value not in self.attempted:
            self.problems.append(f"{value} came from nowhere")

    def verdict(self, active: list[str], deferred: list[str], dead: list[str]) -> list[str]:
        """Everything that is wrong, given what the queue holds at the end."""
        problems = list(self.problems)
        found = [*active, *deferred, *dead]
        problems += [f"{value} is there twice" for value in set(found) if found.count(value) > 1]
        lost = self.acknowledged - set(found) - self.settled - self.settling
        problems += [f"{value} was acknowledged and is lost" for value in sorted(lost)]
        returned = set(found) & self.settled
        problems += [f"{value} was completed and is back" for value in sorted(returned)]
        problems += [f"{v} is not deferred" for v in sorted(self.deferred - set(deferred))]
        problems += [f"{v} is no dead letter" for v in sorted(self.dead_lettered - set(dead))]
        return problems
