"""What an outage, a day or a month has cost: the report, as values.

    the job on Spark --> CostReport --> table, JSON, CSV, a page with plots

Rule 1: everything in the totals is in exactly one slice: slices add up.
Rule 2: the report states what is missing: lines that could not be read, duplicate lines, and runs
        whose last lines may be missing.
Rule 3: money is Decimal and is rounded where it is displayed, never before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

__all__ = [
    "CostReport",
    "DetourCost",
    "KindCost",
    "OpenRun",
    "PairCost",
    "PricesUsed",
    "Quality",
    "Slice",
]

NO_COST: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesUsed:
    """Which price sheet was used."""

    name: str
    currency: str
    source: str
    """Where its figures are from."""
    dated: str
    """Their date, as YYYY-MM-DD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One line of the table: an amount, and what it cost."""

    keys: Mapping[str, str]
    """By the words of ``--by``, in their order: entity, namespace, operation, day, hour, source."""
    calls: int = 0
    messages: int = 0
    units: int = 0
    """Billable operations."""
    bytes_in: int = 0
    bytes_out: int = 0
    cost: Decimal = NO_COST


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCost:
    """One kind of operation in one step of time."""

    at: datetime
    """The beginning of the step, UTC."""
    operation: str
    units: int
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class DetourCost:
    """Diverted messages of one pair: into the backlog and out of it, in one step of time."""

    at: datetime
    pair: str
    """The primary's name, as the backlog queues have it in their paths."""
    sent: int
    received: int
    cost: Decimal
    """Of both: the additional cost of the diversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCost:
    """What one pair cost in addition to the messages themselves."""

    pair: str
    detoured_messages: int
    detour_units: int
    """Into the backlog and out of it."""
    ping_units: int
    polling_units: int
    """Empty receives on backlog queues."""
    other_units: int
    """Peeks, management and administration of the backlog queues."""
    cost: Decimal
    """Of all of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run of a broker or client that has not closed its log: it is running, or was killed."""

    namespace: str
    run: str
    source: str
    """``broker`` or ``client``."""
    last_at: datetime
    """The end of its last line."""
    units_missing_max: int
    """How many billable operations can be missing at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How complete the lines are from which the report was computed."""

    records: int = 0
    """Lines that were counted."""
    duplicates: int = 0
    """Lines that were found twice; the second is not counted."""
    late: int = 0
    """Lines in the file of another day; they are counted on their own day."""
    damaged: Mapping[str, int] = field(default_factory=dict)
    """Lines that could not be used, by reason; they are kept in a table of their own."""
    open_runs: tuple[OpenRun, ...] = ()

    @property
    def units_missing_max(self) -> int:
        return sum(run.units_missing_max for run in self.open_runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """The complete report."""

    begins: datetime
    ends: datetime
    """Exclusive. Both UTC."""
    by: tuple[str, ...]
    prices: PricesUsed
    slices: tuple[Slice, ...]
    """Most expensive first; sorted by time when ``by`` begins with day or hour."""
    total: Slice
    """Of all slices; its keys are empty."""
    base_cost: Decimal
    """The base charge of the period, which does not depend on operations; not in the total."""
    step_s: int
    """Length of a step of time in the following fields."""
    kinds: tuple[KindCost, ...]
    detours: tuple[DetourCost, ...]
    idle_share: float
    """Empty receives as a share of all billable operations, 0 to 1."""
    idle_cost: Decimal
    entities: tuple[Slice, ...]
    """The most expensive entities with their namespaces, twelve at most."""
    pairs: tuple[PairCost, ...]
    quality: Quality
