"""How Spark comes to know the connector."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import SparkPair
from twinbus.errors import ConfigurationError
from twinbus.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def no_pyarrow() -> Iterator[None]:
    """As if it were not installed."""
    before = dict(sys.modules)
    for name in before:
        if name.startswith(("pyarrow.", "twinbus.spark.connector.", "pyspark_servicebus")):
            del sys.modules[name]
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    yield
    sys.modules.clear()
    sys.modules.update(before)


@pytest.mark.usefixtures("no_pyarrow")
def test_the_package_for_spark_never_fails_to_import() -> None:
    assert not hasattr(importlib.import_module("pyspark_servicebus"), "DefaultSource")


@pytest.mark.usefixtures("no_pyarrow")
def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"needs pyarrow.*twinbus\[spark\]"):
        register(None)  # type: ignore[arg-type]


def test_spark_finds_the_connector_by_itself() -> None:
    """What Spark's own search would write back to it."""
    from pyspark.sql.worker import lookup_data_sources

    found = io.BytesIO()
    lookup_data_sources._main(io.BytesIO(), found)
    assert b"servicebus" in found.getvalue()
    assert b"twinbus.spark.connector.source" in found.getvalue()


def test_a_registered_session_reads_and_is_careful(spark: SparkSession, pair: SparkPair) -> None:
    spark.conf.set("spark.sql.redaction.options.regex", "(?i)mine")
    try:
        register(spark)
        register(spark)
        hidden = spark.conf.get("spark.sql.redaction.options.regex")
    finally:
        spark.conf.unset("spark.sql.redaction.options.regex")
    assert hidden is not None and hidden.count("mine") == 1 and "connection" in hidden
    queue = pair.primary.fresh_queue()
    options = {**pair.primary_ref.to_options(), "queue": queue}
    assert spark.read.format("servicebus").options(**options).load().count() == 0
