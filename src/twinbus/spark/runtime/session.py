"""A Spark session on this machine: quick to start, quiet, and without secrets in what it shows.

    local_session()   for the command line and for tests
    SETTINGS          settings for every master; spark-submit may use them as well

Rule 1: a session that exists is used as it is: Spark has one for each process.
Rule 2: Spark's processes get a Python that can import twinbus: this one, whatever is on the PATH.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.registration import OPTIONS_REGEX, PROPERTIES_REGEX, STRING_REGEX
from twinbus.spark.runtime.class_archive import ClassArchive
from twinbus.spark.runtime.java import Java, find_java
from twinbus.spark.runtime.worker_check import has_twinbus, pyspark_home
from twinbus.spark.runtime.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LOCAL_CORES",
    "SETTINGS",
    "archive_here",
    "local_session",
    "require_pyspark",
    "with_retries",
]

_LOG = logging.getLogger("twinbus.spark")

LOOPBACK: Final = "127.0.0.1"
LOCAL_CORES: Final = 2
TASK_FAILURES_MAX: Final = 4
"""As on a cluster: a task that fails is tried again, which ``local[2]`` alone would not do."""

SETTINGS: Final[Mapping[str, str]] = {
    # A task that receives messages must not run twice at once.
    "spark.speculation": "false",
    "spark.redaction.regex": PROPERTIES_REGEX,
    "spark.sql.redaction.options.regex": OPTIONS_REGEX,
    "spark.sql.redaction.string.regex": STRING_REGEX,
    # The default, INT96, is a form that Parquet has deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # PySpark would send the JVM the source line of each column: a third of the time of a long
    # chain of steps.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # 113 ms for each batch where the default takes 214; it needs a file system that renames
    # atomically, as a disk of this machine does.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


# Spark searches for installed data sources where this command exists.
_NO_COMMAND: Final = "no-search-for-data-sources"

# A short run would spend its time compiling: only methods that are called tens of thousands of
# times get the full compiler. The time until the first batch is that of the quick compiler alone,
# and after 200,000 receipts each takes half as long as with it.
_SMALL_JVM: Final = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=200000"
)


def local_session(
    app_name: str = "twinbus",
    *,
    cores: int = LOCAL_CORES,
    fast_start: bool = False,
    keep_classes: bool = False,
    finds_sources: bool = True,
    modules: Sequence[str] = (),
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Spark in this process and one JVM.

    ``fast_start`` uses a JVM that compiles little; ``keep_classes`` makes the next start faster,
    by an archive that the JVM writes when it ends. ``finds_sources=False`` omits the search for
    installed data sources, for programs that register theirs. ``modules`` are needed by tasks and
    are loaded in advance. ``more`` are settings that override the others.
    """
    session_type = require_pyspark().SparkSession
    running: SparkSession | None = session_type.getActiveSession()
    if running is not None:
        return running
    java = find_java()
    archive = _find_archive(java)
    options = [f"-Dlog4j2.configurationFile={files('twinbus.spark.runtime') / 'log4j2.properties'}"]
    if fast_start:
        options.append(_SMALL_JVM)
    if archive is not None:
        options.append(archive.java_options(may_make=keep_classes))
    settings = {
        **SETTINGS,
        **_LOCAL,
        "spark.app.name": app_name,
        "spark.master": f"local[{cores},{TASK_FAILURES_MAX}]",
        "spark.driver.extraJavaOptions": " ".join(options),
        **(more or {}),
    }
    environment = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": _python()}
    if java.home is not None:
        environment["JAVA_HOME"] = str(java.home)
    if not finds_sources:
        environment["PYSPARK_DRIVER_PYTHON"] = _NO_COMMAND
    with _environment(**environment):
        session = _start(settings)
    if modules:
        from twinbus.spark.runtime.warm_up import warm_up_reads

        warm_up_reads(session, modules, cores)
    return session


def with_retries(master: str) -> str:
    """A local master with retries of failed tasks, unless it sets a number itself."""
    cores = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return master if cores is None else f"local[{cores[1] or 1},{TASK_FAILURES_MAX}]"


def archive_here() -> ClassArchive | None:
    """The class archive of this Java and this Spark; None without a cache directory."""
    return _find_archive(find_java())


def _find_archive(java: Java) -> ClassArchive | None:
    return ClassArchive.of(java, _spark_home(), _spark_version())


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from twinbus.spark.runtime.warm_up import warm_up_classes

    conf = SparkConf().setAll(list(settings.items()))
    SparkContext._ensure_initialized(conf=conf)  # Starts the JVM, unless there is one.
    warm_up_classes(SparkContext._jvm)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def require_pyspark() -> Any:
    """pyspark.sql, or a ConfigurationError that names what to install."""
    try:
        return import_module("pyspark.sql")
    except ImportError as error:
        raise ConfigurationError(
            "PySpark is not installed", hint="Run: pip install 'twinbus[spark]'"
        ) from error


def _spark_home() -> Path:
    home = os.environ.get("SPARK_HOME", "").strip()
    return Path(home) if home else pyspark_home()


def _spark_version() -> str:
    return str(import_module("pyspark.version").__version__)


def _python() -> str:
    """The Python of PYSPARK_PYTHON, if it is another one than this and has twinbus; else this."""
    chosen = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if chosen != sys.executable:
        if has_twinbus(chosen):
            return chosen
        _LOG.warning(
            "PYSPARK_PYTHON is %r, which cannot import twinbus: Spark uses %r instead",
            chosen,
            sys.executable,
        )
    own = pyspark_home()
    return sys.executable if _spark_home() != own else worker_python(own)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Environment variables that the JVM and its workers inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
