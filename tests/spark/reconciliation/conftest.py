"""The session of all tests, with the settings that the books choose for few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    from twinbus.spark.runtime.tuning import small_input_settings

    with small_input_settings(spark, size_bytes=0):
        yield spark
