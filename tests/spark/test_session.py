"""The session on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_local_session_counts(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert spark.sparkContext.uiWebUrl is None
