"""Every operation of a namespace, counted (rule C1).

Rule 1: counting is cheap. An end of a link holds the tally of its own operation; a run of
        messages costs four additions, however long it is.
Rule 2: a tally only grows. What is new since the last line was written is a difference, so
        that nothing is counted twice and the totals can be compared with the log.
Rule 3: a message of more than 64 KB is several billable units.

    send           messages taken in                ping        taken in and forgotten (M7)
    receive        messages handed out              peek        messages shown
    empty-receive  credit that ended unused         settle      decided by a receiver; no unit
    management     requests to $management          administration  requests over HTTP
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

UNIT_BYTES = 64 * 1024


class Operation(StrEnum):
    """What was done; the words of the log."""

    SEND = "send"
    RECEIVE = "receive"
    EMPTY_RECEIVE = "empty-receive"
    PING = "ping"
    PEEK = "peek"
    SETTLE = "settle"
    MANAGEMENT = "management"
    ADMINISTRATION = "administration"


class Amount(NamedTuple):
    """So much of one operation."""

    calls: int
    """Requests: transfers, grants of messages, management requests."""
    messages: int
    units: int
    """Billable steps of 64 KB; a message has at least one."""
    bytes_in: int
    bytes_out: int

    def minus(self, other: Amount) -> Amount:
        return Amount(*(now - then for now, then in zip(self, other, strict=True)))


NOTHING = Amount(0, 0, 0, 0, 0)


@dataclass(slots=True)
class Tally:
    """One operation on one entity, since the namespace started."""

    entity: str
    operation: Operation
    calls: int = 0
    messages: int = 0
    units: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    written: Amount = NOTHING
    """What the log holds of it."""

    def total(self) -> Amount:
        return Amount(self.calls, self.messages, self.units, self.bytes_in, self.bytes_out)

    def took_in(self, calls: int, messages: int, units: int, size: int) -> None:
        self.calls += calls
        self.messages += messages
        self.units += units
        self.bytes_in += size

    def gave_out(self, messages: int, units: int, size: int) -> None:
        self.calls += 1
        self.messages += messages
        self.units += units
        self.bytes_out += size

    def happened(self) -> None:
        """A request that carries no message."""
        self.calls += 1
        self.units += 1


class Meter:
    """The tallies of one namespace."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, Operation], Tally] = {}

    def tally(self, entity: str, operation: Operation) -> Tally:
        """Where to count an operation on an entity; ask once and keep it."""
        key = entity, operation
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(entity, operation)
        return tally

    def __iter__(self) -> Iterator[Tally]:
        return iter(self._tallies.values())


def units_of(sizes: Sequence[int]) -> int:
    """The billable units of messages of these sizes."""
    if not sizes:
        return 0
    if max(sizes) <= UNIT_BYTES:
        return len(sizes)
    return sum(max(1, -(-size // UNIT_BYTES)) for size in sizes)


def units_between(starts: Sequence[int], first: int, count: int) -> int:
    """The billable units of messages that lie one behind the other, ``starts`` telling where."""
    if starts[first + count] - starts[first] <= UNIT_BYTES:
        return count
    return units_of([starts[i + 1] - starts[i] for i in range(first, first + count)])
