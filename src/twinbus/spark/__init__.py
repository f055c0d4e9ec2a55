"""Service Bus in Spark: the connector for everybody, and the syphon.

    from twinbus.spark import register
    register(spark)
    spark.readStream.format("servicebus").option("connectionStringFile", ...).option("queue", ...)

The data sources need the extra ``spark``: ``pip install 'twinbus[spark]'``.
"""

from __future__ import annotations

from twinbus.spark.registration import register

__all__ = ["register"]
