"""What Spark says when something of ours has failed in one of its processes: one sentence.

Spark wraps an error of a task or a source in the stack traces of Python and Java. The sentence
that we wrote is in there, behind the name of its class. For what a user has to change, such as an
option, our sources leave Python's stack trace out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any, Final

from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.spark.runtime.worker_check import is_missing

__all__ = ["SparkError", "sentence_in", "translate_spark_errors", "without_traceback"]

_OURS: Final = re.compile(r"twinbus\.(?:service_)?errors\.\w+: (?P<sentence>[^\r\n]+)")
# What stands before the reason, on a line of its own: which call of Java's it was.
_CALL: Final = re.compile(r"An error occurred while calling \S+\.\s*:?\s*")
_NO_TWINBUS: Final = (
    "a Python of Spark's workers cannot import twinbus. Install twinbus[spark] on every machine of "
    "Spark, for the Python that PYSPARK_PYTHON names."
)
_CLIPPED_AT: Final = 300
ENDING_S_MAX: Final = 1.0


class SparkError(TwinbusError):
    """A query ended, or could not begin."""


def sentence_in(text: str) -> str:
    """The sentence of our last error in what Spark says, or the first line of it."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).rstrip()
    if is_missing(text):
        return _NO_TWINBUS
    lines = [line.strip() for line in _CALL.sub("", text, 1).splitlines() if line.strip()]
    return lines[0][:_CLIPPED_AT] if lines else "Spark gave no reason"


@contextmanager
def without_traceback() -> Iterator[None]:
    """Have a process of Spark tell a wrong setting by its sentence alone."""
    try:
        yield
    except ConfigurationError:
        # Spark looks at this when it writes the error down, and ends the process with it. The
        # other variable is set in Spark's processes: nothing is changed in an application's.
        if os.environ.get("SPARK_LOCAL_DIRS"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Make Spark's errors a sentence."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise SparkError(sentence_in(str(error))) from error
    except (ConnectionError, Py4JError) as error:
        if isinstance(error, Py4JError) and not _is_jvm_gone():
            raise SparkError(sentence_in(str(error))) from error
        raise SparkError(
            "the JVM of Spark is gone", hint="Start the syphon again: nothing is lost"
        ) from error


def _is_jvm_gone() -> bool:
    """Whether it has ended, or does so now: a call that it did not answer says many things."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return gateway is None
    with suppress(TimeoutExpired):
        process.wait(ENDING_S_MAX)
        return True
    return False
