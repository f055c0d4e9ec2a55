"""Parts of Spark's start, done in the background on another core.

    starting JVM      classes with slow initialisers       while the context starts
    started session   a read without rows, from Python     while the query is planned

The read without rows starts the Python processes that every read needs, and has them load the
modules that the tasks need.

Rule 1: errors here are ignored: the same step fails again where its result is needed, and is
        reported there.
Rule 2: before a session is stopped soon after its start, wait for the reads: Spark logs errors for
        tasks whose session has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["wait_for_reads", "warm_up_classes", "warm_up_reads"]

FORMAT: Final = "twinbus-nothing"
READS: Final = "twinbus-warm-reads"
WAIT_S_MAX: Final = 10.0
# A new session registers functions of the machine learning library by Scala's reflection: most of
# the second that it takes.
CLASSES: Final = (
    "org.apache.spark.sql.ml.InternalFunctionRegistration$",
    "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$",
)


def warm_up_classes(jvm: Any) -> None:
    """Start to load the classes that a session needs, before there is a context."""

    def initialise() -> None:
        for name in CLASSES:
            jvm.java.lang.Class.forName(name)

    _run_in_background("twinbus-warm-classes", initialise)


def warm_up_reads(spark: SparkSession, modules: Sequence[str], tasks: int) -> None:
    """Start a read without rows with ``tasks`` tasks, each of which imports the modules."""

    def read() -> None:
        spark.dataSource.register(NothingSource)
        nothing = spark.read.format(FORMAT)
        nothing.options(modules=",".join(modules), tasks=str(tasks)).load().collect()

    _run_in_background(READS, read)


def wait_for_reads(timeout_s: float = WAIT_S_MAX) -> None:
    """Wait until no such read is under way."""
    for thread in enumerate_threads():
        if thread.name == READS:
            thread.join(timeout_s)


def _run_in_background(name: str, work: Callable[[], None]) -> None:
    def run() -> None:
        with suppress(Exception):
            work()

    Thread(target=run, name=name, daemon=True).start()


class NothingSource(DataSource):
    """No rows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "nothing int"

    def reader(self, schema: Any) -> NothingReader:
        return NothingReader(self.options["modules"].split(","), int(self.options["tasks"]))


class NothingReader(DataSourceReader):
    """Tasks that load modules."""

    def __init__(self, modules: list[str], tasks: int) -> None:
        self._modules = modules
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for module in self._modules:
            import_module(module)
        yield from ()
