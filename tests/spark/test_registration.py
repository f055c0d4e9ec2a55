"""How Spark comes to know the connector."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.other_python import python_without_twinbus
from twinbus.errors import ConfigurationError
from twinbus.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def without_pyarrow(code: str) -> str:
    """What the code prints in a process of its own, as if pyarrow were not installed."""
    program = f"import sys; sys.modules['pyarrow'] = None\n{code}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return ended.stdout


def test_the_package_for_spark_never_fails_to_import() -> None:
    told = without_pyarrow("import pyspark_servicebus as it; print(hasattr(it, 'DefaultSource'))")
    assert told == "False\n"


def test_what_is_missing_is_said() -> None:
    told = without_pyarrow(
        "from twinbus.spark import register\n"
        "from twinbus.errors import ConfigurationError\n"
        "try: register(None)\n"
        "except ConfigurationError as error: print(error)\n"
    )
    assert "pyarrow" in told and "twinbus[spark]" in told


def test_spark_finds_the_connector_by_itself() -> None:
    """What Spark's own search would write back to it."""
    from pyspark.sql.worker import lookup_data_sources

    found = io.BytesIO()
    lookup_data_sources._main(io.BytesIO(), found)
    assert b"servicebus" in found.getvalue()
    assert b"twinbus.spark.connector.data_source" in found.getvalue()


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


def test_a_python_of_spark_without_twinbus_is_told_in_one_sentence(
    spark: SparkSession, pair: SparkPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: by register() and by the syphon, before anything else is tried."""
    from twinbus.spark.syphon import SyphonSettings, receipts_of

    python = python_without_twinbus(tmp_path)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    settings = SyphonSettings(
        primary=pair.primary_ref, secondary=pair.secondary_ref, primary_name="x", queues=("q",)
    )
    for attempt in (lambda: register(spark), lambda: receipts_of(spark, settings)):
        with pytest.raises(ConfigurationError) as refused:
            attempt()
        assert str(refused.value) == (
            f"Spark's Python {python!r} cannot import twinbus. Set PYSPARK_PYTHON={sys.executable} "
            "before the session is created, or install twinbus[spark] for that Python."
        )
        assert refused.value.__suppress_context__
