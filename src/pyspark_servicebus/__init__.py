"""Makes ``format("servicebus")`` known to Spark without a call.

Spark imports every top-level package whose name begins with ``pyspark_`` when it first meets a
data source that is written in Python, and takes its ``DefaultSource``.

Rule 1: importing this never fails: it would take all other data sources of the session with it.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

with suppress(ImportError):  # PySpark without pyarrow: other data sources may do without.
    DefaultSource = import_module("twinbus.spark.connector.data_source").ServiceBusDataSource
