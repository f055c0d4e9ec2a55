"""A Spark script that reads a queue into Parquet, and ends when it has read all messages.

    $ python examples/queue_to_parquet.py /etc/shop/servicebus orders ./orders-table

The first argument is a file with a connection string: Spark gets the path of the secret, not the
secret. A message is settled when its row is written; run the script again for new messages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from twinbus.spark import local_session, register


def append_messages(spark: SparkSession, secret_file: Path, queue: str, table: Path) -> int:
    """Append the messages of the queue to the table; returns the number of its rows."""
    register(spark)
    messages = (
        spark.readStream.format("servicebus")
        .option("connectionStringFile", str(secret_file))
        .option("queue", queue)
        .load()
    )
    orders = messages.selectExpr(
        "messageId as id",
        "cast(body as string) as text",
        "properties['region'] as region",
        "enqueuedTime as at",
    )
    writing = (
        orders.writeStream.format("parquet")
        .option("path", str(table))
        .option("checkpointLocation", f"{table}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    writing.awaitTermination()
    return spark.read.parquet(str(table)).count()


if __name__ == "__main__":
    session = local_session("queue to parquet")
    rows = append_messages(session, Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    print(f"{sys.argv[3]} has {rows} rows")
    session.stop()
