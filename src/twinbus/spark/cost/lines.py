"""Lines of operations logs, read and judged: each is usable, or damaged for one reason.

    text --> with_fields --> judged

Rule 1: a damaged line never stops a report. It keeps its text, its file and its reason, and
        nothing else of it is believed.
Rule 2: nothing here depends on the time zone or the clock of whoever computes: times are UTC, and
        what is absurd does not change with the day on which somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from twinbus.core.costs import Amount, Operation
from twinbus.metering.operations import CLOSED, OPENED, RECORD_VERSION

__all__ = [
    "AMOUNTS",
    "BROKER",
    "CLIENT",
    "CLOSED",
    "NO_DAY",
    "OPENED",
    "judged",
    "literal_path",
    "read_lines",
    "with_fields",
]

AMOUNTS: Final = Amount._fields


BROKER: Final = "broker"
CLIENT: Final = "client"
NO_DAY: Final = -1
"""The day of a file whose name has none."""

_CORRUPT: Final = "corrupt"
_LINE: Final = StructType(
    [
        StructField("version", IntegerType()),
        StructField("run", StringType()),
        StructField("number", LongType()),
        StructField("from", StringType()),
        StructField("to", StringType()),
        StructField("namespace", StringType()),
        StructField("entity", StringType()),
        StructField("operation", StringType()),
        StructField("source", StringType()),
        *(StructField(name, LongType()) for name in AMOUNTS),
        StructField("unwritten_units_max", LongType()),
        StructField(_CORRUPT, StringType()),
    ]
)
_NEEDED: Final = ("run", "number", "from", "to", "namespace", "entity", "operation", *AMOUNTS)

# The service is from 2010, and a line counts some seconds.
_YEARS: Final = (2010, 2100)
_INTERVAL_MS_MAX: Final = 24 * 3_600_000
# In one line, which is about ten seconds; sums of them stay far below what prices can be
# computed for.
_AMOUNT_MAX: Final = 10**12


def read_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Every line of these files, with its file and the day that the file's name says."""
    lines = spark.read.text([literal_path(path) for path in paths], lineSep="\n")
    stem = F.substring_index(F.col("_metadata.file_name"), ".", 1)
    file_day = F.unix_date(F.right(stem, F.lit(10)).try_cast("date"))
    return lines.where(F.length("value") > 0).select(
        F.col("value").alias("text"),
        F.col("_metadata.file_path").alias("file"),
        F.coalesce(file_day, F.lit(NO_DAY)).alias("file_day"),
    )


def literal_path(path: str | Path) -> str:
    """A path that Spark does not take for a pattern."""
    return "".join(f"\\{char}" if char in "\\*?[]{}" else char for char in str(path))


def with_fields(lines: DataFrame) -> DataFrame:
    """The fields of a line as columns; null what it does not have."""
    parsed = F.from_json("text", _LINE, {"columnNameOfCorruptRecord": _CORRUPT})
    return lines.select("file", "file_day", "text", parsed.alias("line")).select(
        "file", "file_day", "text", "line.*"
    )


def judged(lines: DataFrame) -> DataFrame:
    """Usable lines with their minute, damaged ones with their reason."""
    timed = (
        lines.withColumn("source", F.coalesce("source", F.lit(BROKER)))
        .withColumn("from_ms", _ms("from"))
        .withColumn("to_ms", _ms("to"))
        .withColumn("reason", _reason())
    )
    is_damaged = F.col("reason").isNotNull()

    def of_damaged(name: str) -> Column:
        return F.when(is_damaged, F.col(name)).alias(name)

    def of_usable(value: Column, name: str) -> Column:
        return F.when(~is_damaged, value).alias(name)

    names = ("namespace", "source", "run", "number", "entity", "operation", *AMOUNTS)
    return timed.select(
        "reason",
        of_damaged("text"),
        of_damaged("file"),
        "file_day",
        of_usable(F.expr("from_ms div 60000").cast("int"), "minute"),
        *(of_usable(F.col(name), name) for name in names),
        of_usable(F.col("to_ms"), "to_ms"),
        "unwritten_units_max",
    )


def _ms(name: str) -> Column:
    """A time as the logs write it, in milliseconds; null for what is written otherwise."""
    return F.when(
        F.col(name).endswith("Z"), F.unix_millis(F.col(name).try_cast("timestamp"))
    )  # fmt: skip


def _reason() -> Column:
    """The first of these that is true."""
    kinds = [*(operation.value for operation in Operation), OPENED, CLOSED]
    amounts = [F.col(name) for name in ("number", *AMOUNTS)]
    first, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in _YEARS)
    is_corrupt = F.col(_CORRUPT).isNotNull()
    begin, stop = F.col("from_ms"), F.col("to_ms")
    return (
        F.when(is_corrupt & F.col("version").isNull(), "not a line of JSON with a version")
        .when(is_corrupt, "a field of another type")
        .when(F.col("version").isNull(), "a field is missing")
        .when(F.col("version") != RECORD_VERSION, "unknown version")
        .when(_any(F.col(name).isNull() for name in _NEEDED), "a field is missing")
        .when(~F.col("operation").isin(kinds), "unknown operation")
        .when(~F.col("source").isin(BROKER, CLIENT), "unknown source")
        .when(_any(amount < 0 for amount in amounts), "a negative number")
        .when(_any(amount > _AMOUNT_MAX for amount in amounts), "an absurd number")
        .when(begin.isNull() | stop.isNull(), "a time that is none")
        .when(begin > stop, "it ends before it begins")
        .when((begin < first) | (stop >= end), "an absurd time")
        .when(stop - begin > _INTERVAL_MS_MAX, "an absurd time")
    )


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)
