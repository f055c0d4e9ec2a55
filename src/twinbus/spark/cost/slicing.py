"""From sums by the minute to the rows of a report.

    sums --> in_range --> from_one_source --> with_pair --> by_step --> (priced) --> sliced

Rule 1: an entity ``<primary>/x-servicebus-transfer/<n>`` is a backlog queue of the pair <primary>;
        a ping belongs to the pair whose primary it was sent to.
Rule 2: one query answers everything: sliced() sums by what was asked for, by step and kind, and by
        entity, and marks which is which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from twinbus.core.costs import Operation
from twinbus.entity_path import BACKLOG_SEPARATOR
from twinbus.spark.cost.days import MINUTES_A_DAY, MINUTES_AN_HOUR
from twinbus.spark.cost.lines import AMOUNTS, BROKER, NOT_COUNTED

__all__ = [
    "BY_ENTITY",
    "BY_STEP",
    "WORDS",
    "by_step",
    "from_one_source",
    "in_range",
    "set_numbers",
    "sliced",
    "with_pair",
]

WORDS: Final = ("entity", "namespace", "operation", "day", "hour", "source")
"""What can be asked for with ``--by``."""
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
    """Lines of that source. Without one: the broker's where there are any, so that nothing counts
    twice, and the clients' for all other namespaces."""
    if source is not None:
        return sums.where(F.col("source") == source)
    has_broker = F.col("namespace").isin(sorted(metered_by_broker))
    return sums.where((F.col("source") == BROKER) | ~has_broker)


def with_pair(sums: DataFrame) -> DataFrame:
    """The pair on whose account it is; null for ordinary operations."""
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
    """Three sums of everything; ``which`` tells them apart, see set_numbers()."""
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
