"""A Spark application that reads a queue and dies in its second batch.

    python -m tests.spark.connector.doomed_app read|written <secret file> <queue> <directory>

When it has "read" the batch, nothing of it is written; its first batch took longer than a lock
lasts. When it has "written" it, Spark has not heard of the batch's end, and neither has the queue.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.spark import register
from twinbus.spark.runtime.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES_PER_BATCH = 150
LAST_EPOCH = 1
SLOW_S = 7.0
# Time enough for whoever would settle too early.
READ_S = 1.0


def run(moment: str, secret: str, queue: str, directory: Path) -> None:
    spark = local_session("doomed", cores=2, fast_start=True)
    register(spark)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def work(frame: DataFrame, epoch: int) -> None:
        if moment == "read" and epoch == LAST_EPOCH:
            frame.count()
            time.sleep(READ_S)
        else:
            frame.write.mode("append").parquet(str(directory / "output"))
        if epoch == LAST_EPOCH:
            os.kill(jvm_pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif moment == "read":
            time.sleep(SLOW_S)

    (
        spark.readStream.format("servicebus")
        .options(connectionStringFile=secret, queue=queue)
        .option("maxMessagesPerTrigger", MESSAGES_PER_BATCH)
        .load()
        .writeStream.foreachBatch(work)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
        .awaitTermination(170)
    )


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
