"""Reconciliation: from audit logs, receipts and a scan of the queues to the status of each message.

    log_tables           logs and receipts as tables, and whether the logs are complete
    queue_scan           the messages that are in the queues now
    message_locations    events --> stays of messages in queues and subscriptions
    copies               stays --> copies of messages by entity, each with its status
    accounts             copies, sends and receipts --> one account for each id, with its statuses
    differences          accounts --> messages that do not add up, with their traces in the logs
    pipeline             all steps in order, and the result as values

Rule 1: every step takes tables and returns one; nothing is collected before the end.
Rule 2: a message is followed by its id, within its entity. Messages without an id are only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from twinbus.spark.reconciliation.pipeline import Sources, reconcile

__all__ = ["Sources", "reconcile"]

_PIPELINE: Final = "twinbus.spark.reconciliation.pipeline"

# PySpark is loaded when a name that needs it is used.
__getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(__all__, _PIPELINE), __all__)
