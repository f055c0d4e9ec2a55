"""Checks whether Spark's Python processes can import twinbus; one sentence when they cannot.

Spark starts them with PYSPARK_PYTHON, or else with the ``python3`` of the PATH. Where the virtual
environment of an application is not activated, that is another Python than the application's.

Rule 1: the check is a query of Spark, which takes most of a second: only Spark's processes have
        their own path. A session with the Python of this program is not checked.
Rule 2: executors of a cluster are not checked, because they may not have started yet: their first
        task fails instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.runtime.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_workers", "explain_missing", "has_twinbus", "is_missing", "pyspark_home"]

_MISSING: Final = "No module named 'twinbus"
_START_S_MAX: Final = 30.0


def pyspark_home() -> Path:
    """Where the PySpark of this program is installed."""
    return Path(str(import_module("pyspark").__path__[0]))


def is_missing(text: str) -> bool:
    """Whether an error of Spark is that twinbus cannot be imported."""
    return _MISSING in text


def check_workers(spark: SparkSession) -> None:
    """Raise ConfigurationError if the processes that plan queries cannot import twinbus."""
    if _python_of(spark) in (sys.executable, worker_python(pyspark_home())):
        return
    from twinbus.spark.runtime.warm_up import FORMAT, NothingSource

    spark.dataSource.register(NothingSource)
    with explain_missing(spark):
        # Spark Connect sends a request to the server when the columns are needed.
        _ = spark.read.format(FORMAT).load().schema


@contextmanager
def explain_missing(spark: SparkSession) -> Iterator[None]:
    """Raise one sentence instead of Spark's tracebacks for this error."""
    try:
        yield
    except Exception as error:
        if not is_missing(str(error)):
            raise
        # Without the cause: it is the tracebacks.
        python = _python_of(spark)
        named = "The Python of the Spark server" if python is None else f"Spark's Python {python!r}"
        raise ConfigurationError(
            f"{named} cannot import twinbus",
            hint=f"Set PYSPARK_PYTHON={sys.executable} before the session is created, or install "
            "twinbus[spark] for that Python",
        ) from None


def _python_of(spark: SparkSession) -> str | None:
    """The command of Spark's processes; None with Spark Connect: the server has the context."""
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return None if is_connect else str(spark.sparkContext.pythonExec)


def has_twinbus(python: str) -> bool:
    """Whether a Python of this machine can import what Spark's processes need."""
    try:
        ended = subprocess.run(
            [python, "-c", "import twinbus.spark"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S_MAX,
            env=os.environ,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
