"""What a namespace counts and charges for: operations, in steps of 64 KB (rules C1, C2).

    send           messages taken in                ping        taken in and forgotten (M7)
    receive        messages handed out              peek        messages shown
    empty-receive  credit that ended unused         settle      decided by a receiver; no unit
    management     requests to $management          administration  requests over HTTP

Rule 1: a message of more than 64 KB is several billable units; every message is at least one.
Rule 2: a batch is charged for its messages: sending them together saves calls, not units.
Rule 3: an empty receive, a ping and a request to the management are one unit each.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "NOTHING",
    "UNIT_BYTES",
    "Amount",
    "Operation",
    "messages_in",
    "messages_out",
    "polls_until",
    "requests",
    "units_between",
    "units_of",
    "units_of_message",
]

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

    def plus(self, other: Amount) -> Amount:
        return Amount(*(one + more for one, more in zip(self, other, strict=True)))


NOTHING = Amount(0, 0, 0, 0, 0)


def units_of_message(size: int) -> int:
    """The billable units of one message."""
    return max(1, -(-size // UNIT_BYTES))


def units_of(sizes: Sequence[int]) -> int:
    """The billable units of messages of these sizes."""
    if not sizes:
        return 0
    if max(sizes) <= UNIT_BYTES:
        return len(sizes)
    return sum(map(units_of_message, sizes))


def units_between(starts: Sequence[int], first: int, count: int) -> int:
    """The billable units of messages that lie one behind the other, ``starts`` telling where."""
    if starts[first + count] - starts[first] <= UNIT_BYTES:
        return count
    return units_of([starts[i + 1] - starts[i] for i in range(first, first + count)])


# -- what is expected, rather than counted ------------------------------------------------


def messages_in(count: int, size: int, batch: int = 1) -> Amount:
    """So many messages of one size that are taken in, ``batch`` of them with each call."""
    return Amount(-(-count // batch), count, count * units_of_message(size), count * size, 0)


def messages_out(count: int, size: int, batch: int = 1) -> Amount:
    """So many messages of one size that are handed out."""
    return Amount(-(-count // batch), count, count * units_of_message(size), 0, count * size)


def requests(count: int) -> Amount:
    """So many empty receives or requests to the management: no message in them."""
    return Amount(count, 0, count, 0, 0)


def polls_until(at_ms: int, poll_ms: int) -> int:
    """How many long polls have ended by then, when the first began at 0 and nothing comes.

    What ends within a time is the difference of two of these: days add up to their month.
    """
    return at_ms // poll_ms
