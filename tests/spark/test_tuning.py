"""Settings for few lines and for many."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from twinbus.spark.runtime.tuning import SMALL_BYTES_MAX, small_input_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPILED = "spark.sql.codegen.wholeStage"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_a_job_leaves_the_session_as_it_was(spark: SparkSession) -> None:
    """C3: the session may be its user's, who has other plans for it."""
    spark.conf.set(COMPILED, "true")
    spark.conf.unset("spark.sql.ui.explainMode")
    known = spark.conf.get(PARTITIONS)

    with suppress(ZeroDivisionError), small_input_settings(spark, size_bytes=1):
        assert spark.conf.get(COMPILED) == "false"
        assert spark.conf.get(PARTITIONS) == "1"
        raise ZeroDivisionError
    with small_input_settings(spark, size_bytes=SMALL_BYTES_MAX + 1):
        assert spark.conf.get(COMPILED) == "true"

    assert spark.conf.get(COMPILED) == "true"
    assert spark.conf.get(PARTITIONS) == known
    assert spark.conf.get("spark.sql.ui.explainMode") == "FORMATTED"
