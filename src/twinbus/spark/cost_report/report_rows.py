"""The rows of a report: from sums by the minute to rows with costs, and to the values of a report.

    sums --> in_range --> from_one_source --> with_pair --> by_step --> priced --> sliced
    --> Answers

Rule 1: an entity ``<primary>/x-servicebus-transfer/<n>`` is a backlog queue of the pair <primary>;
        a ping belongs to the pair whose primary it was sent to.
Rule 2: one query computes everything: sliced() sums by the requested keys, by step and kind, and by
        entity, and marks each row with its kind of sum.
Rule 3: prices are computed by twinbus.cost.prices. Here they are only multiplied.
Rule 4: a day's charge depends on the usage of the month before it, as far as the logs contain it.
        Within a day every operation costs the same.
Rule 5: money is Decimal, with 20 decimal places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegerType, StructField, StructType

from twinbus.common.entity_path import BACKLOG_SEPARATOR
from twinbus.cost.prices import PriceSheet
from twinbus.cost.report import DetourCost, KindCost, OpenRun, PairCost, Quality, Slice
from twinbus.cost.units import Operation
from twinbus.spark.cost_report.line_parser import AMOUNTS, BROKER, NOT_COUNTED
from twinbus.spark.cost_report.log_files import (
    MINUTES_A_DAY,
    MINUTES_AN_HOUR,
    day_named,
    day_number,
    moment_of_minute,
)

__all__ = [
    "BY_ENTITY",
    "BY_STEP",
    "WORDS",
    "Answers",
    "Consumed",
    "DayPrice",
    "by_step",
    "day_prices",
    "from_one_source",
    "in_range",
    "priced",
    "prices_on",
    "set_numbers",
    "sliced",
    "with_pair",
]

WORDS: Final = ("entity", "namespace", "operation", "day", "hour", "source")
"""The values of ``--by``."""
COUNTS: Final = (*AMOUNTS, "records", "duplicates", "late")
BY_STEP: Final = ("step", "operation", "pair")
BY_ENTITY: Final = ("namespace", "entity")
_KEYS: Final = ("step", "day", "hour", "namespace", "entity", "operation", "source", "pair")


def in_range(sums: DataFrame, first_minute: int, end_minute: int) -> DataFrame:
    """Operations of these minutes, the last one not included."""
    minute = F.col("minute")
    is_operation = ~F.col("operation").isin(*NOT_COUNTED)
    return sums.where((minute >= first_minute) & (minute < end_minute) & is_operation)


def from_one_source(
    sums: DataFrame, source: str | None, metered_by_broker: Collection[str]
) -> DataFrame:
    """Lines of that source. Without a source: the broker's where there are any, so that nothing
    counts twice, and the clients' for all other namespaces."""
    if source is not None:
        return sums.where(F.col("source") == source)
    has_broker = F.col("namespace").isin(sorted(metered_by_broker))
    return sums.where((F.col("source") == BROKER) | ~has_broker)


def with_pair(sums: DataFrame) -> DataFrame:
    """With the pair that causes the operation; null for ordinary operations."""
    primary = F.substring_index("entity", BACKLOG_SEPARATOR, 1)
    return sums.withColumn(
        "pair",
        F.when(F.col("entity").contains(BACKLOG_SEPARATOR), primary).when(
            F.col("operation") == Operation.PING.value, F.col("namespace")
        ),
    )


def by_step(sums: DataFrame, step_minutes: int, *, has_hours: bool = False) -> DataFrame:
    """Few rows: minutes become steps of time, which never cross midnight."""
    hour = _floor("minute", MINUTES_AN_HOUR) if has_hours else F.lit(0)
    return (
        sums.withColumn("step", _floor("minute", step_minutes))
        .withColumn("day", F.expr(f"minute div {MINUTES_A_DAY}").cast("int"))
        .withColumn("hour", hour.cast("int"))
        .groupBy(*_KEYS)
        .agg(*(F.sum(name).alias(name) for name in COUNTS))
    )


def _floor(name: str, step: int) -> Column:
    return F.expr(f"{name} div {step} * {step}").cast("int")


