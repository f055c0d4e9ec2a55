"""Makes the connector known to a session, and the session careful with its options.

Spark finds the connector by itself where twinbus is installed (see pyspark_servicebus), when the
first data source is looked up; register() does it for a session at once and hides secrets, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from twinbus.errors import ConfigurationError
from twinbus.spark.redaction import OPTIONS_REGEX, STRING_REGEX, with_ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_HIDDEN: Final = {
    "spark.sql.redaction.options.regex": OPTIONS_REGEX,
    "spark.sql.redaction.string.regex": STRING_REGEX,
}


def register(spark: SparkSession) -> None:
    """Let ``format("servicebus")`` work in this session; may be called twice."""
    try:
        source = import_module("twinbus.spark.connector.source").ServiceBusDataSource
    except ImportError as error:
        raise ConfigurationError(
            f"the connector needs {error.name}, which is not installed",
            hint="pip install 'twinbus[spark]'",
        ) from error
    spark.dataSource.register(source)
    for name, ours in _HIDDEN.items():
        spark.conf.set(name, with_ours(spark.conf.get(name, None), ours))
