"""What a pair costs while it is idle, and what an outage would cost (rules C2, C3).

    a diverted message     send to backlog, receive from backlog, send to primary, receive from it
    an idle syphon         a long poll of every backlog queue, again and again; where the service
                           ends idle links, one more receive each time that happens
    a diverted entity      a ping from every sender, at once and then once an interval
    a diverted pair        every sender reads the backlog: one listing, and a peek into each queue
                           that holds messages

      0 ......... failover interval ... ping ... ping ... end of the outage ... ping: restored
      |  suspect  |  diverted                                              | diverted_until_ms
                  |  read . read ... read ....... read ........... read .. | and one more

Rule 1: the amounts do not depend on prices, and the prices do not depend on the amounts.
Rule 2: operations that are paid in any case are priced first and the additional ones afterwards,
        so that the overhead has the price of its own tier.
Rule 3: the estimate is rather too high than too low: a ping counts although an unreachable service
        may not charge it, a backlog queue counts as empty while the syphon waits for its first
        message, and as full when a sender reads its oldest one. (Readings for the thresholds
        ``percent_full`` are not included: few queues get half full.)
Rule 4: the month before is priced like the messages: by the price sheet, bytes included.
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

# More than any installation has; a larger number is probably a mistake.
COUNT_MAX: Final = 1_000_000
YEAR_MS: Final = 366 * 24 * HOUR_MS
_LIMITS: Final = {
    "backlog_queues": ("number of backlog queues", 1, COUNT_MAX),
    "poll_ms": ("poll time", 1_000, YEAR_MS),
    "idle_detach_ms": ("idle link timeout", 1_000, YEAR_MS),
    "rate_per_s": ("rate per second", 0, 1_000_000_000),
    # The largest message that any kind of namespace accepts.
    "size_bytes": ("message size", 0, 100 * 1024 * 1024),
    "outage_ms": ("outage duration", 0, YEAR_MS),
    "entities": ("number of entities", 1, COUNT_MAX),
    "senders": ("number of senders", 1, COUNT_MAX),
    "syphons": ("number of syphons", 1, COUNT_MAX),
    "ping_ms": ("ping interval", 1_000, YEAR_MS),
    "failover_ms": ("failover interval", 0, YEAR_MS),
    "batch": ("syphon batch size", 1, COUNT_MAX),
    "used": ("number of operations used", 0, UNITS_MAX),
}

_WHAT_IF_SYPHONS: Final = (1, 2, 3, 5, 10)
_WHAT_IF_POLLS_MS: Final = (60_000, 300_000, 900_000, 1_800_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInput:
    """A pair, its traffic and an outage."""

    backlog_queues: int = 10
    poll_ms: int = 900_000
    """How long the syphon waits at an empty backlog queue (Y3)."""
    idle_detach_ms: int = 600_000
    """After which time a service ends idle links; ten minutes on Azure."""
    rate_per_s: Fraction = Fraction(0)
    """Messages a second, to all entities together."""
    size_bytes: int = 1024
    """Size of a message."""
    outage_ms: int = 0
    entities: int = 1
    """Queues and topics that the senders use."""
    senders: int = 1
    """Processes with a pair: each sends its own pings."""
    syphons: int = 1
    ping_ms: int = 60_000
    failover_ms: int = 60_000
    """How long sends must fail before an entity is diverted (P6)."""
    batch: int = 100
    """Messages in one call of the syphon: it changes the calls, not the charges."""
    used: int | None = None
    """Billable operations of the month so far; None for 30 days of this traffic."""

    def __post_init__(self) -> None:
        for name, (label, least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                got, low, high = (_format(name, each) for each in (value, least, most))
                raise ConfigurationError(
                    f"Invalid value for {label}: {got}", hint=f"Use {low} to {high}"
                )

    @property
    def grants_per_poll(self) -> int:
        """Receives of one poll where idle links end: each new link has its own credit."""
        return -(-self.poll_ms // self.idle_detach_ms)

    @property
    def pings(self) -> int:
        """How many pings one sender sends to one entity: the last one restores it."""
        diverted_ms = self.outage_ms - self.failover_ms
        return -(-diverted_ms // self.ping_ms) + 1 if diverted_ms > 0 else 0

    @property
    def diverted_until_ms(self) -> int:
        """Until when sends go to the backlog: the first ping after the outage ends it."""
        return self.failover_ms + (self.pings - 1) * self.ping_ms if self.pings else 0

    @property
    def backlog_readings(self) -> int:
        """How often one sender reads the backlog (P16): the last time after the diversion.

        While the backlog holds messages after that it goes on, which depends on the syphon.
        """
        if not self.pings:
            return 0
        ages_s = BacklogThresholds().age_s if self.messages else ()
        return polls_within((self.diverted_until_ms - self.failover_ms) / 1000, ages_s) + 1

    @property
    def messages(self) -> int:
        """How many messages are diverted.

        Those of the time before the diversion are included: they are retried until it begins.
        """
        return int(self.rate_per_s * self.diverted_until_ms / 1000)


def _format(name: str, value: int | Fraction) -> str:
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
    """Billable operations, by the price sheet."""
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What idle polling costs, with or without an outage."""

    period: str
    hours: int
    receives: int
    cost: Decimal
    detached_receives: int
    """The same where idle links end."""
    detached_cost: Decimal
    base_cost: Decimal
    """The base charge of the period, for both namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageCost:
    """What the outage costs, and what the same time costs without it."""

    messages: int
    diverted_until_ms: int
    charges_per_message: int
    lines: tuple[CostLine, ...]

    def total(self, *, anyway: bool | None = None) -> tuple[int, Decimal]:
        """Billable operations and cost of all lines, or of those that are (not) paid anyway."""
        lines = [
            line for line in self.lines if anyway is None or (line.kind in PAID_ANYWAY) is anyway
        ]
        return sum(line.units for line in lines), sum((line.cost for line in lines), Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Another number of syphons, another poll time: the idle receives of 30 days."""

    syphons: int
    poll_ms: int
    receives: int
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthBefore:
    """The operations and bytes of the month before the outage: they decide on its price tiers.

    An application that sends all the time has used up the included operations: without them the
    cost of an outage would be too low.
    """

    units: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The complete estimate."""

    plan: EstimateInput
    prices: PriceSheet
    before: MonthBefore
    idle: tuple[Idle, ...]
    outage: OutageCost
    what_if: tuple[WhatIf, ...]
    """Each number of syphons with each poll time, in this order."""


def estimate(plan: EstimateInput, prices: PriceSheet) -> CostEstimate:
    """What this pair costs while it is idle, and what this outage would cost."""
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
    """30 days of this traffic, or as much of it as needs ``plan.used`` operations."""
    one = list(_direct(plan, 1))
    units = sum(prices.billable(operation, amount) for _, operation, amount in one)
    bytes_out = sum(amount.bytes_out for _, _, amount in one)
    if plan.used is None:
        messages = int(plan.rate_per_s * MONTH_HOURS * HOUR_MS / 1000)
        return MonthBefore(units=messages * units, bytes_out=messages * bytes_out)
    messages = plan.used // units if units else 0
    return MonthBefore(units=plan.used, bytes_out=messages * bytes_out)


# -- idle ---------------------------------------------------------------------------------


def idle_receives(plan: EstimateInput, from_ms: int, to_ms: int) -> int:
    """Empty receives of all syphons between two times; the syphons started at 0."""
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
    lines = tuple(_price_operations(_operations(plan), prices, before))
    one = (*_direct(plan, 1), *_diverted(plan, 1))
    return OutageCost(
        messages=plan.messages,
        diverted_until_ms=plan.diverted_until_ms,
        charges_per_message=sum(prices.billable(how, amount) for _, how, amount in one),
        lines=lines,
    )


def _direct(plan: EstimateInput, count: int) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """The operations of ``count`` messages in any case; the application receives one by one."""
    yield CostKind.SEND_PRIMARY, Operation.SEND, messages_in(count, plan.size_bytes, plan.batch)
    yield CostKind.RECEIVE_PRIMARY, Operation.RECEIVE, messages_out(count, plan.size_bytes)
    yield CostKind.COMPLETE_PRIMARY, Operation.SETTLE, Amount(count, count, 0, 0, 0)


def _diverted(plan: EstimateInput, count: int) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """The additional operations of diverted messages; the application sends one by one."""
    yield CostKind.SEND_BACKLOG, Operation.SEND, messages_in(count, plan.size_bytes)
    yield (
        CostKind.RECEIVE_BACKLOG,
        Operation.RECEIVE,
        messages_out(count, plan.size_bytes, plan.batch),
    )
    yield CostKind.COMPLETE_BACKLOG, Operation.SETTLE, Amount(count, count, 0, 0, 0)


def _operations(plan: EstimateInput) -> Iterator[tuple[CostKind, Operation, Amount]]:
    """What is paid in any case, then the rest (rule 2)."""
    yield from _direct(plan, plan.messages)
    polls = idle_receives(plan, 0, plan.outage_ms)
    yield CostKind.IDLE_POLLS, Operation.EMPTY_RECEIVE, requests(polls)
    # Each sender requests each backlog queue and the first one creates them; then each reads the
    # backlog once, for messages that an earlier process has left.
    queue_requests = plan.backlog_queues * (plan.senders + 1)
    yield CostKind.PAIRING, Operation.ADMINISTRATION, requests(queue_requests + plan.senders)

    yield from _diverted(plan, plan.messages)
    pings = plan.entities * plan.senders * plan.pings
    yield CostKind.PINGS, Operation.PING, messages_in(pings, 0)
    readings = plan.senders * plan.backlog_readings
    yield CostKind.WATCH, Operation.ADMINISTRATION, requests(readings)
    peeks = readings * min(plan.backlog_queues, plan.messages)
    yield CostKind.WATCH_PEEKS, Operation.PEEK, messages_out(peeks, plan.size_bytes)


def _price_operations(
    operations: Iterable[tuple[CostKind, Operation, Amount]],
    prices: PriceSheet,
    before: MonthBefore,
) -> Iterator[CostLine]:
    """The lines with their costs, in the order of the month; without free settlements."""
    used, left = before.units, before.bytes_out
    for kind, operation, amount in operations:
        if operation is Operation.SETTLE and operation not in prices.charged:
            continue
        units = prices.billable(operation, amount)
        cost = prices.charge(units, used) + prices.transfer_charge(amount.bytes_out, left)
        yield CostLine(kind=kind, amount=amount, units=units, cost=cost)
        used, left = used + units, left + amount.bytes_out
