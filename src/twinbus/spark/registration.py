"""register(): adds the data source to a session, and has Spark redact secrets.

Spark finds the connector by itself where twinbus is installed (see pyspark_servicebus), when the
first data source is requested. register() adds it to a session at once and sets the expressions by
which Spark redacts our secrets. It also checks whether Spark's processes can import twinbus:
otherwise every load() would fail with their tracebacks.

Rule 1: references (connectionStringEnv, …File) stay readable: they name a secret and do not
        contain it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.runtime.worker_check import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OPTIONS_REGEX", "STRING_REGEX", "register", "with_ours"]

_CORE: Final = r"(?i)secret|password|token|access[.]?key"
"""Spark's own default for its properties."""
KEYS: Final = r"connection_?string$|shared_?access"
PROPERTIES_REGEX: Final = f"{_CORE}|{KEYS}"
"""``spark.redaction.regex``: properties and environment variables, by name or value."""
OPTIONS_REGEX: Final = f"(?i)url|secret|password|{KEYS}"
"""``spark.sql.redaction.options.regex``: options of a data source; Spark's own default is url."""
STRING_REGEX: Final = (
    r"(?i)shared_?access_?(key|signature)\s*=[^;,\s\])}\"']+|\bsig=[^&;,\s\])}\"']+"
)
"""``spark.sql.redaction.string.regex``: any text of a plan."""


def with_ours(theirs: str | None, ours: str) -> str:
    """Both expressions: what the user's own expression redacts stays redacted."""
    if not theirs or ours in theirs:
        return theirs or ours
    return f"({theirs})|({ours})"


_HIDDEN: Final = {
    "spark.sql.redaction.options.regex": OPTIONS_REGEX,
    "spark.sql.redaction.string.regex": STRING_REGEX,
}


def register(spark: SparkSession) -> None:
    """Let ``format("servicebus")`` work in this session; may be called twice.

    Raises ConfigurationError when Spark's Python cannot import twinbus.
    """
    try:
        source = import_module("twinbus.spark.connector.data_source").ServiceBusDataSource
    except ImportError as error:
        raise ConfigurationError(
            f"The connector requires {error.name}, which is not installed",
            hint="Run: pip install 'twinbus[spark]'",
        ) from error
    spark.dataSource.register(source)
    check_workers(spark)
    for name, ours in _HIDDEN.items():
        spark.conf.set(name, with_ours(spark.conf.get(name, None), ours))
