"""Makes later starts of Spark on this machine faster: ``twinbus syphon prepare``.

A JVM runs, without a broker, the same steps as the syphon's until its first batch is written, and
writes the classes that it loaded to an archive when it ends (see class_archive.py).

Rule 1: starting a syphon never waits for this: a JVM that writes the archive takes twice as long
        to start, and many seconds to end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from twinbus.errors import ConfigurationError
from twinbus.spark.errors import SparkError
from twinbus.spark.runtime.class_archive import ClassArchive
from twinbus.spark.runtime.session import archive_here, local_session
from twinbus.spark.runtime.warm_up import wait_for_reads
from twinbus.spark.syphon import APP_NAME, MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prepare"]

FORMAT: Final = "twinbus-rehearsal"
QUERY_S_MAX: Final = 120
END_S_MAX: Final = 180.0
_HINT: Final = "Set XDG_CACHE_HOME to a directory that you can write, with 200 MB free"


def prepare() -> Path:
    """The archive of this Java and this Spark, written unless it exists."""
    archive = archive_here()
    if archive is None:
        raise ConfigurationError("No cache directory found", hint=_HINT)
    if not archive.is_there():
        session = local_session(
            APP_NAME, fast_start=True, keep_classes=True, finds_sources=False, modules=MODULES
        )
        try:
            _rehearse(session)
        finally:
            _end(session)
        _check(archive)
    return archive.path


def _rehearse(spark: SparkSession) -> None:
    spark.dataSource.register(RehearsalSource)
    with tempfile.TemporaryDirectory(prefix="twinbus-prepare-") as directory:
        query = (
            spark.readStream.format(FORMAT)
            .load()
            .writeStream.format("parquet")
            .option("path", f"{directory}/rows")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(QUERY_S_MAX):
            query.stop()
            raise SparkError(
                f"Spark did not finish the preparation within {QUERY_S_MAX} s",
                hint="Run the command again when the machine is less busy",
            )
    wait_for_reads()


def _end(spark: SparkSession) -> None:
    """Stop Spark and wait until the JVM has ended: it writes the archive last."""
    gateway: Any = SparkContext._gateway
    spark.stop()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        with suppress(TimeoutExpired):
            process.wait(END_S_MAX)


def _check(archive: ClassArchive) -> None:
    if not archive.is_there():
        raise ConfigurationError(
            f"Java wrote no class archive to {str(archive.path.parent)!r}", hint=_HINT
        )


class RehearsalSource(DataSource):
    """A stream of one row."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "name string, number bigint, at timestamp"

    def streamReader(self, schema: Any) -> RehearsalReader:
        return RehearsalReader()


class RehearsalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One epoch, two tasks, one of them with a row."""

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"epoch": 1}

    def prepareForTriggerAvailableNow(self) -> None:
        """There is only one epoch."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        if partition.value == 0:
            columns = {
                "name": pa.array(["rehearsal"]),
                "number": pa.array([1], pa.int64()),
                "at": pa.array([0], pa.timestamp("us", tz="UTC")),
            }
            yield pa.RecordBatch.from_pydict(columns)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""
