"""What bars are as long as: money, or operations while a sheet charges nothing for them.

A sheet may include the first millions of a month. Whoever stays below them still wants to see
what happened, and not a page of empty plots.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from twinbus.core.cost_report import CostReport, KindCost, Slice
from twinbus.pages.figures import count, decimals_for, money

__all__ = ["FREE", "Measure", "measure_of"]

FREE: Final = "nothing was charged for them"


@dataclass(frozen=True, slots=True)
class Measure:
    """Money in a currency; without one, billable operations."""

    currency: str | None

    @property
    def unit(self) -> str:
        return self.currency or "billable operations"

    def of(self, part: KindCost | Slice) -> Decimal:
        return Decimal(part.units) if self.currency is None else part.cost

    def shown(self, amount: Decimal, largest: Decimal) -> str:
        """An amount with the decimals of the largest beside it."""
        if self.currency is None:
            return count(int(amount))
        return money(amount, self.currency, decimals_for(largest))


def measure_of(report: CostReport) -> Measure:
    is_charged = report.total.cost or any(kind.cost for kind in report.kinds)
    return Measure(report.prices.currency if is_charged else None)