def sliced(sums: DataFrame, by: Sequence[str]) -> DataFrame:
    """Three sums of everything; ``which`` distinguishes them, see set_numbers()."""
    sets = {frozenset(names): list(names) for names in (by, BY_STEP, BY_ENTITY)}
    keys = _keys(by)
    grouped = sums.groupingSets([[F.col(n) for n in names] for names in sets.values()], *keys)
    counts = [F.sum(name).alias(name) for name in (*COUNTS, "cost")]
    return grouped.agg(F.grouping_id().alias("which"), *counts)


def set_numbers(by: Sequence[str]) -> Mapping[tuple[str, ...], int]:
    """The value of ``which`` for each of the sums: a bit for every key that is left out."""
    keys = _keys(by)
    return {
        tuple(names): sum(1 << at for at, key in enumerate(reversed(keys)) if key not in names)
        for names in (by, BY_STEP, BY_ENTITY)
    }


def _keys(by: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*by, *BY_STEP, *BY_ENTITY)))


ENTITIES_MAX: Final = 12
_COUNTS: Final = ("calls", "messages", "units", "bytes_in", "bytes_out", "cost")
_TIMES: Final = ("day", "hour")
_DETOUR: Final = (Operation.SEND.value, Operation.RECEIVE.value)


class Answers:
    """The result of the one query of a report."""

    def __init__(self, rows: Sequence[Row], by: tuple[str, ...]) -> None:
        sets = set_numbers(by)
        self._by = by
        self._slices = [row for row in rows if row.which == sets[by]]
        self._steps = [row for row in rows if row.which == sets[BY_STEP]]
        self._entities = [row for row in rows if row.which == sets[BY_ENTITY]]

    def __bool__(self) -> bool:
        return bool(self._slices)

    def slices(self) -> tuple[Slice, ...]:
        """Most expensive first; sorted by time before that if it is the first key."""
        found = [_slice({word: _shown(word, row[word]) for word in self._by}, row)
                 for row in self._slices]  # fmt: skip
        found.sort(key=_expensive_first)
        if self._by[0] in _TIMES:
            found.sort(key=lambda each: each.keys[self._by[0]])
        return tuple(found)

    def total(self) -> Slice:
        return Slice(keys={}, **{name: _sum(self._slices, name) for name in _COUNTS})

    def entities(self) -> tuple[Slice, ...]:
        """The most expensive ones."""
        found = [_slice({name: row[name] for name in BY_ENTITY}, row) for row in self._entities]
        return tuple(sorted(found, key=_expensive_first)[:ENTITIES_MAX])

    def namespaces(self) -> set[str]:
        return {row.namespace for row in self._entities}

    def kinds(self) -> tuple[KindCost, ...]:
        return tuple(
            KindCost(
                at=moment_of_minute(step),
                operation=operation,
                units=_sum(rows, "units"),
                cost=_sum(rows, "cost"),
            )
            for (step, operation), rows in _grouped(self._steps, "step", "operation")
            if any(row.units or row.cost for row in rows)
        )

    def detours(self) -> tuple[DetourCost, ...]:
        found = [row for row in self._of_pairs() if row.operation in _DETOUR]
        return tuple(
            DetourCost(
                at=moment_of_minute(step),
                pair=pair,
                sent=_sum(_of(rows, Operation.SEND), "messages"),
                received=_sum(_of(rows, Operation.RECEIVE), "messages"),
                cost=_sum(rows, "cost"),
            )
            for (step, pair), rows in _grouped(found, "step", "pair")
        )

    def pairs(self) -> tuple[PairCost, ...]:
        """The costs of each pair in addition to its messages, most expensive first."""
        found = []
        for (pair,), rows in _grouped(self._of_pairs(), "pair"):
            into, out = _of(rows, Operation.SEND), _of(rows, Operation.RECEIVE)
            pings, polls = _of(rows, Operation.PING), _of(rows, Operation.EMPTY_RECEIVE)
            named = sum(_sum(each, "units") for each in (into, out, pings, polls))
            found.append(
                PairCost(
                    pair=pair,
                    detoured_messages=_sum(into, "messages"),
                    detour_units=_sum(into, "units") + _sum(out, "units"),
                    ping_units=_sum(pings, "units"),
                    polling_units=_sum(polls, "units"),
                    other_units=_sum(rows, "units") - named,
                    cost=_sum(rows, "cost"),
                )
            )
        return tuple(sorted(found, key=lambda each: (-each.cost, each.pair)))

    def _of_pairs(self) -> list[Row]:
        return [row for row in self._steps if row.pair is not None]

    def idle_share(self) -> float:
        units = _sum(self._steps, "units")
        return _sum(_of(self._steps, Operation.EMPTY_RECEIVE), "units") / units if units else 0.0

    def idle_cost(self) -> Decimal:
        cost: Decimal = _sum(_of(self._steps, Operation.EMPTY_RECEIVE), "cost")
        return cost

    def quality(self, damaged: Mapping[str, int], open_runs: tuple[OpenRun, ...]) -> Quality:
        return Quality(
            records=_sum(self._slices, "records"),
            duplicates=_sum(self._slices, "duplicates"),
            late=_sum(self._slices, "late"),
            damaged=dict(damaged),
            open_runs=open_runs,
        )


