"""Service Bus in Spark: the connector ``servicebus``, the syphon, cost reports, reconciliation.

    from twinbus.spark import register
    register(spark)
    spark.readStream.format("servicebus").option("connectionStringFile", ...).option("queue", ...)

connector/          the data source ``servicebus``
syphon/             the syphon as a streaming query
cost_report/        costs, computed from operations logs
reconciliation/     the status of every message, from audit logs and receipts
runtime/            Java, the local session, the Python of Spark's workers
registration        register(): data sources and redaction for a session
connection_refs     references to namespaces, without secrets
driver_channel      reports of tasks to the driver; long_poll waits for messages on the driver
errors              Spark's errors as one sentence

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
