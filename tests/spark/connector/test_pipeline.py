"""Queue -> Parquet -> queue, with a driver that is killed on the way."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.connector.doomed import die
from tests.spark.connector.doomed_app import MESSAGES_PER_BATCH
from tests.spark.connector.scene import fill, ids, left, taken
from twinbus.spark import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK_S = 5.0
QUERY_S_MAX = 100


@pytest.mark.timeout(300)
def test_a_driver_killed_between_writing_and_settling_repeats_and_never_loses(
    spark: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """S1 and S2: everything comes through the pipeline, and what comes twice is one batch."""
    # Given 500 messages, and an application that dies when it has written its second batch
    register(spark)
    source = pair.primary.fresh_queue(lock_duration_ms=int(LOCK_S * 1_000))
    target = pair.primary.fresh_queue()
    fill(pair.primary, source, ids(500))
    die("written", pair.primary_file, source, tmp_path)
    assert left(pair.primary, source) > 500 - 2 * MESSAGES_PER_BATCH
    time.sleep(LOCK_S)

    # When another one goes on from the same checkpoint, and a second query sends all of it
    bring_home(spark, pair, source, tmp_path)
    send_on(spark, pair, target, tmp_path)

    # Then nothing is missing, and at most one batch was repeated
    found = Counter(taken(pair.primary, target))
    assert set(found) == set(ids(500))
    assert 1 <= sum(found.values()) - 500 <= MESSAGES_PER_BATCH
    assert left(pair.primary, source) == 0


def bring_home(spark: SparkSession, pair: SparkPair, queue: str, directory: Path) -> None:
    def write(frame: DataFrame, _epoch: int) -> None:
        frame.write.mode("append").parquet(str(directory / "output"))

    query = (
        spark.readStream.format("servicebus")
        .options(**pair.primary_ref.to_options(), queue=queue)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_S_MAX)


def send_on(spark: SparkSession, pair: SparkPair, queue: str, directory: Path) -> None:
    written = spark.read.parquet(str(directory / "output"))
    (
        written.select("body", "messageId", "properties", "propertyTypes")
        .write.format("servicebus")
        .mode("append")
        .options(**pair.primary_ref.to_options(), queue=queue)
        .save()
    )
