"""examples/queue_to_parquet.py and the README's block, on the session of all tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from examples.queue_to_parquet import append_messages
from tests.integration.examples.test_readme import block_with
from tests.spark.brokers import SparkPair
from tests.spark.connector.scene import fill, ids, left

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_the_messages_of_a_queue_are_appended_to_a_table(
    spark: SparkSession, pair: SparkPair, tmp_path: Path
) -> None:
    """S1 and S2: every message is a row, and the queue is empty."""
    queue, table = pair.primary.fresh_queue(), tmp_path / "table"
    fill(pair.primary, queue, ids(3), body=b"1 coffee")
    assert append_messages(spark, pair.primary_file, queue, table) == 3
    rows = spark.read.parquet(str(table)).collect()
    assert sorted((row.id, row.text) for row in rows) == [(each, "1 coffee") for each in ids(3)]
    assert left(pair.primary, queue) == 0


def test_the_block_of_the_readme_reads_a_queue(spark: SparkSession, pair: SparkPair) -> None:
    """S1: the stream has the columns of messages."""
    block = block_with("readStream").replace("/etc/shop/servicebus", str(pair.primary_file))
    names = {"spark": spark}
    exec(block, names)
    orders: DataFrame = names["orders"]
    assert orders.isStreaming and {"body", "messageId"} <= set(orders.columns)
