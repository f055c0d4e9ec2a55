"""A Spark application that dies between writing a batch and settling its messages.

    python -m tests.spark.connector.doomed_app <connection string file> <queue> <directory>

The second batch is written, and then its JVM and itself are killed with -9: Spark has not heard of
the batch's end, and neither has the queue.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.spark import register
from twinbus.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES_PER_BATCH = 150
LAST_EPOCH = 1


def run(secret: str, queue: str, directory: Path) -> None:
    spark = local_session("doomed", cores=2, fast_start=True)
    register(spark)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def write_and_die(frame: DataFrame, epoch: int) -> None:
        frame.write.mode("append").parquet(str(directory / "output"))
        if epoch == LAST_EPOCH:
            os.kill(jvm_pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    (
        spark.readStream.format("servicebus")
        .options(connectionStringFile=secret, queue=queue)
        .option("maxMessagesPerTrigger", MESSAGES_PER_BATCH)
        .load()
        .writeStream.foreachBatch(write_and_die)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
        .awaitTermination(170)
    )


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
