"""A Spark session on this machine: quick to start, quiet, and without secrets in what it shows.

    local_session()   for the command line and for tests
    SETTINGS          what matters on every master; spark-submit may take it from here

Rule 1: a session that runs already is used as it is: Spark has one for each process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.java import find_java
from twinbus.spark.redaction import OPTIONS_REGEX, PROPERTIES_REGEX, STRING_REGEX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "local_session"]

LOOPBACK: Final = "127.0.0.1"
TASK_FAILURES_MAX: Final = 4
"""As on a cluster: a task that fails is tried again, where ``local[2]`` alone would give up."""

SETTINGS: Final[Mapping[str, str]] = {
    # A task that receives messages must not run twice at once.
    "spark.speculation": "false",
    "spark.redaction.regex": PROPERTIES_REGEX,
    "spark.sql.redaction.options.regex": OPTIONS_REGEX,
    "spark.sql.redaction.string.regex": STRING_REGEX,
}

_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # 113 ms for each batch where the default takes 214; it needs a file system that renames
    # atomically, as a disk of this machine does.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def local_session(
    app_name: str = "twinbus", *, cores: int = 2, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Spark in this process and one JVM; ``more`` are settings that win over ours."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "PySpark is not installed", hint="pip install 'twinbus[spark]'"
        ) from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    find_java()
    builder = SparkSession.builder.appName(app_name)
    builder = builder.master(f"local[{cores},{TASK_FAILURES_MAX}]")
    settings = {**SETTINGS, **_LOCAL, **_java_options(), **(more or {})}
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _environment(SPARK_LOCAL_IP=LOOPBACK, PYSPARK_PYTHON=sys.executable):
        return builder.getOrCreate()


def _java_options() -> dict[str, str]:
    log_config = files("twinbus.spark").joinpath("log4j2.properties")
    return {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_config}"}


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """What the JVM and its workers inherit, unless somebody has decided otherwise."""
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]
