"""From lines to sums: what came twice is counted once, and then by the minute.

    judged lines --> without_copies --> summed_by_minute --> with_day

Rule 1: lines travel between tasks once, and minutes stay together: all copies of a line, and all
        lines of a sum, are of one minute. Few tasks share a day, because each writes a file of it.
Rule 2: damaged lines travel along, so that the logs are read once. They have no day.
Rule 3: a sum is kept by run and by the day in the name of the file: who closed its log, and which
        files make up a day, can be asked later.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.spark.cost.days import MINUTES_A_DAY
from twinbus.spark.cost.lines import AMOUNTS

__all__ = ["summed_by_minute", "with_day", "without_copies"]

_DAMAGE: Final = ("reason", "text", "file")
_NAMES: Final = ("namespace", "source", "run", "entity", "operation")


def without_copies(lines: DataFrame, tasks: int = 1, tasks_a_day: int = 1) -> DataFrame:
    """One row for each line, with the number of its copies.

    Run and number name a line for ever; what else stands in the key is the same in every copy.
    Spark's hash map keeps texts in keys only, and would sort all lines otherwise.
    """
    of_usable = F.expr(f"minute div {MINUTES_A_DAY} * {tasks_a_day} + minute % {tasks_a_day}")
    of_damaged = F.hash("text")
    return (
        lines.withColumn("part", F.coalesce(of_usable, of_damaged).cast("int"))
        .repartition(tasks, "part")
        .groupBy(*_DAMAGE, *_NAMES, "number", "minute", "part")
        .agg(
            F.count(F.lit(1)).alias("copies"),
            F.min("file_day").alias("file_day"),
            F.max("file_day").alias("other_file_day"),
            *(F.max(name).alias(name) for name in AMOUNTS),
            F.max("to_ms").alias("to_ms"),
            F.max("unwritten_units_max").alias("unwritten_units_max"),
        )
    )


def summed_by_minute(lines: DataFrame) -> DataFrame:
    """One row for each minute, run, entity and operation; damaged lines stay as they are."""
    day = F.expr(f"minute div {MINUTES_A_DAY}")
    is_late = (F.col("file_day") >= 0) & (F.col("file_day") != day)
    is_late &= F.col("other_file_day") != day
    return lines.groupBy(*_DAMAGE, *_NAMES, "minute", "part", "file_day").agg(
        F.max("other_file_day").alias("other_file_day"),
        *(F.sum(name).alias(name) for name in AMOUNTS),
        F.count(F.lit(1)).alias("records"),
        F.sum(F.col("copies") - 1).alias("duplicates"),
        F.count(F.when(is_late, 1)).alias("late"),
        F.max("to_ms").alias("to_ms"),
        F.max("unwritten_units_max").alias("unwritten_units_max"),
    )


def with_day(sums: DataFrame) -> DataFrame:
    """The day as a number, null for damaged lines."""
    day = F.expr(f"minute div {MINUTES_A_DAY}").cast("int")
    return sums.drop("part").withColumn("day", day)
