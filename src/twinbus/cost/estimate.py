"""What a pair costs before anything has happened, and what an outage will cost (rules C2, C3).

    a detoured message     send to backlog, receive from backlog, send to primary, receive from it
    an idle syphon         a long poll of every backlog queue, again and again; where the service
                           ends idle links, one more receive each time that happens
    a diverted entity      a ping from every sender, at once and then once an interval
    a diverted pair        every sender looks at the backlog: one listing, and a peek into each
                           queue that holds messages

      0 ......... failover interval ... ping ... ping ... end of the outage ... ping: restored
      |  suspect  |  diverted                                                       | away_ms
                  |  look . look ... look ....... look ............... look ....... | and one more

Rule 1: the amounts do not depend on prices, and the prices do not depend on the amounts.
Rule 2: what is paid anyway is priced first and what is paid on top afterwards, so that the
        overhead has the price of the tier in which it really falls.
Rule 3: in doubt more rather than less: a ping counts although nobody may be there to charge it,
        a backlog queue counts as empty while the syphon waits for its first message, and as
        full when a sender looks for its oldest one. (The looks that are made for a level of
        filling are left out: few queues get half full.)
Rule 4: the month that went before is priced as the messages are: by the sheet, bytes included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from twinbus.cost.prices import UNITS_MAX, PriceSheet
from twinbus.cost.units import (
    Amount,
    Operation,
    messages_in,
    messages_out,
    polls_until,
    requests,
)
from twinbus.errors import ConfigurationError
from twinbus.failover.backlog_alerts import BacklogThresholds, polls_within

__all__ = [
    "CostEstimate",
    "CostKind",
    "CostLine",
    "EstimateInput",
    "Idle",
    "MonthBefore",
    "OutageCost",
    "WhatIf",
    "estimate",
]

HOUR_MS: Final = 3_600_000
PERIOD_HOURS: Final = {"hour": 1, "day": 24, "30 days": 720}
MONTH_HOURS: Final = 720

# More than anybody has; beyond it a slip is more likely.
COUNT_MAX: Final = 1_000_000
YEAR_MS: Final = 366 * 24 * HOUR_MS
_LIMITS: Final = {
    "backlog_queues": ("the number of backlog queues", 1, COUNT_MAX),
    "poll_ms": ("the time of a poll", 1_000, YEAR_MS),
    "idle_detach_ms": ("the time after which idle links end", 1_000, YEAR_MS),
    "rate_per_s": ("the rate per second", 0, 1_000_000_000),
    # The largest message that any kind of namespace takes.
    "size_bytes": ("the size of a message", 0, 100 * 1024 * 1024),
    "outage_ms": ("the outage", 0, YEAR_MS),
    "entities": ("the number of entities", 1, COUNT_MAX),
    "senders": ("the number of senders", 1, COUNT_MAX),
    "syphons": ("the number of syphons", 1, COUNT_MAX),
    "ping_ms": ("the time between pings", 1_000, YEAR_MS),
    "failover_ms": ("the failover interval", 0, YEAR_MS),
    "batch": ("the syphon's batch", 1, COUNT_MAX),
    "used": ("the number of operations used", 0, UNITS_MAX),
}

_WHAT_IF_SYPHONS: Final = (1, 2, 3, 5, 10)
_WHAT_IF_POLLS_MS: Final = (60_000, 300_000, 900_000, 1_800_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInput:
    """What is asked: a pair, its traffic and an outage."""

    backlog_queues: int = 10
    poll_ms: int = 900_000
    """How long the syphon waits at an empty backlog queue (Y3)."""
    idle_detach_ms: int = 600_000
    """After how long a service that ends idle links does it; Azure's ten minutes."""
    rate_per_s: Fraction = Fraction(0)
    """Messages a second, to all entities together."""
    size_bytes: int = 1024
    """Of a message."""
    outage_ms: int = 0
    entities: int = 1
    """Queues and topics that the senders use."""
    senders: int = 1
    """Processes that have paired: each pings for itself."""
    syphons: int = 1
    ping_ms: int = 60_000
    failover_ms: int = 60_000
    """How long sends must fail before an entity is diverted (P6)."""
    batch: int = 100
    """Messages in one call of the syphon: fewer calls, not fewer charges."""
    used: int | None = None
    """Billable operations that the month has had already; None for 30 days of this traffic."""

    def __post_init__(self) -> None:
        for name, (label, least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                shown, low, high = (_shown(name, each) for each in (value, least, most))
                raise ConfigurationError(f"{label} cannot be {shown}", hint=f"Use {low} to {high}")

    @property
    def grants_per_poll(self) -> int:
        """Receives that one wait takes where idle links end: each new link has its own credit."""
        return -(-self.poll_ms // self.idle_detach_ms)

    @property
    def pings(self) -> int:
        """How many one sender sends to one entity: the last one brings it home."""
        diverted_ms = self.outage_ms - self.failover_ms
        return -(-diverted_ms // self.ping_ms) + 1 if diverted_ms > 0 else 0

    @property
    def away_ms(self) -> int:
        """Until when messages go to the backlog: the first ping after the outage ends it."""
        return self.failover_ms + (self.pings - 1) * self.ping_ms if self.pings else 0

    @property
    def looks(self) -> int:
        """How often one sender looks at the backlog (P16): the last one when all is over.

        While messages are left after that it goes on, which depends on the syphon.
        """
        if not self.pings:
            return 0
        ages_s = BacklogThresholds().age_s if self.messages else ()
        return polls_within((self.away_ms - self.failover_ms) / 1000, ages_s) + 1

    @property
    def messages(self) -> int:
        """That many take the detour.

        Those of the time before the diversion do too: they are retried until it is decided.
        """
        return int(self.rate_per_s * self.away_ms / 1000)


def _shown(name: str, value: int | Fraction) -> str:
    if name.endswith("_ms"):
        return f"{Decimal(int(value)) / 1000:f} s"
    text = f"{int(value):,}" if value == int(value) else str(value)
    return text if len(text) <= 40 else f"{text:.40}…"


class CostKind(StrEnum):
    """What is paid for."""

    SEND_PRIMARY = "send to primary"
    RECEIVE_PRIMARY = "receive from primary"
    COMPLETE_PRIMARY = "complete on primary"
    IDLE_POLLS = "idle polls"
    PAIRING = "pairing, management"
    SEND_BACKLOG = "send to backlog"
    RECEIVE_BACKLOG = "receive from backlog"
    COMPLETE_BACKLOG = "complete in backlog"
    PINGS = "pings"
    WATCH = "watch, counts"
    WATCH_PEEKS = "watch, peeks"


PAID_ANYWAY: Final = frozenset(
    {
        CostKind.SEND_PRIMARY,
        CostKind.RECEIVE_PRIMARY,
        CostKind.COMPLETE_PRIMARY,
        CostKind.IDLE_POLLS,
        CostKind.PAIRING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One kind of operation."""

    kind: CostKind
    amount: Amount
    units: int
    """Billable operations, by the sheet."""
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What waiting costs, outage or not."""

    period: str
    hours: int
    receives: int
    cost: Decimal
    detached_receives: int
    """The same where idle links end."""
    detached_cost: Decimal
    base_cost: Decimal
    """For the time itself, both namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageCost:
    """What the outage costs, and the same time without it."""

    messages: int
    away_ms: int
    charges_per_message: int
    lines: tuple[CostLine, ...]

    def total(self, *, anyway: bool | None = None) -> tuple[int, Decimal]:
        """Billable operations and cost of all lines, or of what is (not) paid anyway."""
        lines = [
            line for line in self.lines if anyway is None or (line.kind in PAID_ANYWAY) is anyway
        ]
        return sum(line.units for line in lines), sum((line.cost for line in lines), Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Another number of syphons, another time of waiting: the idle receives of 30 days."""

    syphons: int
    poll_ms: int
    receives: int
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthBefore:
    """How far into the prices of the month the estimate begins.

    An application that sends all the time has used up what is included: to price an outage as if
    nothing else had happened would show too little.
    """

    units: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The whole answer."""

    plan: EstimateInput
    prices: PriceSheet
    before: MonthBefore
    idle: tuple[Idle, ...]
    outage: OutageCost
    what_if: tuple[WhatIf, ...]
    """Each number of syphons with each time of waiting, in this order."""


def estimate(plan: EstimateInput, prices: PriceSheet) -> CostEstimate:
    """What this pair costs while nothing happens, and what this outage will cost."""
    before = _month_before(plan, prices)
    return CostEstimate(
        plan=plan,
        prices=prices,
        before=before,
        idle=tuple(_idle(plan, prices, before, period) for period in PERIOD_HOURS),
        outage=_outage(plan, prices, before),
        what_if=tuple(_what_if(plan, prices, before)),
    )


def _month_before(plan: EstimateInput, prices: PriceSheet) -> MonthBefore:
    """30 days of this traffic, or as much of it as makes the operations that were used."""
    one = list(_without_detour(plan, 1))
    units = sum(prices.billable(operation, amount) for _, operation, amount in one)
    bytes_out = sum(amount.bytes_out for _, _, amount in one)
    if plan.used is None:
        messages = int(plan.rate_per_s * MONTH_HOURS * HOUR_MS / 1000)
        return MonthBefore(units=messages * units, bytes_out=messages * bytes_out)
    messages = plan.used // units if units else 0
    return MonthBefore(units=plan.used, bytes_out=messages * bytes_out)


# -- idle ---------------------------------------------------------------------------------


def idle_receives(plan: EstimateInput, from_ms: int, to_ms: int) -> int:
    """Empty receives of all syphons in a part of the time that began at 0."""
    polls = polls_until(to_ms, plan.poll_ms) - polls_until(from_ms, plan.poll_ms)
    return polls * plan.backlog_queues * plan.syphons


def _idle(plan: EstimateInput, prices: PriceSheet, before: MonthBefore, period: str) -> Idle:
    hours = PERIOD_HOURS[period]
    receives = idle_receives(plan, 0, hours * HOUR_MS)
    detached_receives = receives * plan.grants_per_poll
    return Idle(
        period=period,
        hours=hours,
        receives=receives,
        cost=_idle_cost(prices, receives, before.units),
        detached_receives=detached_receives,
        detached_cost=_idle_cost(prices, detached_receives, before.units),
        base_cost=prices.base_charge(hours, namespaces=2),
    )


def _idle_cost(prices: PriceSheet, receives: int, used: int) -> Decimal:
    return prices.charge(prices.billable(Operation.EMPTY_RECEIVE, requests(receives)), used)


def _what_if(plan: EstimateInput, prices: PriceSheet, before: MonthBefore) -> Iterator[WhatIf]:
    for syphons in sorted({*_WHAT_IF_SYPHONS, plan.syphons}):
        for poll_ms in sorted({*_WHAT_IF_POLLS_MS, plan.poll_ms}):
            other = replace(plan, syphons=syphons, poll_ms=poll_ms)
            receives = idle_receives(other, 0, MONTH_HOURS * HOUR_MS)
            yield WhatIf(
                syphons=syphons,
                poll_ms=poll_ms,
                receives=receives,
                cost=_idle_cost(prices, receives, before.units),
            )


# -- the outage ---------------------------------------------------------------------------


def _outage(plan: EstimateInput, prices: PriceSheet, before: MonthBefore) -> OutageCost:
    lines = tuple(_priced(_operations(plan), prices, before))
    one = (*_without_detour(plan, 1), *_detour(plan, 1))
    return OutageCost(
        messages=plan.messages,
        away_ms=plan.away_ms,
        charges_per_message=sum(prices.billable(how, amount) for _, how, amount in one),
        lines=lines,
    )


def _without_detour(
    plan: EstimateInput, count: int
) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """What so many messages take anyway; the application receives singly."""
    yield CostKind.SEND_PRIMARY, Operation.SEND, messages_in(count, plan.size_bytes, plan.batch)
    yield CostKind.RECEIVE_PRIMARY, Operation.RECEIVE, messages_out(count, plan.size_bytes)
    yield CostKind.COMPLETE_PRIMARY, Operation.SETTLE, Amount(count, count, 0, 0, 0)


def _detour(plan: EstimateInput, count: int) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """What their detour takes on top; the application sends singly."""
    yield CostKind.SEND_BACKLOG, Operation.SEND, messages_in(count, plan.size_bytes)
    yield (
        CostKind.RECEIVE_BACKLOG,
        Operation.RECEIVE,
        messages_out(count, plan.size_bytes, plan.batch),
    )
    yield CostKind.COMPLETE_BACKLOG, Operation.SETTLE, Amount(count, count, 0, 0, 0)


def _operations(plan: EstimateInput) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """What is paid anyway, then the rest (rule 2)."""
    yield from _without_detour(plan, plan.messages)
    polls = idle_receives(plan, 0, plan.outage_ms)
    yield CostKind.IDLE_POLLS, Operation.EMPTY_RECEIVE, requests(polls)
    # Each sender asks for each backlog queue and the first one makes them; then its watch looks
    # once, whether an earlier process has left anything.
    found_or_made = plan.backlog_queues * (plan.senders + 1)
    yield CostKind.PAIRING, Operation.ADMINISTRATION, requests(found_or_made + plan.senders)

    yield from _detour(plan, plan.messages)
    pings = plan.entities * plan.senders * plan.pings
    yield CostKind.PINGS, Operation.PING, messages_in(pings, 0)
    looks = plan.senders * plan.looks
    yield CostKind.WATCH, Operation.ADMINISTRATION, requests(looks)
    shown = looks * min(plan.backlog_queues, plan.messages)
    yield CostKind.WATCH_PEEKS, Operation.PEEK, messages_out(shown, plan.size_bytes)


def _priced(
    operations: Iterable[tuple[CostKind, Operation, Amount]],
    prices: PriceSheet,
    before: MonthBefore,
) -> Iterator[CostLine]:
    """With their costs, one after the other into the month; free settlements are left out."""
    used, left = before.units, before.bytes_out
    for kind, operation, amount in operations:
        if operation is Operation.SETTLE and operation not in prices.charged:
            continue
        units = prices.billable(operation, amount)
        cost = prices.charge(units, used) + prices.transfer_charge(amount.bytes_out, left)
        yield CostLine(kind=kind, amount=amount, units=units, cost=cost)
        used, left = used + units, left + amount.bytes_out