def _slice(keys: Mapping[str, str], row: Row) -> Slice:
    return Slice(keys=keys, **{name: row[name] for name in _COUNTS})


def _shown(word: str, value: Any) -> str:
    if word == "day":
        return day_named(value)
    if word == "hour":
        return moment_of_minute(value).strftime("%Y-%m-%d %H:00")
    return str(value)


def _expensive_first(each: Slice) -> tuple[Decimal, int, tuple[str, ...]]:
    return -each.cost, -each.units, tuple(each.keys.values())


def _of(rows: Iterable[Row], operation: Operation) -> list[Row]:
    return [row for row in rows if row.operation == operation.value]


def _sum(rows: Iterable[Row], name: str) -> Any:
    return sum((row[name] for row in rows), Decimal(0) if name == "cost" else 0)


def _grouped(rows: Iterable[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """Rows by the values of these columns, in their order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return sorted(groups.items(), key=lambda item: item[0])


# A sum of two products of both has 38 digits, which is all that Spark can hold: nothing is
# rounded. A count of 14 digits is 100 TB in one step of one entity.
_PRICE: Final = DecimalType(22, 20)
_COUNT: Final = DecimalType(14, 0)
_PLACES: Final = Decimal(1).scaleb(-_PRICE.scale)
_CONTEXT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)


class Consumed(NamedTuple):
    """The billable usage of a day."""

    units: int
    bytes_out: int


class DayPrice(NamedTuple):
    """The price of one unit and of one byte on a day."""

    unit: Decimal
    byte_out: Decimal


def day_prices(
    consumed: Mapping[str, Consumed], sheet: PriceSheet, already: int = 0
) -> dict[str, DayPrice]:
    """By day; ``already`` are the units of the first month before its first day."""
    prices: dict[str, DayPrice] = {}
    month, units, size = "", already, 0
    for day in sorted(consumed):
        if month and day[:7] != month:
            units, size = 0, 0
        month = day[:7]
        had = consumed[day]
        prices[day] = DayPrice(
            _share(sheet.charge(had.units, units), had.units),
            _share(sheet.transfer_charge(had.bytes_out, size), had.bytes_out),
        )
        units, size = units + had.units, size + had.bytes_out
    return prices


def _share(charge: Decimal, count: int) -> Decimal:
    if not count:
        return Decimal(0)
    return _CONTEXT.divide(charge, Decimal(count)).quantize(_PLACES, context=_CONTEXT)


def prices_on(spark: SparkSession, prices: Mapping[str, DayPrice]) -> DataFrame:
    """Prices by the number of their day."""
    schema = StructType(
        [
            StructField("day", IntegerType(), nullable=False),
            StructField("unit_price", _PRICE, nullable=False),
            StructField("byte_price", _PRICE, nullable=False),
        ]
    )
    return spark.createDataFrame([(day_number(day), *each) for day, each in prices.items()], schema)


def priced(sums: DataFrame, prices: DataFrame, sheet: PriceSheet) -> DataFrame:
    """With the cost of each row, in ``cost``."""
    operation = F.col("operation")
    # As PriceSheet.billable() has it: a settlement is charged by message, if at all.
    counted = F.when(operation == Operation.SETTLE.value, F.col("messages")).otherwise(
        F.col("units")
    )
    charged = operation.isin(sorted(each.value for each in sheet.charged))
    billable = F.when(charged, counted).otherwise(F.lit(0)).cast(_COUNT)
    cost = billable * F.col("unit_price") + F.col("bytes_out").cast(_COUNT) * F.col("byte_price")
    return (
        sums.join(F.broadcast(prices), on="day", how="left")
        .withColumn("cost", cost)
        .drop("unit_price", "byte_price")
    )
