"""A Spark application that dies between reading a batch and writing it.

    python -m teeth.harnesses.doomed <connection string file> <queue> <directory>

Its first batch is written, and takes longer than a lock lasts. Of its second one every row has been
read when its JVM and itself are killed with -9.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.spark import register
from twinbus.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES_PER_BATCH = 150
SLOW_S = 7.0
# Time enough for whoever would settle too early.
READ_S = 1.0


def run(secret: str, queue: str, directory: Path) -> None:
    spark = local_session("doomed", cores=2, fast_start=True)
    register(spark)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def work(frame: DataFrame, epoch: int) -> None:
        if epoch == 0:
            frame.write.mode("append").parquet(str(directory / "output"))
            time.sleep(SLOW_S)
            return
        frame.count()
        time.sleep(READ_S)
        os.kill(jvm_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

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
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
