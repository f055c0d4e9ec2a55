"""Makes the connector known to a session, and the session careful with its options.

Spark finds the connector by itself where twinbus is installed (see pyspark_servicebus), when the
first data source is looked up; register() does it for a session at once and hides secrets, too.
It also asks whether Spark's processes can import twinbus: otherwise every load() would fail with
their tracebacks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.redaction import OPTIONS_REGEX, STRING_REGEX, with_ours
from twinbus.spark.worker_python import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_HIDDEN: Final = {
    "spark.sql.redaction.options.regex": OPTIONS_REGEX,
    "spark.sql.redaction.string.regex": STRING_REGEX,
}


def register(spark: SparkSession) -> None:
    """Let ``format("servicebus")`` work in this session; may be called twice.

    Raises ConfigurationError when Spark's Python cannot import twinbus.
    """
    try:
        source = import_module("twinbus.spark.connector.source").ServiceBusDataSource
    except ImportError as error:
        raise ConfigurationError(
            f"the connector needs {error.name}, which is not installed",
            hint="pip install 'twinbus[spark]'",
        ) from error
    spark.dataSource.register(source)
    check_workers(spark)
    for name, ours in _HIDDEN.items():
        spark.conf.set(name, with_ours(spark.conf.get(name, None), ours))
