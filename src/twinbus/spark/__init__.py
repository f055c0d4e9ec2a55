"""Service Bus in Spark: the connector for everybody, and the syphon.

    from twinbus.spark import register
    register(spark)
    spark.readStream.format("servicebus").option("connectionStringFile", ...).option("queue", ...)

The data sources need the extra ``spark``: ``pip install 'twinbus[spark]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from twinbus.spark.connection_refs import NamespaceRef
    from twinbus.spark.registration import register
    from twinbus.spark.runtime.session import local_session

__all__ = ["NamespaceRef", "local_session", "register"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "NamespaceRef": "twinbus.spark.connection_refs",
        "local_session": "twinbus.spark.runtime.session",
        "register": "twinbus.spark.registration",
    },
    __all__,
)
