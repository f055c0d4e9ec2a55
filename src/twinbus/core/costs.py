"""What a namespace counts and charges for: operations, in steps of 64 KB (rules C1, C2).

    send           messages taken in                ping        taken in and forgotten (M7)
    receive        messages handed out              peek        messages shown
    empty-receive  credit that ended unused         settle      decided by a receiver; no unit
    management     requests to $management          administration  requests over HTTP

Rule 1: a message of more than 64 KB is several billable units; every message is at least one.
Rule 2: a batch is charged for its messages: sending them together saves calls, not units.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["NOTHING", "UNIT_BYTES", "Amount", "Operation", "units_between", "units_of"]

UNIT_BYTES: Final = 64 * 1024


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
