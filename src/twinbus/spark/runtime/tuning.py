"""Settings of a Spark session for small inputs: few lines are read in less time than a plan for
many is compiled and adapted.

Rule 1: the session has its former settings again when a job is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SMALL_BYTES_MAX", "done", "empty", "small_input_settings"]

# Some ten thousand lines: beyond it compiled plans have caught up.
SMALL_BYTES_MAX: Final = 8 << 20
_ALWAYS: Final = {
    # Names of entities have no letters beyond ASCII; the tables for all others take two seconds.
    "spark.sql.icu.caseMappings.enabled": "false",
    # Each plan is also formatted as text for listeners, which nothing here reads.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
}
_FOR_FEW: Final = {
    **_ALWAYS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Every task has to unpack the plan, and that takes it longer than its lines.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}


@contextmanager
def small_input_settings(spark: SparkSession, size_bytes: int) -> Iterator[None]:
    """Settings for logs of this size."""
    settings = _FOR_FEW if size_bytes <= SMALL_BYTES_MAX else _ALWAYS
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)


def empty(spark: SparkSession, columns: str) -> DataFrame:
    """A table that has no rows by its plan: joins with it cost nothing."""
    nothing = [
        F.lit(None).cast(kind).alias(name) for name, kind in map(str.split, columns.split(", "))
    ]
    return spark.range(1).where("false").select(*nothing)


def done(table: DataFrame) -> DataFrame:
    """A step that is computed once. The following steps do not contain its plan: Spark analyses
    the whole plan whenever a step is added, which takes longer than the lines."""
    return table.localCheckpoint(eager=False)
