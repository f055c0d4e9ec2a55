"""Spark's errors as one sentence, where code of ours has failed in one of Spark's processes.

Spark wraps an error of a task or a source in the stack traces of Python and Java. Our sentence is
in that text, after the name of its class. For errors that a user has to correct, such as a wrong
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
# The line before the reason: it names the Java call.
_CALL: Final = re.compile(r"An error occurred while calling \S+\.\s*:?\s*")
_NO_TWINBUS: Final = (
    "The Python of a Spark worker cannot import twinbus. Install twinbus[spark] on every machine "
    "of the cluster, for the Python that PYSPARK_PYTHON names."
)
_CLIPPED_AT: Final = 300
ENDING_S_MAX: Final = 1.0


class SparkError(TwinbusError):
    """A query failed, or could not start."""


def sentence_in(text: str) -> str:
    """The sentence of our last error in a text of Spark, or the first line of the text."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).rstrip()
    if is_missing(text):
        return _NO_TWINBUS
    lines = [line.strip() for line in _CALL.sub("", text, 1).splitlines() if line.strip()]
    return lines[0][:_CLIPPED_AT] if lines else "Spark reported no reason"


@contextmanager
def without_traceback() -> Iterator[None]:
    """Have a process of Spark report a wrong setting without a traceback."""
    try:
        yield
    except ConfigurationError:
        # Spark reads this when it reports the error, and the process ends with it. The other
        # variable is only set in Spark's processes: an application's own is not changed.
        if os.environ.get("SPARK_LOCAL_DIRS"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Raise Spark's errors as SparkError, with one sentence."""
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
            "The JVM of Spark has ended", hint="Start the syphon again. No message is lost"
        ) from error


def _is_jvm_gone() -> bool:
    """Whether it has ended, or ends now: an unanswered call can have other causes."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return gateway is None
    with suppress(TimeoutExpired):
        process.wait(ENDING_S_MAX)
        return True
    return False
