"""What operations cost: a price sheet as values, and the arithmetic on it.

    13,000,000 included | then 0.80 a million | then 0.50 ...     the tiers of one month
              ^ already        ^ already + units                    charge(units, already)

Rule 1: no price stands in the code. A sheet is data with a source and a date.
Rule 2: money is Decimal and exact. Limits on what a sheet may say and on what can be counted keep
        every amount, and sums of them, within the 28 digits that Decimal has by itself.
Rule 3: a charge is the difference between two totals of the month, so that it does not matter
        how operations are split: charge(a + b, p) == charge(a, p) + charge(b, p + a).
Rule 4: prices are never negative, so that more never costs less.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from typing import Final

from twinbus.core.cost_report import PricesUsed
from twinbus.core.costs import Amount, Operation
from twinbus.errors import ConfigurationError

__all__ = [
    "BYTES_MAX",
    "GB",
    "MILLION",
    "UNITS_MAX",
    "Payer",
    "PriceSheet",
    "Tier",
    "money",
]

MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
# Rule 2: a million of these at a price below a million, with six decimals, has 27 digits.
UNITS_MAX: Final = 10**15
BYTES_MAX: Final = 10**18

# Whoever computes with another context still gets exact amounts from here, or an error.
_EXACT: Final = Context(prec=60, traps=[Inexact, InvalidOperation, Overflow])
_CENT: Final = Decimal("0.01")


class Payer(StrEnum):
    """What the base charge is counted by."""

    SUBSCRIPTION = "subscription"
    """Once, however many namespaces there are: a secondary costs nothing by itself."""
    NAMESPACE = "namespace"
    """For each: a secondary costs as much as the primary, outage or not."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A price that holds until so many have been counted in the month."""

    up_to: int | None
    """None for the last: no end."""
    price: Decimal
    """For a million operations, or for a GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSheet:
    """What one kind of namespace costs."""

    name: str
    currency: str
    source: str
    """Where its figures were read."""
    dated: str
    """When they were valid, as YYYY-MM-DD."""
    note: str = ""
    """What a reader of an estimate should know about it, a sentence."""
    base_per_hour: Decimal
    base_for: Payer
    charged: frozenset[Operation]
    """The operations that cost something; the others are counted, and free."""
    operations: tuple[Tier, ...]
    """Prices of a million operations, by how many a month has had."""
    transfer_out: tuple[Tier, ...]
    """Prices of a GB that leaves; ``up_to`` is in bytes."""

    @property
    def used(self) -> PricesUsed:
        """What a report says about it."""
        return PricesUsed(
            name=self.name, currency=self.currency, source=self.source, dated=self.dated
        )

    @property
    def included(self) -> int:
        """So many operations of a month cost nothing; 0 when all are free or none is."""
        first = self.operations[0]
        return first.up_to or 0 if not first.price else 0

    def billable(self, operation: Operation, amount: Amount) -> int:
        """The billable operations in an amount.

        A settlement has no unit in the meter (rule C2 knows four charges for a detour); on a sheet
        that charges it, each settled message is one.
        """
        if operation not in self.charged:
            return 0
        return amount.messages if operation is Operation.SETTLE else amount.units

    def charge(self, units: int, already: int = 0) -> Decimal:
        """What so many billable operations cost in a month that has had ``already`` of them."""
        before, after = _span(units, already, UNITS_MAX, "operations")
        return _between(self.operations, before, after, MILLION)

    def transfer_charge(self, size_bytes: int, already: int = 0) -> Decimal:
        """What it costs that so many bytes leave, in a month in which ``already`` have left."""
        before, after = _span(size_bytes, already, BYTES_MAX, "bytes")
        return _between(self.transfer_out, before, after, GB)

    def base_charge(self, hours: int, namespaces: int = 1) -> Decimal:
        """What is paid for the time itself; hours are paid when they have begun."""
        _, hours = _span(hours, 0, UNITS_MAX, "hours")
        payers = namespaces if self.base_for is Payer.NAMESPACE else min(namespaces, 1)
        return _EXACT.multiply(self.base_per_hour, Decimal(hours * payers))


def money(amount: Decimal) -> str:
    """An amount for people: two decimals, or as many as it takes to see what there is."""
    rounded = amount.quantize(_CENT)
    if rounded == amount or abs(amount) >= 1:
        return f"{rounded:,f}"
    # Two digits that count: 0.0069, not 0.01.
    return f"{amount:.{1 - amount.adjusted()}f}"


def _span(count: int, already: int, count_max: int, what: str) -> tuple[int, int]:
    """From where to where in the month."""
    if count < 0 or already < 0:
        raise ConfigurationError(
            f"{min(count, already)} {what} cannot be priced", hint="Count from 0"
        )
    if already + count > count_max:
        raise ConfigurationError(
            f"more than {count_max:.0e} {what} cannot be priced",
            hint="Ask for a shorter time, a lower rate or smaller messages",
        )
    return already, already + count


def _between(tiers: tuple[Tier, ...], before: int, after: int, step: int) -> Decimal:
    return _EXACT.subtract(_total(tiers, after, step), _total(tiers, before, step))


def _total(tiers: tuple[Tier, ...], count: int, step: int) -> Decimal:
    """What the first ``count`` of a month cost."""
    cost, begin = Decimal(0), 0
    for tier in tiers:
        end = count if tier.up_to is None else min(count, tier.up_to)
        if end > begin:
            # Both steps are powers of ten: the division only moves the point.
            part = _EXACT.divide(_EXACT.multiply(tier.price, Decimal(end - begin)), Decimal(step))
            cost, begin = _EXACT.add(cost, part), end
    return cost
