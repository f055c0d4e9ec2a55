"""The operations that a namespace counts and charges, in units of 64 KB (rules C1, C2).

    send           messages accepted                ping        accepted and not stored (M7)
    receive        messages delivered               peek        messages peeked at
    empty-receive  credit that ended unused         settle      settled by a receiver; no unit
    management     requests to $management          administration  requests over HTTP

Rule 1: a message of more than 64 KB is several billable units; every message is at least one.
Rule 2: a batch is charged for its messages: sending them together saves calls, not units.
Rule 3: an empty receive, a ping, and a management or administration request are one unit each.
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
    """The kinds of operations, with their names in the log."""

    SEND = "send"
    RECEIVE = "receive"
    EMPTY_RECEIVE = "empty-receive"
    PING = "ping"
    PEEK = "peek"
    SETTLE = "settle"
    MANAGEMENT = "management"
    ADMINISTRATION = "administration"


class Amount(NamedTuple):
    """An amount of one operation."""

    calls: int
    """Requests: transfers, deliveries of messages, management requests."""
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
    """The billable units of consecutive messages; ``starts`` are their offsets."""
    if starts[first + count] - starts[first] <= UNIT_BYTES:
        return count
    return units_of([starts[i + 1] - starts[i] for i in range(first, first + count)])


# -- estimates ----------------------------------------------------------------------------


def messages_in(count: int, size: int, batch: int = 1) -> Amount:
    """``count`` messages of one size that are sent, ``batch`` of them with each call."""
    return Amount(-(-count // batch), count, count * units_of_message(size), count * size, 0)


def messages_out(count: int, size: int, batch: int = 1) -> Amount:
    """``count`` messages of one size that are received."""
    return Amount(-(-count // batch), count, count * units_of_message(size), 0, count * size)


def requests(count: int) -> Amount:
    """``count`` empty receives or management requests: no message in them."""
    return Amount(count, 0, count, 0, 0)


def polls_until(at_ms: int, poll_ms: int) -> int:
    """How many long polls have ended by then, when the first began at 0 and no message arrives.

    The polls of a period are the difference of two of these: days add up to their month.
    """
    return at_ms // poll_ms
