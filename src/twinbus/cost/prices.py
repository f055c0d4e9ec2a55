"""Price sheets: their arithmetic, and how they are read from TOML.

    13,000,000 included | then 0.80 a million | then 0.50 ...     the tiers of one month
              ^ already        ^ already + units                    charge(units, already)

A price sheet as TOML:

    name = "standard"                                  [[operations]]
    currency = "USD"                                   up_to = 13_000_000
    source = "https://…"                               per_million = 0
    dated = 2026-11-16                                 [[operations]]
    charged = ["send", "receive", …]                   per_million = 0.80
    [base]                                             [[transfer_out]]
    per_hour = 0.0135                                  up_to_gb = 100
    for = "subscription"                               per_gb = 0

Rule 1: no price is in the code. A price sheet is data with a source and a date.
Rule 2: money is Decimal and exact. Limits for the values of a sheet and for counts keep every
        amount, and sums of them, within the 28 digits that Decimal has by default.
Rule 3: a charge is the difference between two totals of the month, so that it does not matter
        how operations are split: charge(a + b, p) == charge(a, p) + charge(b, p + a).
Rule 4: prices are never negative, so that more never costs less.
Rule 5: an error about a sheet names the key.
Rule 6: an unknown key is an error, too: a misspelt one would make something free.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from typing import Any, Final, NoReturn

from twinbus.cost.report import PricesUsed
from twinbus.cost.units import Amount, Operation
from twinbus.errors import ConfigurationError

__all__ = [
    "BYTES_MAX",
    "GB",
    "MILLION",
    "UNITS_MAX",
    "Payer",
    "PriceSheet",
    "Tier",
    "build_sheet",
    "money",
    "read_price_sheet",
]

MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
# Rule 2: a million of these at a price below a million, with six decimals, has 27 digits.
UNITS_MAX: Final = 10**15
BYTES_MAX: Final = 10**18

# With any context of the caller, amounts from here are exact, or an error is raised.
_EXACT: Final = Context(prec=60, traps=[Inexact, InvalidOperation, Overflow])
_CENT: Final = Decimal("0.01")


class Payer(StrEnum):
    """What the base charge is paid for."""

    SUBSCRIPTION = "subscription"
    """Once, for any number of namespaces: a secondary has no base charge of its own."""
    NAMESPACE = "namespace"
    """For each namespace: a secondary costs as much as the primary, with or without an outage."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A price that is valid until ``up_to`` have been counted in the month."""

    up_to: int | None
    """None for the last tier."""
    price: Decimal
    """For a million operations, or for a GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSheet:
    """What one kind of namespace costs."""

    name: str
    currency: str
    source: str
    """Where its figures are from."""
    dated: str
    """When they were valid, as YYYY-MM-DD."""
    note: str = ""
    """A remark for the readers of an estimate, one sentence."""
    base_per_hour: Decimal
    base_for: Payer
    charged: frozenset[Operation]
    """The operations that are charged; the others are counted and free."""
    operations: tuple[Tier, ...]
    """Prices of a million operations, by their number in the month."""
    transfer_out: tuple[Tier, ...]
    """Prices of an outgoing GB; ``up_to`` is in bytes."""

    @property
    def used(self) -> PricesUsed:
        """What a report contains about it."""
        return PricesUsed(
            name=self.name, currency=self.currency, source=self.source, dated=self.dated
        )

    @property
    def included(self) -> int:
        """How many operations of a month are free; 0 when all are or none is."""
        first = self.operations[0]
        return first.up_to or 0 if not first.price else 0

    def billable(self, operation: Operation, amount: Amount) -> int:
        """The billable operations in an amount.

        A settlement has no unit in the meter (rule C2: four charges for a diverted message); on a
        sheet that charges settlements, each settled message is one.
        """
        if operation not in self.charged:
            return 0
        return amount.messages if operation is Operation.SETTLE else amount.units

    def charge(self, units: int, already: int = 0) -> Decimal:
        """What ``units`` billable operations cost in a month that already had ``already``."""
        before, after = _span(units, already, UNITS_MAX, "operations")
        return _between(self.operations, before, after, MILLION)

    def transfer_charge(self, size_bytes: int, already: int = 0) -> Decimal:
        """What outgoing bytes cost, in a month that already had ``already`` of them."""
        before, after = _span(size_bytes, already, BYTES_MAX, "bytes")
        return _between(self.transfer_out, before, after, GB)

    def base_charge(self, hours: int, namespaces: int = 1) -> Decimal:
        """The base charge; an hour is paid when it has begun."""
        _, hours = _span(hours, 0, UNITS_MAX, "hours")
        payers = namespaces if self.base_for is Payer.NAMESPACE else min(namespaces, 1)
        return _EXACT.multiply(self.base_per_hour, Decimal(hours * payers))


def money(amount: Decimal) -> str:
    """An amount for people: two decimals, or as many as a small amount needs."""
    rounded = amount.quantize(_CENT)
    if rounded == amount or abs(amount) >= 1:
        return f"{rounded:,f}"
    # Two significant digits: 0.0069, not 0.01.
    return f"{amount:.{1 - amount.adjusted()}f}"


def _span(count: int, already: int, count_max: int, what: str) -> tuple[int, int]:
    """The counts of the month before and after."""
    if count < 0 or already < 0:
        raise ConfigurationError(
            f"A negative number of {what} cannot be priced: {min(count, already)}",
            hint="Use 0 or more",
        )
    if already + count > count_max:
        raise ConfigurationError(
            f"More than {count_max:.0e} {what} cannot be priced",
            hint="Use a shorter time, a lower rate or smaller messages",
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


# With these limits no amount has more digits than Decimal keeps (rule 2).
DECIMALS_MAX: Final = 6
PRICE_END: Final = 1_000_000
PRICE_PER_GB_END: Final = 10_000
TEXT_MAX: Final = 500
TIERS_MAX: Final = 20

_KEYS: Final = {"name", "currency", "source", "dated", "charged", "base", "operations"}
_OPTIONAL: Final = {"transfer_out", "note"}
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def read_price_sheet(text: str, where: str) -> PriceSheet:
    """The price sheet in a TOML text; ``where`` is its name in errors."""
    try:
        # Not as floats: 0.80 has to be 0.80.
        entries = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        is_syntax = isinstance(error, tomllib.TOMLDecodeError)
        reason = str(error) if is_syntax else "a value is too large"
        raise ConfigurationError(
            f"Price sheet {where!r} is not valid TOML: {reason}", hint="See docs/COSTS.md"
        ) from None
    return build_sheet(entries, where)


def build_sheet(entries: Mapping[str, Any], where: str) -> PriceSheet:
    """The price sheet with these entries."""
    return _Reader(where).sheet(entries)


class _Reader:
    """Reads one sheet; ``where`` is its name in errors."""

    def __init__(self, where: str) -> None:
        self._where = where

    def sheet(self, entries: Mapping[str, Any]) -> PriceSheet:
        self._check_keys("", entries, _KEYS, _OPTIONAL)
        base = entries["base"]
        self._check_keys("base", base, {"per_hour", "for"}, set())
        currency = self._text("currency", entries["currency"])
        if _CURRENCY.fullmatch(currency) is None:
            self._refuse("currency", "must be three capital letters, for example USD")
        return PriceSheet(
            name=self._text("name", entries["name"]),
            currency=currency,
            source=self._text("source", entries["source"]),
            dated=self._date("dated", entries["dated"]),
            note=self._text("note", entries["note"]) if "note" in entries else "",
            base_per_hour=self._price("base.per_hour", base["per_hour"], PRICE_END),
            base_for=self._payer("base.for", base["for"]),
            charged=self._charged("charged", entries["charged"]),
            operations=self._operations(entries["operations"]),
            transfer_out=self._transfer_out(entries.get("transfer_out", [])),
        )

    # -- tiers ----------------------------------------------------------------------------

    def _operations(self, tiers: Any) -> tuple[Tier, ...]:
        return self._tiers("operations", tiers, "up_to", "per_million", PRICE_END, 1, UNITS_MAX)

    def _transfer_out(self, tiers: Any) -> tuple[Tier, ...]:
        if tiers == []:
            return (Tier(None, Decimal(0)),)
        return self._tiers(
            "transfer_out", tiers, "up_to_gb", "per_gb", PRICE_PER_GB_END, GB, BYTES_MAX
        )

    def _tiers(
        self, key: str, tiers: Any, end: str, price: str, price_end: int, step: int, count_max: int
    ) -> tuple[Tier, ...]:
        if not isinstance(tiers, list) or not 1 <= len(tiers) <= TIERS_MAX:
            self._refuse(key, f"must be a list of 1 to {TIERS_MAX} tables [[{key}]]")
        result: list[Tier] = []
        begin = 0
        for number, tier in enumerate(tiers, 1):
            name, is_last = f"{key}[{number}]", number == len(tiers)
            self._check_keys(name, tier, {price} if is_last else {price, end}, set())
            up_to = None if is_last else self._count(f"{name}.{end}", tier[end], count_max // step)
            if up_to is not None:
                up_to *= step
                if up_to <= begin:
                    self._refuse(f"{name}.{end}", "must be greater than in the tier before")
                begin = up_to
            result.append(Tier(up_to, self._price(f"{name}.{price}", tier[price], price_end)))
        return tuple(result)

    # -- values ---------------------------------------------------------------------------

    def _check_keys(self, name: str, table: Any, wanted: set[str], optional: set[str]) -> None:
        if not isinstance(table, Mapping):
            self._refuse(name, "must be a table")
        prefix = f"{name}." if name else ""
        for key in sorted(wanted - set(table)):
            self._refuse(f"{prefix}{key}", "is missing")
        for key in sorted(set(table) - wanted - optional):
            self._refuse(f"{prefix}{key:.40}", "is not an allowed key")

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self._refuse(key, "must be one line of text")
        if len(value) > TEXT_MAX:
            self._refuse(key, f"must have at most {TEXT_MAX} characters")
        return value

    def _date(self, key: str, value: Any) -> str:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        try:
            if not isinstance(value, str) or _DATE.fullmatch(value) is None:
                raise ValueError
            return date.fromisoformat(value).isoformat()
        except ValueError:
            self._refuse(key, "must be a date, for example 2026-11-16")

    def _payer(self, key: str, value: Any) -> Payer:
        if value not in tuple(Payer):
            self._refuse(key, f"must be {' or '.join(Payer)}")
        return Payer(value)

    def _charged(self, key: str, value: Any) -> frozenset[Operation]:
        if not isinstance(value, list):
            self._refuse(key, "must be a list of operations")
        for each in value:
            if each not in tuple(Operation):
                self._refuse(key, f"contains {each!r:.40}; allowed are {', '.join(Operation)}")
        return frozenset(map(Operation, value))

    def _count(self, key: str, value: Any, count_max: int) -> int:
        # True is an int in Python, but not in a price sheet.
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= count_max:
            self._refuse(key, f"must be a whole number from 1 to {count_max:,}")
        return value

    def _price(self, key: str, value: Any, end: int) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            self._refuse(key, "must be a number")
        price = Decimal(value)
        if not price.is_finite() or not 0 <= price < end:
            self._refuse(key, f"must be a number from 0 to less than {end:,}")
        # Also for -0, and for a 0 with a thousand decimals.
        price = price or Decimal(0)
        exponent = price.as_tuple().exponent
        if isinstance(exponent, int) and -exponent > DECIMALS_MAX:
            self._refuse(key, f"must have at most {DECIMALS_MAX} decimals")
        return price

    def _refuse(self, key: str, fault: str) -> NoReturn:
        subject = f"Key {key!r} in price sheet" if key else "Price sheet"
        raise ConfigurationError(f"{subject} {self._where!r} {fault}", hint="See docs/COSTS.md")
